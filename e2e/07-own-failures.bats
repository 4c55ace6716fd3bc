#!/usr/bin/env bats
# Jobs with trainers of their own: shell scripts whose ranks end as they like. Method: what the API
# server says of the job and its pods.

load lib

setup_file() {
    start_installation
    "$BATS_TEST_DIRNAME/cluster/image.sh" "$BATS_FILE_TMPDIR/busybox.tar" fleet.local/busybox:1 /bin/busybox
    "$cluster" load "$BATS_FILE_TMPDIR/busybox.tar"
}

own_job() { # own_job NAME SCRIPT [REPLICAS] [POLICY] [WORKER]
    kubectl apply -n "$namespace" -f - <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker:
    replicas: ${3:-2}
    ${5:-}
    template:
      spec:
        containers:
          - name: trainer
            image: fleet.local/busybox:1
            imagePullPolicy: IfNotPresent
            command: [/bin/busybox, sh, -c, '$2']
  runPolicy: {${4:-restart: {maxRestarts: 1\}}}
END
}

fails_after_restarts() { # fails_after_restarts JOB COUNT
    becomes "$1" Failed
    [ "$(kubectl get fj "$1" -n "$namespace" -o jsonpath='{.status.conditions[?(@.type=="Failed")].reason}')" = RestartsExceeded ]
    field_is "$1" restarts.count "$2"
    kubectl delete fj "$1" -n "$namespace"
}

@test "a rank that fails after the other has finished fails the job, whichever it is" {
    own_job last 'if [ $RANK = 0 ]; then /bin/busybox sleep 1; else /bin/busybox sleep 6; exit 5; fi'
    own_job first 'if [ $RANK = 1 ]; then /bin/busybox sleep 1; else /bin/busybox sleep 6; exit 5; fi'
    fails_after_restarts last 1
    fails_after_restarts first 1
}

@test "the pod of a rank that has not finished is deleted: the job runs again and succeeds" {
    # only the first pod of worker 1 stays, in each generation that it is in
    own_job deleted '[ $FLEET_INDEX$FLEET_ATTEMPT != 10 ] || exec /bin/busybox sleep 100000; echo it ends'
    becomes deleted Running
    eventually "$LIMIT" log_has deleted-worker-0-0 'it ends'
    kubectl delete pod -n "$namespace" \
        -l fleetjob.dev/job-name=deleted,fleetjob.dev/worker-index=1 --wait=false
    becomes deleted Succeeded
    field_at_least deleted rendezvous.generation 2
    field_at_least deleted attempts.1 1
    [ "$(kubectl get fj deleted -n "$namespace" -o jsonpath='{.status.conditions[?(@.type=="Succeeded")].message}')" = "every worker exited with 0" ]
    kubectl delete fj deleted -n "$namespace"
}

says_when() { # says_when JOB: the wait for the next restart can be read
    [[ "$(field "$1" waiting)" == "restart "*" s, after worker 0 exited with code 3 (until "* ]]
}

@test "restarts back off, say when the next one comes, and end in Failed" {
    own_job storm 'exit 3' 1 'restart: {maxRestarts: 4}'
    own_job slower 'exit 3' 1 'restart: {maxRestarts: 1000}' # its waits grow until they are seen
    eventually "$LIMIT" says_when slower
    kubectl delete fj slower -n "$namespace"
    fails_after_restarts storm 4
}

events_say() { # events_say JOB WORDS: an Event is written after the status
    kubectl get events -n "$namespace" --field-selector "involvedObject.name=$1" \
        -o jsonpath='{.items[*].message}' | grep -F "$2"
}

# tail keeps all of a line that does not end. The kernel may kill it alone, or the container with
# the agent in it: then the hub misses a worker, unless the kubelet has reported the pod before.
names_the_limit() {
    kubectl apply -n "$namespace" -f - <<'END'
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: memory}
spec:
  worker:
    replicas: 1
    template:
      spec:
        containers:
          - name: trainer
            image: fleet.local/busybox:1
            imagePullPolicy: IfNotPresent
            command: [/bin/busybox, sh, -c, '/bin/busybox sleep 3; exec /bin/busybox tail /dev/zero']
            resources: {limits: {memory: 64Mi}}
  runPolicy: {restart: {maxRestarts: 1}}
END
    becomes memory Failed || return
    kubectl get fj memory -n "$namespace"
    kubectl describe fj memory -n "$namespace" | sed -n '/^Status/,$p'
    unless_missed memory eventually 60 field_is memory 'restarts.history[*].cause' OOMKilled ||
        return
    condition_says memory Failed RestartsExceeded || return
    [[ "$(field memory 'restarts.history[0].message')" == *"memory limit of 64Mi (67108864 bytes)"* ]] ||
        return
    unless_missed memory condition_says memory Failed '64Mi (67108864 bytes)' || return
    eventually "$LIMIT" events_say memory '64Mi (67108864 bytes)'
}

@test "a worker that runs out of memory: condition, event and history name the limit" {
    none_missed memory names_the_limit
    kubectl delete fj memory -n "$namespace"
}

