#!/usr/bin/env bats
# The chart on a real API server: install, jobs in namespaces that enforce the restricted pod security
# standard, upgrade under a running job, take-over, uninstall. Method: the real Helm; what the controller
# was refused is looked up in the audit log.

bats_require_minimum_version 1.5.0

setup_file() {
    export REPOSITORY="$BATS_TEST_DIRNAME/.." CLUSTER="$BATS_TEST_DIRNAME/cluster/cluster"
    export IMAGES="${FLEETJOB_IMAGES:-$REPOSITORY/build/images}"
    if "$CLUSTER" status >/dev/null 2>&1; then
        eval "$("$CLUSTER" env)"
        if kubectl get crd fleetjobs.fleetjob.dev >/dev/null 2>&1; then
            echo "FleetJob is in use on the cluster; these scenarios install it themselves"
            return 1
        fi
        touch "$BATS_FILE_TMPDIR/lent"
    else
        "$CLUSTER" up 2
        touch "$BATS_FILE_TMPDIR/ours"
        eval "$("$CLUSTER" env)"
    fi
    "$BATS_TEST_DIRNAME/cluster/image.sh" "$BATS_FILE_TMPDIR/busybox.tar" fleet.local/busybox:1 /bin/busybox
    "$CLUSTER" load "$IMAGES"/fleetjob-{controller,runtime}.tar "$BATS_FILE_TMPDIR/busybox.tar"
    audit_from_here
    for namespace in fleetjob-system chart-jobs; do
        kubectl create namespace "$namespace"
        kubectl label namespace "$namespace" pod-security.kubernetes.io/enforce=restricted
    done
}

setup() {
    eval "$("$CLUSTER" env)"
}

teardown_file() {
    eval "$("$CLUSTER" env)"
    if [ -e "$BATS_FILE_TMPDIR/ours" ]; then
        "$CLUSTER" down
    elif [ -e "$BATS_FILE_TMPDIR/lent" ]; then
        kubectl delete fleetjobs --all -n chart-jobs --timeout=30s || true
        helm uninstall fleetjob -n fleetjob-system --wait || true
        kubectl delete crd fleetjobs.fleetjob.dev --timeout=30s || true
        kubectl delete namespace fleetjob-system chart-jobs --timeout=60s || true
    fi
}

chart() { # chart install|upgrade SETTING…
    local verb=$1 setting settings=()
    shift
    for setting in "$@"; do
        settings+=(--set "$setting")
    done
    helm "$verb" fleetjob "$REPOSITORY/charts/fleetjob" -n fleetjob-system --wait --timeout 180s "${settings[@]}"
}

job() { # job NAME STEPS
    kubectl apply -n chart-jobs -f - <<END
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

becomes() { # becomes JOB CONDITION [SECONDS]
    kubectl wait -n chart-jobs "fj/$1" --for="condition=$2" --timeout="${3:-180}s" ||
        { kubectl describe fj,pods -n chart-jobs; kubectl logs -n fleetjob-system -l app.kubernetes.io/component=controller --tail=50; return 1; } >&2
}

leader() {
    kubectl get lease fleetjob-controller -n fleetjob-system -o jsonpath='{.spec.holderIdentity}' | cut -d_ -f1
}

uids() { # uids JOB: of its pods
    kubectl get pods -n chart-jobs -l "fleetjob.dev/job-name=$1" -o jsonpath='{.items[*].metadata.uid}'
}

audit_log() {
    printf '%s/log/audit.log\n' "$(dirname "$(dirname "$KUBECONFIG")")"
}

audit_from_here() {
    wc -l <"$(audit_log)" >"$BATS_FILE_TMPDIR/audited"
}

# eventually COMMAND…: poll until it holds, for three minutes; its last output is shown if it does not.
eventually() {
    local deadline=$((SECONDS + 180))
    until "$@" >"$BATS_TEST_TMPDIR/eventually" 2>&1; do
        if [ $SECONDS -ge "$deadline" ]; then
            printf 'it did not come to: %s\n' "$*"
            cat "$BATS_TEST_TMPDIR/eventually"
            return 1
        fi
        sleep 0.5
    done
}

somebody_leads_but() { # somebody_leads_but POD
    local now
    now=$(leader)
    [ -n "$now" ] && [ "$now" != "$1" ]
}

only_one_controller() {
    [ "$(kubectl get pods -n fleetjob-system -l app.kubernetes.io/component=controller -o name | wc -l)" = 1 ]
}

nothing_left_in() { # nothing_left_in NAMESPACE KINDS
    local left
    left=$(kubectl get "$2" -n "$1" -o name) || return
    ! grep -v kube-root-ca.crt <<<"$left" | grep .
}

# It belongs to the Service that is there now, not to one that was deleted.
identity_is_of_this_installation() {
    local service
    service=$(kubectl get service fleetjob-hub -n fleetjob-system -o jsonpath='{.metadata.uid}')
    [ -n "$service" ] &&
        [ "$(kubectl get secret fleetjob-identity -n fleetjob-system -o jsonpath='{.metadata.ownerReferences[0].uid}')" = "$service" ]
}

# What the controller asked for since audit_from_here and its roles did not allow, a line each. Another kind of 403 is that of
# an API server which does not know the owner's kind yet, seconds after the CRD was made; the controller asks again.
refused() {
    tail -n "+$(($(cat "$BATS_FILE_TMPDIR/audited") + 1))" "$(audit_log)" |
        grep -F 'system:serviceaccount:fleetjob-system:fleetjob-controller' |
        grep -F '"authorization.k8s.io/decision":"forbid"' || true
}

@test "it installs in a namespace of the restricted standard" {
    run chart install
    [ "$status" = 0 ]
    [[ $output != *arning* ]]
    kubectl rollout status -n fleetjob-system deployment/fleetjob-controller --timeout=180s
}

@test "a job runs to its end" {
    job first 20
    becomes first Succeeded
    kubectl delete fj first -n chart-jobs
}

@test "a job in another image runs there, with the agent brought by an init container" {
    kubectl apply -n chart-jobs -f - <<'END'
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: foreign}
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
    becomes foreign Succeeded
    # The hub knows of the end before the kubelet has told that the containers ran.
    kubectl wait -n chart-jobs pods -l fleetjob.dev/job-name=foreign --for=jsonpath='{.status.phase}'=Succeeded --timeout=180s
    run kubectl logs -n chart-jobs -l fleetjob.dev/job-name=foreign --tail=-1
    echo "$output"
    [[ $output == *"rank 0 of 2"* && $output == *"rank 1 of 2"* ]]
    kubectl delete fj foreign -n chart-jobs
}

