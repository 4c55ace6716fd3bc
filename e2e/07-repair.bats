#!/usr/bin/env bats
# What is refused, and what is deleted by hand: a full quota stops no job that has what it needs and
# no controller, and the objects around a job come back. Method: a namespace with a ResourceQuota,
# kubectl delete, and how often the controllers' containers were started.

load lib
namespace=tenant

setup_file() {
    start_installation 2
    "$BATS_TEST_DIRNAME/cluster/image.sh" "$BATS_FILE_TMPDIR/busybox.tar" fleet.local/busybox:1 /bin/busybox
    "$cluster" load "$BATS_FILE_TMPDIR/busybox.tar"
    kubectl create namespace tenant
    kubectl create quota secrets -n tenant --hard=count/secrets=1
    kubectl wait quota secrets -n tenant --for=jsonpath='{.status.hard}' --timeout="${LIMIT}s"
}

restarts() { # of all controllers together
    kubectl get pods -n "$system" -l app.kubernetes.io/component=controller \
        -o jsonpath='{range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{"\n"}{end}'
}

# A controller that ended by itself would begin again in the same pod. On a busy machine one may
# lose its Lease, and says so.
none_was_restarted() {
    local pod count
    while read -r pod count; do
        [ "${count:-0}" = 0 ] || kubectl logs -n "$system" "$pod" --previous | grep 'Lost the lease' ||
            { echo "$pod has begun again $count times"; return 1; }
    done <<<"$(restarts)"
}

own_job() { # own_job NAME SCRIPT: of 1 to 3 workers
    cat <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker:
    replicas: 1
    minReplicas: 1
    maxReplicas: 3
    template:
      spec:
        containers: [{name: worker, image: "fleet.local/busybox:1", imagePullPolicy: IfNotPresent, command: [/bin/busybox, sh, -c, "$2"]}]
  runPolicy: {restart: {maxRestarts: 1000}}
END
}

is_there() { # is_there KIND NAME
    kubectl get "$1" "$2" -n "$namespace" -o name
}

secret_of() { # secret_of JOB
    kubectl get secrets -n "$namespace" -l "fleetjob.dev/job-name=$1" -o jsonpath='{.items[0].metadata.name}'
}

other_pod() { # other_pod JOB UID: a worker with another UID runs
    kubectl get pods -n "$namespace" -l "fleetjob.dev/job-name=$1" --field-selector status.phase=Running \
        -o jsonpath='{.items[*].metadata.uid}' | tr ' ' '\n' | grep -v "^$2\$" | grep -q .
}

@test "a full quota of Secrets: a new leader, a killed trainer and a deleted pod" {
    start_endless full '' replicas=2
    kubectl delete pod "$(leader)" -n "$system" --wait=false
    kill -KILL "$("$cluster" pids tenant/full-worker-0-0 fleetjob-train | head -n 1)"
    eventually "$LIMIT" field_at_least full restarts.count 1
    kubectl delete pod full-worker-1-0 -n "$namespace" --wait=false
    eventually "$LIMIT" has_new_worker full 1 2
    stops_like_reference full
    none_was_restarted
    remove_job full
    eventually "$LIMIT" nothing_left_of full
}

@test "a full quota of Secrets: a job that has none says so, and starts when there is room" {
    job_file one replicas=1 steps=10000000 | kubectl apply -n "$namespace" -f -
    becomes one Running
    job_file two replicas=1 steps="$SHORT" | kubectl apply -n "$namespace" -f -
    eventually "$LIMIT" refused_with two 'exceeded quota'
    remove_job one
    becomes two Succeeded $((3 * LIMIT))
    none_was_restarted
    remove_job two
    eventually "$LIMIT" nothing_left_of two
}

refused_with() { # refused_with JOB WORDS
    kubectl get fj "$1" -n "$namespace" -o jsonpath='{.status.conditions[?(@.type=="Scheduled")].message}' | grep -F "$2"
}

