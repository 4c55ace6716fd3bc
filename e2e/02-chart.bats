#!/usr/bin/env bats
# The chart on a real API server: install, jobs in namespaces that enforce the restricted pod
# security standard, upgrade under a running job, take-over, uninstall. Method: the real Helm; what
# the controller was refused is looked up in the audit log.

bats_require_minimum_version 1.5.0
load lib
namespace=chart-jobs

setup_file() {
    if "$cluster" status >/dev/null 2>&1; then
        eval "$("$cluster" env)"
        if kubectl get crd fleetjobs.fleetjob.dev >/dev/null 2>&1; then
            echo "FleetJob is in use on the cluster; these scenarios install it themselves"
            return 1
        fi
        touch "$BATS_FILE_TMPDIR/lent"
    else
        "$cluster" up 2
        touch "$BATS_FILE_TMPDIR/ours"
        eval "$("$cluster" env)"
    fi
    "$BATS_TEST_DIRNAME/cluster/image.sh" "$BATS_FILE_TMPDIR/busybox.tar" fleet.local/busybox:1 /bin/busybox
    "$cluster" load "$images"/fleetjob-{controller,runtime}.tar "$BATS_FILE_TMPDIR/busybox.tar"
    audit_from_here
    for name in "$system" "$namespace"; do
        kubectl create namespace "$name"
        kubectl label namespace "$name" pod-security.kubernetes.io/enforce=restricted
    done
}

# One scenario goes on with the job of the one before: it stays.
teardown() {
    [ -n "${BATS_TEST_COMPLETED:-}" ] || diagnose 2>&1 | sed 's/^/| /'
}

teardown_file() {
    eval "$("$cluster" env)"
    if [ -e "$BATS_FILE_TMPDIR/lent" ]; then
        kubectl delete fleetjobs --all -n "$namespace" --timeout="${LIMIT}s" || true
        helm uninstall fleetjob -n "$system" --wait || true
        kubectl delete crd fleetjobs.fleetjob.dev --timeout="${LIMIT}s" || true
        kubectl delete namespace "$system" "$namespace" --timeout="${LIMIT}s" || true
    fi
    stop_installation
}

chart() { # chart install|upgrade SETTING…: without a warning
    local verb=$1 setting settings=() said
    shift
    for setting in "$@"; do
        settings+=(--set "$setting")
    done
    said=$(helm "$verb" fleetjob "$repository/charts/fleetjob" -n "$system" --wait --timeout "${LIMIT}s" "${settings[@]}" 2>&1) &&
        [[ $said != *arning* ]] || { echo "$said"; return 1; }
}

job() { # job NAME STEPS
    kubectl apply -n "$namespace" -f - <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker: {replicas: 2}
  training:
    model: {name: gpt, layers: 1, heads: 2, width: 32, context: 32}
    data: {path: /usr/share/doc/libc6/copyright}
    optimizer: {name: adamw, learningRate: 1.0e-3}
    globalBatchSize: 8
    microBatchSize: 4
    steps: $2
END
}

uids() { # uids JOB: of its pods
    kubectl get pods -n "$namespace" -l "fleetjob.dev/job-name=$1" -o jsonpath='{.items[*].metadata.uid}'
}

audit_from_here() {
    audited >"$BATS_FILE_TMPDIR/audited"
}

refused_nothing() {
    tail -n "+$(($(cat "$BATS_FILE_TMPDIR/audited") + 1))" "$(audit_log)" >"$BATS_TEST_TMPDIR/audit.log"
    python3 e2e/rbac.py "$BATS_TEST_TMPDIR/audit.log"
}

only_one_controller() {
    [ "$(kubectl get pods -n "$system" -l app.kubernetes.io/component=controller -o name | wc -l)" = 1 ]
}

nothing_left_in() { # nothing_left_in NAMESPACE KINDS
    local left
    left=$(kubectl get "$2" -n "$1" -o name) || return
    ! grep -v kube-root-ca.crt <<<"$left" | grep .
}

# What the workers of all jobs rest on: the hub's address, and the CA and key of the installation.
what_jobs_rest_on() {
    kubectl get service fleetjob-hub -n "$system" -o jsonpath='{.spec.clusterIP}:{.spec.ports[0].port} ' &&
        kubectl get secret fleetjob-identity -n "$system" -o jsonpath='{.data}'
}

