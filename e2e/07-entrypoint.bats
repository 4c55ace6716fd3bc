#!/usr/bin/env bats
# Images whose ENTRYPOINT is the trainer: jobs without a command. Method: a script with a loader,
# which hands over to the agent, and a static program, which cannot; what their logs and the API
# server say.

load lib

setup_file() {
    start_installation
    cat >"$BATS_FILE_TMPDIR/train" <<'END'
#!/bin/dash
# train CODE ARGUMENT…: rank 1 fails with CODE in the first generation.
echo "rank $RANK of $WORLD_SIZE in generation $FLEET_GENERATION, process $$"
code=$1
[ $# = 0 ] || shift
for argument in "$@"; do
    echo "argument '$argument'"
done
echo "folder $PWD, preload '$LD_PRELOAD$FLEET_ENTRYPOINT_AGENT$FLEET_ENTRYPOINT_PRELOAD'"
while read -r word value rest; do
    [ "$word" != Uid: ] || echo "user $value"
done </proc/self/status
trap 'echo "asked to end"; exit 0' TERM
while [ -n "$STAY" ]; do
    :
done
[ "$RANK$FLEET_GENERATION" != 11 ] || exit "${code:-0}"
END
    chmod 755 "$BATS_FILE_TMPDIR/train"
    image script --with /bin/dash --user 1234 --folder /lib64 "$BATS_FILE_TMPDIR/train"
    image busybox /bin/busybox
    image nothing --no-entrypoint /bin/busybox
}

image() { # image NAME OPTION… PROGRAM: fleet.local/NAME:1 in the cluster
    local name=$1 program=${*: -1}
    set -- "${@:2:$#-2}"
    "$BATS_TEST_DIRNAME/cluster/image.sh" "$@" "$BATS_FILE_TMPDIR/$name.tar" "fleet.local/$name:1" "$program"
    "$cluster" load "$BATS_FILE_TMPDIR/$name.tar"
}

as_the_image_says='securityContext: {runAsNonRoot: true}'

# A job of two workers; LINES are of its first container.
entry_job() { # entry_job NAME IMAGE LINES [POD]
    kubectl apply -n "$namespace" -f - <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker:
    replicas: 2
    template:
      spec:
        ${4:-terminationGracePeriodSeconds: 5}
        containers:
          - {name: trainer, image: "fleet.local/$2:1", imagePullPolicy: IfNotPresent, $3}
END
}

none_runs() { # none_runs JOB
    local phases
    phases=$(kubectl get pods -n "$namespace" -l "fleetjob.dev/job-name=$1" \
        -o jsonpath='{.items[*].status.phase}') || return
    [[ $phases != *Pending* && $phases != *Running* ]] || { echo "$phases"; return 1; }
}

failed_because() { # failed_because JOB
    kubectl get fj "$1" -n "$namespace" -o jsonpath='{.status.conditions[?(@.type=="Failed")].reason}: {.status.conditions[?(@.type=="Failed")].message}'
}

starts_again() {
    entry_job args script 'args: ["3", "--lr=0.1", "", "a b"]' "$as_the_image_says" || return
    becomes args Succeeded && unless_missed args field_is args restarts.count 1
}

@test "args alone: the agent starts what the image would have started, again after a failure" {
    none_missed args starts_again
    for line in "rank 1 of 2 in generation 1" "rank 1 of 2 in generation 2" "argument '--lr=0.1'" "argument ''" "argument 'a b'" \
        "folder /lib64, preload ''" "user 1234"; do
        eventually "$LIMIT" log_has args-worker-1-0 "$line"
    done
    remove_job args
}

starts_bare() {
    entry_job bare script 'env: [{name: A, value: b}]' || return
    becomes bare Succeeded && unless_missed bare field_is bare restarts.count 0
}

@test "neither command nor args: ENTRYPOINT and CMD of the image" {
    none_missed bare starts_bare
    remove_job bare
}

enter_it() {
    entry_job shared script 'args: ["0"], env: [{name: STAY, value: "1"}, {name: LD_PRELOAD, value: /no/such.so}]' \
        'shareProcessNamespace: true' || return
    becomes shared Running || return
    before=$(as_it_is shared)
    eventually "$LIMIT" log_has shared-worker-0-0 "preload '/no/such.so'" || return
    run kubectl exec -n "$namespace" shared-worker-0-0 -c trainer -- /bin/dash -c 'echo "here with $LD_PRELOAD"'
    echo "$output"
    [ "$output" = "here with /fleetjob/lib/fleetjob-preload.so" ] || return
    nothing_noticed shared "$before"
}

@test "in a shared process namespace, too, where what enters later is left alone" {
    none_missed shared enter_it
    kubectl patch fj shared -n "$namespace" --type=merge -p '{"spec":{"runPolicy":{"suspend":true}}}'
    becomes shared Suspended
    remove_job shared
}

@test "a static ENTRYPOINT is found out at once: one failure that says what to do" {
    entry_job static busybox 'args: [sleep, "100000"]'
    becomes static Failed
    echo "$(failed_because static)"
    [[ "$(failed_because static)" == "BadEntrypoint: "*"spec.worker.template.spec.containers[0].command: required for this image: its ENTRYPOINT is a static program"*'["/bin/busybox"]; args stay as they are' ]]
    field_is static restarts.count 0
    field_is static attempts ''
    remove_job static
    eventually "$LIMIT" nothing_left_of static
}

# The kubelet would wait ten minutes for a program that does not hear SIGTERM.
@test "one that works is ended at once, with any grace period" {
    entry_job busy busybox 'args: [sh, -c, "while :; do :; done"]' 'terminationGracePeriodSeconds: 600'
    becomes busy Failed
    eventually "$LIMIT" none_runs busy
    remove_job busy
}

says_why() { # says_why JOB WORDS: what its workers wait for
    [[ "$(kubectl get fj "$1" -n "$namespace" -o jsonpath='{.status.conditions[?(@.type=="Running")].message}')" == *"$2"* ]]
}

@test "an image without ENTRYPOINT and CMD: the job shows what the runtime says" {
    entry_job nothing nothing 'args: []'
    eventually "$LIMIT" says_why nothing "no command specified"
    remove_job nothing
}

@test "a hook of its own and the node's processes are refused by name" {
    entry_job hook script 'lifecycle: {postStart: {exec: {command: [a]}}}' 'hostPID: true'
    eventually "$LIMIT" field_is hook state Refused
    run kubectl get fj hook -n "$namespace" -o jsonpath='{.status.conditions[?(@.type=="Accepted")].message}'
    echo "$output"
    [[ $output == *"spec.worker.template.spec.containers[0].lifecycle.postStart: needs command: "* ]]
    [[ $output == *"spec.worker.template.spec.hostPID: true needs command: "* ]]
    remove_job hook
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