@test "a full quota of Secrets: an own trainer that fails again and again, scaled" {
    own_job own 'sleep 8; exit 3' | kubectl apply -n "$namespace" -f -
    eventually "$LIMIT" field_at_least own restarts.count 1
    kubectl scale fj/own -n "$namespace" --replicas=3
    eventually "$LIMIT" field_at_least own restarts.count 3
    kubectl delete pod "$(leader)" -n "$system" --wait=false
    eventually "$LIMIT" field_at_least own restarts.count 5
    none_was_restarted
    remove_job own
    eventually "$LIMIT" nothing_left_of own
}

@test "a deleted Service is back at once, a deleted Secret with the next pod" {
    start_endless mended 'hostnames: true' replicas=2
    service=$(kubectl get service mended-workers -n "$namespace" -o jsonpath='{.metadata.uid}')
    kubectl delete service mended-workers -n "$namespace"
    eventually "$LIMIT" is_there service mended-workers
    [ "$(kubectl get service mended-workers -n "$namespace" -o jsonpath='{.metadata.uid}')" != "$service" ]
    name=$(secret_of mended)
    kubectl delete secret "$name" -n "$namespace"
    kubectl delete pod mended-worker-1-0 -n "$namespace" --wait=false
    eventually "$LIMIT" is_there secret "$name"
    eventually "$LIMIT" has_new_worker mended 1 2
    stops_like_reference mended
    remove_job mended
    eventually "$LIMIT" nothing_left_of mended
}

takes_over() { # takes_over JOB: its Service selects the pods of this one
    [ "$(kubectl get service "$1-workers" -n "$namespace" -o jsonpath='{.spec.selector.fleetjob\.dev/job-uid}')" = \
        "$(kubectl get fj "$1" -n "$namespace" -o jsonpath='{.metadata.uid}')" ]
}

@test "a Service that an orphaned job left behind is taken over" {
    start_job heir replicas=1 steps=10000000 worker='hostnames: true'
    kubectl delete fj heir -n "$namespace" --cascade=orphan
    # the quota has room for one
    kubectl delete secrets -n "$namespace" -l fleetjob.dev/job-name=heir
    job_file heir replicas=1 steps="$SHORT" worker='hostnames: true' | kubectl apply -n "$namespace" -f -
    eventually "$LIMIT" takes_over heir
    becomes heir Succeeded $((3 * LIMIT))
    kubectl delete pods -n "$namespace" -l fleetjob.dev/job-name=heir --wait=false
    remove_job heir
    eventually "$LIMIT" nothing_left_of heir
}

refused_field() { # refused_field JOB PATH: as the user wrote it
    kubectl get fj "$1" -n "$namespace" -o jsonpath='{.status.conditions[?(@.type=="Accepted")].message}' |
        grep -F "spec.worker.template.$2: unknown field"
}

@test "a misspelt field of the template is refused with its path, not dropped" {
    own_job misspelt 'exit 0' | sed -e 's/      spec:/      spec:\n        priorityClasName: x/' \
        -e 's/name: worker,/name: worker, resorces: {limits: {cpu: 1}},/' | kubectl apply -n "$namespace" -f -
    eventually "$LIMIT" refused_field misspelt 'spec.containers[0].resorces'
    eventually "$LIMIT" refused_field misspelt spec.priorityClasName
    is_empty pods_of misspelt
    own_job misspelt 'exit 0' | kubectl apply -n "$namespace" -f -
    becomes misspelt Succeeded
    remove_job misspelt
    eventually "$LIMIT" nothing_left_of misspelt
}

@test "no Secret was read" {
    grep -F '"username":"system:serviceaccount:fleetjob-system:fleetjob-controller"' "$(audit_log)" >"$BATS_TEST_TMPDIR/all"
    # the installation's identity is one, so an empty file means that the words are wrong
    grep -E '"verb":"(get|list|watch|patch|update)".*"resource":"secrets"' "$BATS_TEST_TMPDIR/all" >"$BATS_TEST_TMPDIR/read"
    grep -F fleetjob-identity "$BATS_TEST_TMPDIR/read" >/dev/null
    run ! grep -vF fleetjob-identity "$BATS_TEST_TMPDIR/read"
    kubectl delete namespace tenant --wait=false
}