it_rests_on() { # it_rests_on WHAT-IT-WAS
    [ "$(what_jobs_rest_on)" = "$1" ]
}

leader_is_in_the_slice() {
    local name
    name=$(leader) && [ -n "$name" ] &&
        [ "$(kubectl get endpointslice fleetjob-hub-leader -n "$system" -o jsonpath='{.endpoints[0].addresses[0]}')" = \
            "$(kubectl get pod "$name" -n "$system" -o jsonpath='{.status.podIP}')" ]
}

own_trainer() { # own_trainer NAME: a job whose program reports nothing
    kubectl apply -n "$namespace" -f - <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker:
    replicas: 2
    template:
      spec:
        containers:
          - name: trainer
            image: fleet.local/busybox:1
            imagePullPolicy: IfNotPresent
            command: [/bin/busybox, sh, -c, 'trap "exit 0" TERM; while :; do /bin/busybox sleep 1; done']
END
}

have_met_again() { # have_met_again JOB: each of its workers has found a second hub
    local pod
    for pod in $(pods_of "$1" | cut -d' ' -f1); do
        [ "$(kubectl logs -n "$namespace" "$pod" | grep -c 'Connected to the hub')" -ge 2 ] || return
    done
    [ "$(field "$1" workers.ready)" = 2 ]
}

has_led_for() { # has_led_for SECONDS: the leader has renewed its Lease since then
    local acquired renewed
    read -r acquired renewed < <(kubectl get lease fleetjob-controller -n "$system" \
        -o jsonpath='{.spec.acquireTime} {.spec.renewTime}{"\n"}') || return
    [ $(($(date -d "$renewed" +%s) - $(date -d "$acquired" +%s))) -ge "$1" ]
}

@test "it installs in a namespace of the restricted standard" {
    chart install
    kubectl rollout status -n "$system" deployment/fleetjob-controller --timeout="${LIMIT}s"
}

refused_beside_it() { # refused_beside_it WORDS SETTING…: a second release is, with these words
    local words=$1 setting settings=()
    shift
    for setting in "$@"; do
        settings+=(--set "$setting")
    done
    run helm install second "$repository/charts/fleetjob" -n "$namespace" --set crd.install=false "${settings[@]}"
    echo "$output"
    [ "$status" != 0 ] && [[ $output == *"release $system/fleetjob manages the FleetJobs in $words already"* ]]
}

@test "a second release for the same jobs is refused" {
    refused_beside_it 'all namespaces'
}

@test "a job runs to its end" {
    job first 20
    becomes first Succeeded
    kubectl delete fj first -n "$namespace"
}

@test "a job in another image runs there, with the agent brought by an init container" {
    kubectl apply -n "$namespace" -f - <<'END'
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: own}
spec:
  worker:
    replicas: 2
    template:
      spec:
        containers:
          - name: trainer
            image: fleet.local/busybox:1
            imagePullPolicy: IfNotPresent
            command: [/bin/busybox, sh, -c, 'echo rank $RANK of $WORLD_SIZE']
END
    becomes own Succeeded
    # The hub knows of the end before the kubelet has told that the containers ran.
    kubectl wait -n "$namespace" pods -l fleetjob.dev/job-name=own \
        --for=jsonpath='{.status.phase}'=Succeeded --timeout="${LIMIT}s"
    run kubectl logs -n "$namespace" -l fleetjob.dev/job-name=own --tail=-1
    echo "$output"
    [[ $output == *"rank 0 of 2"* && $output == *"rank 1 of 2"* ]]
    kubectl delete fj own -n "$namespace"
}

upgrade_beside_it() {
    job second 10000000 || return
    becomes second Running || return
    before=$(as_it_is second)
    chart upgrade podAnnotations.changed="yes$RANDOM$RANDOM" replicas=2 || return
    becomes second Running && nothing_noticed second "$before"
}

@test "an upgrade leaves a running job alone" {
    none_missed second upgrade_beside_it
}

@test "when the leader is killed, the other replica takes over and the job does not notice" {
    before=$(uids second)
    eventually "$LIMIT" one_of_them_leads
    killed=$(leader)
    kubectl delete pod "$killed" -n "$system" --grace-period=0 --force
    eventually "$LIMIT" somebody_leads_but "$killed"
    becomes second Running
    [ "$(uids second)" = "$before" ]
    kubectl delete fj second -n "$namespace"
}

