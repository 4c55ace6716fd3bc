#!/usr/bin/env bats
# Weights come out of the cluster: kubectl fleetjob export while a job trains, when it is over, and
# when its pods are gone; by hand with a pod of one's own. Method: files that arrive, their digest
# beside that of the job's status, and the pods that are left.

bats_require_minimum_version 1.5.0
load lib

setup_file() {
    start_installation
    mkdir -p "$BATS_FILE_TMPDIR/bin"
    # shellcheck disable=SC2154 # of lib
    ln -sf "$repository/build/bin/fleetjob" "$BATS_FILE_TMPDIR/bin/kubectl-fleetjob"
}

# kubectl finds its plug-in in the PATH.
with_plug_in() {
    PATH=$BATS_FILE_TMPDIR/bin:$PATH
}

has_saved() { # has_saved JOB
    [ -n "$(field "$1" checkpoint.path)" ]
}

no_export_pods() {
    is_empty kubectl get pods -A -l fleetjob.dev/export-of -o name
}

exports() { # exports JOB OUT [OPTION…]: what it says on standard error goes to $said
    said=$BATS_TEST_TMPDIR/said
    kubectl fleetjob export "$@" 2>"$said" || { cat "$said"; return 1; }
    cat "$said" >&2
}

refuses() { # refuses WORDS ARGUMENT…
    local words=$1
    shift
    run kubectl fleetjob export "$@"
    echo "$output"
    [ "$status" = 1 ] && [[ $output == *"$words"* ]]
}

# is_of_the_end JOB: what was exported last are the weights that the job ended with
is_of_the_end() {
    grep "weights SHA-256 $(field "$1" result.weightsSha256)" "$said"
}

checkpoints() { # checkpoints FOLDER: settings of a job that saves into a hostPath
    echo "volumes: [{name: checkpoints, mountPath: /checkpoints, hostPath: $1}]"
}

@test "exported while it trains, when it is over, and when its pods are gone" {
    local folder
    with_plug_in
    folder=$(volume_folder weights)
    start_job weights replicas=2 steps="$LONG" checkpoint='path: /checkpoints/weights, everySteps: 10' \
        worker="$(checkpoints "$folder")"
    eventually "$LIMIT" has_saved weights
    exports weights "$BATS_TEST_TMPDIR/running"
    grep '"GPT2LMHeadModel"' "$BATS_TEST_TMPDIR/running/config.json"
    build/bin/fleetjob eval "$BATS_TEST_TMPDIR/running" - --batches 1
    becomes weights Succeeded $((3 * LIMIT))
    exports weights "$BATS_TEST_TMPDIR/over"
    is_of_the_end weights
    exports weights "$BATS_TEST_TMPDIR/over.safetensors"
    cmp "$BATS_TEST_TMPDIR/over.safetensors" "$BATS_TEST_TMPDIR/over/model.safetensors"
    kubectl delete pods -l fleetjob.dev/job-name=weights --wait
    refuses 'name the node that has them with --node' weights "$BATS_TEST_TMPDIR/gone"
    exports weights - --node node-2 >"$BATS_TEST_TMPDIR/gone.safetensors"
    is_of_the_end weights
    cmp "$BATS_TEST_TMPDIR/over.safetensors" "$BATS_TEST_TMPDIR/gone.safetensors"
    eventually "$LIMIT" no_export_pods
    remove_job weights
    rm -rf "$folder"
}

# The disk of one node: claim and workers are bound to it.
local_volume() { # local_volume NAME FOLDER NODE
    kubectl apply -f - <<END
apiVersion: v1
kind: PersistentVolume
metadata: {name: $1}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  local: {path: $2}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [$3]}]}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: $1
  resources: {requests: {storage: 1Gi}}
END
}

by_hand() { # by_hand CLAIM: the pod of docs/weights.md
    sed -n "/^kubectl apply -f - <<'END'/,/^END/p" docs/weights.md | sed '1d;$d' | sed "s/my-checkpoints/$1/; s/my-job/$1/"
}

@test "a claim of one node: the export goes there, while it trains and after; by hand, too" {
    local folder
    with_plug_in
    folder=$(volume_folder once)
    local_volume once "$folder" node-2
    start_job once replicas=2 steps="$LONG" checkpoint='path: /checkpoints/once, everySteps: 10' \
        worker='volumes: [{name: checkpoints, mountPath: /checkpoints, claim: once}]'
    eventually "$LIMIT" has_saved once
    exports once "$BATS_TEST_TMPDIR/once.safetensors"
    becomes once Succeeded $((3 * LIMIT))
    exports once "$BATS_TEST_TMPDIR/once.safetensors"
    is_of_the_end once

    by_hand once | kubectl apply -f -
    kubectl wait pod/export --for=condition=Ready --timeout="${LIMIT}s"
    kubectl exec export -- /fleetjob/bin/fleetjob export /checkpoints/once - --tar |
        tar -x -C "$(mkdir -p "$BATS_TEST_TMPDIR/hand" && echo "$BATS_TEST_TMPDIR/hand")"
    kubectl delete pod export --wait
    cmp "$BATS_TEST_TMPDIR/once.safetensors" "$BATS_TEST_TMPDIR/hand/model.safetensors"
    [ -s "$BATS_TEST_TMPDIR/hand/config.json" ]
    remove_job once
    eventually "$LIMIT" nothing_left_of once
    kubectl delete pvc/once pv/once
    rm -rf "$folder"
}

@test "what is missing is named, and no pod is left, also after Ctrl-C" {
    local folder pid code=0
    with_plug_in
    folder=$(volume_folder missing)
    refuses 'there is no FleetJob nobody' nobody "$BATS_TEST_TMPDIR/x"
    job_file unsaved steps="$SHORT" replicas=1 | kubectl apply -f -
    becomes unsaved Succeeded
    refuses 'it has no spec.training.checkpoint' unsaved "$BATS_TEST_TMPDIR/x"
    remove_job unsaved
    job_file inside steps="$SHORT" replicas=1 checkpoint='path: /inside' \
        worker='volumes: [{name: inside, mountPath: /inside, emptyDir: {}}]' | kubectl apply -f -
    becomes inside Succeeded
    refuses 'on an emptyDir, which ends with its pod' inside "$BATS_TEST_TMPDIR/x"
    remove_job inside
    job_file missing steps="$SHORT" replicas=1 checkpoint='path: /checkpoints' \
        worker="$(checkpoints "$folder")" | kubectl apply -f -
    becomes missing Succeeded
    # the scheduler may need longer to say so
    eventually "$LIMIT" refuses 'cannot be scheduled' missing "$BATS_TEST_TMPDIR/x" \
        --node nowhere --timeout 3
    refuses 'cannot start' missing "$BATS_TEST_TMPDIR/x" --image 127.0.0.1:1/nowhere:1
    eventually "$LIMIT" no_export_pods # of those before
    kubectl fleetjob export missing "$BATS_TEST_TMPDIR/x" --node nowhere 2>"$BATS_TEST_TMPDIR/said" &
    pid=$!
    eventually "$LIMIT" has_export_pod missing
    kill -INT "$pid"
    wait "$pid" || code=$?
    [ "$code" = 130 ]
    eventually "$LIMIT" no_export_pods
    [ ! -e "$BATS_TEST_TMPDIR/x/config.json" ]
    remove_job missing
    rm -rf "$folder"
}

has_export_pod() { # has_export_pod JOB
    [ -n "$(kubectl get pods -l "fleetjob.dev/export-of=$1" -o name)" ]
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