@test "a missing command and a final exit code fail the job without a restart" {
    own_job missing '/no/such/command' 1
    own_job final 'exit 9' 1 'failurePolicy: {rules: [{name: bad, action: Fail, exitCodes: [9]}]}'
    becomes missing Failed
    becomes final Failed
    field_is missing restarts.count 0
    field_is final restarts.count 0
    kubectl get fj final -n "$namespace" | tee /dev/stderr | grep -q 'Failed  *FailurePolicy'
    [ "$(kubectl get fj final -n "$namespace" -o jsonpath='{.status.conditions[?(@.type=="Failed")].reason}')" = FailurePolicy ]
    run kubectl get events -n "$namespace" --field-selector involvedObject.name=final \
        -o jsonpath='{.items[*].reason}'
    echo "$output"
    [[ $output != *Restarted* ]]
    kubectl delete fj missing final -n "$namespace"
}

@test "ignored failures are counted apart, for ever" {
    own_job ignored 'exit 7' 1 'restart: {maxRestarts: 0}, failurePolicy: {rules: [{action: Ignore, exitCodes: [7]}]}'
    eventually "$LIMIT" field_at_least ignored restarts.ignored 3
    [[ "$(field ignored restarts.count)" =~ ^0?$ ]]
    kubectl delete fj ignored -n "$namespace"
}

drain_costs_one() {
    own_job drained '/bin/busybox sleep 100000' 3 \
        'restart: {maxRestarts: 0}, elastic: {timeoutSeconds: 86400, waitForReplacementSeconds: 86400}' \
        'minReplicas: 1'
    becomes drained Running || return
    before=$(field drained rendezvous.generation)
    kubectl delete pod -n "$namespace" \
        -l fleetjob.dev/job-name=drained,fleetjob.dev/worker-index=1 --wait=false
    eventually "$LIMIT" has_new_worker drained 1 3 &&
        field_is drained rendezvous.generation $((before + 1)) &&
        [[ "$(field drained restarts.count)" =~ ^0?$ ]]
}

@test "a drained worker costs its job one more generation, a restart that does not count" {
    undisturbed drained drain_costs_one
    kubectl delete fj drained -n "$namespace" --wait=false
}

caused_by() { # caused_by JOB CAUSE: the last restart
    field_is "$1" 'restarts.history[-1:].cause' "$2"
}

eviction_is_called_so() {
    own_job evicted '/bin/busybox sleep 100000' 2 'restart: {maxRestarts: 0}'
    becomes evicted Running || return
    kubectl create --raw "/api/v1/namespaces/$namespace/pods/evicted-worker-1-0/eviction" -f - <<END
{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted-worker-1-0", "namespace": "$namespace"}}
END
    eventually "$LIMIT" caused_by evicted Evicted &&
        eventually "$LIMIT" field_is evicted state Running &&
        [[ "$(field evicted restarts.count)" =~ ^0?$ ]]
}

@test "an evicted worker is called so, and does not count" {
    undisturbed evicted eviction_is_called_so
    kubectl delete fj evicted -n "$namespace" --wait=false
}

says_until_when() { # says_until_when JOB
    [[ "$(field "$1" waiting)" == "waits for the other workers; "*" (until "* ]] &&
        [[ "$(kubectl get fj "$1" -n "$namespace")" == *WAITING*"waits for the other workers"* ]]
}

@test "a start with fewer workers says what it waits for, and until when" {
    kubectl apply -n "$namespace" -f - <<'END'
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: apart}
spec:
  worker:
    replicas: 3 # on two nodes
    minReplicas: 1
    template:
      spec:
        affinity:
          podAntiAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              - topologyKey: kubernetes.io/hostname
                labelSelector: {matchLabels: {fleetjob.dev/job-name: apart}}
        containers:
          - name: trainer
            image: fleet.local/busybox:1
            imagePullPolicy: IfNotPresent
            command: [/bin/busybox, sleep, "100000"]
  runPolicy: {elastic: {timeoutSeconds: 86400}}
END
    eventually "$LIMIT" says_until_when apart
    kubectl delete fj apart -n "$namespace" --wait=false
}

refused() { # refused JOB
    field_is "$1" state Refused
}

@test "a refused job has had no restarts, and its status follows its spec" {
    # more workers than micro-batches
    job_file refused replicas=9 | kubectl apply -n "$namespace" -f -
    eventually "$LIMIT" refused refused
    field_is refused restarts.count 0
    kubectl delete fj refused -n "$namespace"
}

exit_codes_are() { # exit_codes_are JOB CODES
    local codes
    codes=$(kubectl get pods -n "$namespace" -l "fleetjob.dev/job-name=$1" \
        -o jsonpath='{.items[*].status.containerStatuses[0].state.terminated.exitCode}')
    [ "$codes" = "$2" ] || { printf 'exit codes: %s\n' "$codes"; return 1; }
}

# A controller that sees the deletion ends them. This job goes while there is none: the next one
# has to find out that it is gone, and their agents to believe it.
@test "workers whose job was deleted without them end by themselves" {
    own_job orphan 'exec sleep 100000'
    becomes orphan Running
    kubectl scale deployment fleetjob-controller -n "$system" --replicas=0
    eventually "$LIMIT" controllers_are_gone
    kubectl delete fj orphan -n "$namespace" --cascade=orphan
    [ "$(pods_of orphan | wc -l)" = 2 ]
    kubectl scale deployment fleetjob-controller -n "$system" --replicas=1
    eventually $((3 * LIMIT)) exit_codes_are orphan '1 1' # they believe it after a minute
    kubectl delete pods,secrets -n "$namespace" -l fleetjob.dev/job-name=orphan
}

@test "nothing is left" {
    eventually "$LIMIT" nothing_left
}