@test "an upgrade leaves a running job alone" {
    job second 1000000
    becomes second Running
    before=$(uids second)
    run chart upgrade podAnnotations.changed=yes replicas=2
    [ "$status" = 0 ]
    becomes second Running
    [ "$(uids second)" = "$before" ]
    [ "$(kubectl get fj second -n chart-jobs -o jsonpath='{.status.restarts.count}')" = "" ] ||
        [ "$(kubectl get fj second -n chart-jobs -o jsonpath='{.status.restarts.count}')" = 0 ]
}

@test "when the leader is killed, the other replica takes over and the job does not notice" {
    before=$(uids second)
    killed=$(leader)
    kubectl delete pod "$killed" -n fleetjob-system --grace-period=0 --force
    eventually somebody_leads_but "$killed"
    becomes second Running
    [ "$(uids second)" = "$before" ]
    kubectl delete fj second -n chart-jobs
}

@test "the controller was refused nothing" {
    run refused
    echo "$output"
    [ "$output" = "" ]
}

@test "a list of namespaces needs no rights of the cluster" {
    run chart upgrade 'namespaces={chart-jobs}'
    [ "$status" = 0 ]
    run ! kubectl get clusterrole fleetjob-controller
    # The controller from before lost its rights while it was leaving; from here on there is only the new one.
    eventually only_one_controller
    audit_from_here
    job third 20
    becomes third Succeeded
    kubectl delete fj third -n chart-jobs
    run refused
    echo "$output"
    [ "$output" = "" ]
}

@test "a user's roles have FleetJobs" {
    kubectl create serviceaccount user -n chart-jobs
    kubectl create rolebinding user -n chart-jobs --clusterrole=edit --serviceaccount=chart-jobs:user
    # Roles are put together by a controller of Kubernetes.
    eventually kubectl auth can-i create fleetjobs -n chart-jobs --as=system:serviceaccount:chart-jobs:user
    run ! kubectl auth can-i create fleetjobs -n default --as=system:serviceaccount:chart-jobs:user
}

@test "after a job is deleted, nothing of it is left" {
    eventually nothing_left_in chart-jobs pods,secrets,services,fleetjobs
}

@test "reinstalled at once, it has an identity of its own; uninstalled, it leaves the CRD alone" {
    helm uninstall fleetjob -n fleetjob-system
    run chart install
    [ "$status" = 0 ]
    eventually identity_is_of_this_installation
    helm uninstall fleetjob -n fleetjob-system --wait
    kubectl get crd fleetjobs.fleetjob.dev
    eventually nothing_left_in fleetjob-system all,endpointslices,leases,secrets,configmaps,roles,rolebindings
    [ -z "$(kubectl get clusterroles,clusterrolebindings -o name | grep fleetjob)" ]
}