@test "the controller was refused nothing" {
    refused_nothing
}

@test "a list of namespaces needs no rights of the cluster" {
    chart upgrade "namespaces={$namespace}"
    run ! kubectl get clusterrole fleetjob-controller
    # The controller from before lost its rights while it was leaving; from here on there is only
    # the new one.
    eventually "$LIMIT" only_one_controller
    audit_from_here
    refused_beside_it "namespace $namespace" "namespaces={default,$namespace}"
    refused_beside_it "namespace $namespace"
    job third 20
    becomes third Succeeded
    kubectl delete fj third -n "$namespace"
    refused_nothing
}

@test "a user's roles have FleetJobs" {
    kubectl create serviceaccount user -n "$namespace"
    kubectl create rolebinding user -n "$namespace" --clusterrole=edit --serviceaccount="$namespace:user"
    # Roles are put together by a controller of Kubernetes.
    eventually "$LIMIT" kubectl auth can-i create fleetjobs -n "$namespace" --as="system:serviceaccount:$namespace:user"
    run ! kubectl auth can-i create fleetjobs -n default --as="system:serviceaccount:$namespace:user"
}

@test "after a job is deleted, nothing of it is left" {
    eventually "$LIMIT" nothing_left_in "$namespace" pods,secrets,services,fleetjobs
}

@test "Service, EndpointSlice and identity come back when they are deleted" {
    before=$(what_jobs_rest_on)
    kubectl delete endpointslice fleetjob-hub-leader -n "$system"
    eventually "$LIMIT" leader_is_in_the_slice
    kubectl delete service fleetjob-hub -n "$system"
    eventually "$LIMIT" it_rests_on "$before"
    eventually "$LIMIT" leader_is_in_the_slice
    kubectl delete secret fleetjob-identity -n "$system"
    eventually "$LIMIT" it_rests_on "$before"
    kubectl patch service fleetjob-hub -n "$system" -p '{"spec":{"selector":{"app":"other"}}}'
    eventually "$LIMIT" service_has_no_selector
    job repaired 20
    becomes repaired Succeeded
    kubectl delete fj repaired -n "$namespace"
}

service_has_no_selector() {
    is_empty kubectl get service fleetjob-hub -n "$system" -o jsonpath='{.spec.selector}'
}

reinstall_beside_them() {
    local before own rests step
    job fourth 10000000 && own_trainer fifth || return
    becomes fourth Running && becomes fifth Running || return
    before=$(as_it_is fourth)
    own=$(as_it_is fifth)
    rests=$(what_jobs_rest_on)
    helm uninstall fleetjob -n "$system" --wait || return
    # or the last one writes a newer step than this
    eventually "$LIMIT" controllers_are_gone || return
    step=$(field fourth progress.step)
    chart install && it_rests_on "$rests" || return
    eventually "$LIMIT" field_at_least fourth progress.step $((${step:-0} + 1)) || return
    becomes fourth Running || return
    eventually "$LIMIT" have_met_again fifth || return
    # A new hub calls no member lost in its first 10 s. After twice that time it would have.
    eventually "$LIMIT" has_led_for 20 || return
    becomes fifth Running || return
    nothing_noticed fourth "$before" && nothing_noticed fifth "$own"
}

@test "jobs train on through uninstall and reinstall, and meet the new controller" {
    none_missed 'fourth fifth' reinstall_beside_them
    kubectl delete fj fourth fifth -n "$namespace"
    eventually "$LIMIT" nothing_left_in "$namespace" pods,secrets,services,fleetjobs
}

@test "uninstalled, it leaves the CRD, the hub's Service and the identity" {
    helm uninstall fleetjob -n "$system" --wait
    eventually "$LIMIT" controllers_are_gone # the last one would make them again
    kubectl get crd fleetjobs.fleetjob.dev
    kubectl delete service/fleetjob-hub secret/fleetjob-identity -n "$system"
    eventually "$LIMIT" nothing_left_in "$system" \
        all,endpointslices,leases,secrets,configmaps,roles,rolebindings
    names=$(kubectl get clusterroles,clusterrolebindings -o name)
    run ! grep fleetjob <<<"$names"
}
