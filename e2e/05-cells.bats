#!/usr/bin/env bats
# Jobs whose ranks share a model, at numbers of workers that are no multiple of a replica, and jobs
# that an autoscaler resizes. Method: kubectl scale and a HorizontalPodAutoscaler while they train;
# what status and events say; no step is lost, and the weights are those of `fleetjob run`.

load lib

stages='pipeline: true, hybrid_configs: {pp_degree: 2}' # a replica is two workers

setup_file() {
    start_installation
}

# What is not valid changes nothing: so many train on, and REASON has the word.
refuses() { # refuses JOB MEMBERS PODS WORDS…
    condition_says "$1" Accepted InvalidSpec "${@:4}" && trains_with "${@:1:3}" &&
        field_is "$1" reason InvalidSpec
}

scale_with_spares() {
    start_endless cells 'minReplicas: 1, maxReplicas: 5' replicas=4 strategy="$stages" || return
    eventually "$LIMIT" trains_with cells 4 4 || return
    kubectl scale fj cells --replicas=5 || return
    eventually "$LIMIT" trains_with cells 4 5 || return
    eventually "$LIMIT" field_is cells workers.spares 1 || return
    eventually "$LIMIT" condition_says cells Accepted Valid \
        'of 5 workers 4 train and 1 wait as spares: 2 ranks share a model' || return
    eventually "$LIMIT" condition_says cells Running '4 workers train' || return
    eventually "$LIMIT" field_is cells reason '' || return
    eventually "$LIMIT" describes cells SpecWarning 'of 5 workers 4 train and 1 wait as spares' ||
        return
    echo "the spare takes the seat of a lost worker"
    kubectl delete pod cells-worker-3-0 --wait=false || return
    eventually "$LIMIT" log_has cells-worker-4-0 'Joined a generation' || return
    eventually "$LIMIT" trains_with cells 4 5 || return
    kubectl scale fj cells --replicas=3 || return
    eventually "$LIMIT" trains_with cells 2 3 || return
    eventually "$LIMIT" condition_says cells Accepted 'of 3 workers 2 train and 1 wait as spares' ||
        return
    echo "one worker is no replica"
    kubectl scale fj cells --replicas=1 || return
    eventually "$LIMIT" refuses cells 2 3 'pp_degree 2 does not divide 1 worker; nearest possible: 2 workers' ||
        return
    kubectl scale fj cells --replicas=4 || return
    eventually "$LIMIT" trains_with cells 4 4 || return
    run kubectl scale fj cells --replicas=6
    echo "$output"
    [ "$status" != 0 ] && [[ $output == *'replicas must not be above maxReplicas'* ]] || return
    stops_like_reference cells || return
    unless_missed cells field_is cells restarts.count 0 || return
    [[ "$(field cells 'restarts.history[*].lostSteps')" =~ ^(0( 0)*)?$ ]]
}

@test "scaled to numbers that are no multiple of a replica: spares are counted, and used first" {
    none_missed cells scale_with_spares
    remove_job cells
}

# The checkpoint of two stages is read by two ranks that share each tensor, here and in `fleetjob
# run`.
change_degrees() {
    local step
    start_endless degrees '' replicas=2 strategy="$stages" || return
    kubectl scale fj degrees --replicas=3 || return
    eventually "$LIMIT" refuses degrees 2 2 'pp_degree 2 does not divide 3 workers; nearest possible: 2 or 4 workers' ||
        return
    kubectl scale fj degrees --replicas=2 || return
    stops_like_reference degrees || return
    step=$(field degrees checkpoint.step)
    rm -rf "$BATS_TEST_TMPDIR/checkpoints"
    cp -r "$(volumes)/degrees" "$BATS_TEST_TMPDIR/checkpoints" || return
    of_other_degrees $((step + 20)) "$(volumes)/degrees" | kubectl apply -f - || return
    becomes degrees Succeeded || return
    field_is degrees result.steps $((step + 20)) || return
    field_is degrees 'rendezvous.lineage[-1:].firstStep' $((step + 1)) || return
    unless_missed degrees field_is degrees restarts.count 0 || return
    field_is degrees result.weightsSha256 "$(weights_of_other_degrees $((step + 20)))"
}

@test "other degrees go on from a checkpoint; a job of fixed size refuses what fits no grid" {
    none_missed degrees change_degrees
    remove_job degrees
}

# The job as it goes on, with checkpoints at PATH that are in FOLDER of a node.
of_other_degrees() { # of_other_degrees STEPS FOLDER [PATH]
    job_file degrees replicas=4 steps="$1" strategy='hybrid_configs: {mp_degree: 2}' \
        policy='suspend: false' checkpoint="path: ${3:-/checkpoints}, everySteps: 1000000" \
        worker="volumes: [{name: checkpoints, mountPath: /checkpoints, hostPath: $2}]"
}

weights_of_other_degrees() { # weights_of_other_degrees STEPS: of `fleetjob run` from the copy
    local folder=$BATS_TEST_TMPDIR
    of_other_degrees "$1" / "$folder/checkpoints" >"$folder/degrees.yaml"
    "$repository/build/bin/fleetjob" run "$folder/degrees.yaml" --json >"$folder/log" ||
        { cat "$folder/log"; return 1; }
    grep -oE '"weightsSha256":"[0-9a-f]{64}"' "$folder/log" | tail -n 1 | cut -d'"' -f4
}

# ---- an autoscaler -------------------------------------------------------------------------------

autoscaler() { # autoscaler MIN MAX: of the job `autoscaled`, a worker for each node
    cat <<YAML
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: autoscaled}
spec:
  scaleTargetRef: {apiVersion: fleetjob.dev/v1alpha1, kind: FleetJob, name: autoscaled}
  minReplicas: $1
  maxReplicas: $2
  metrics:
    - type: External
      external: {metric: {name: nodes}, target: {type: AverageValue, averageValue: "1"}}
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
YAML
}

autoscaler_says() { # autoscaler_says CONDITION REASON
    local text
    text=$(kubectl get hpa autoscaled -o jsonpath="{.status.conditions[?(@.type==\"$1\")].reason}")
    [ "$text" = "$2" ] || { echo "$1: $text"; kubectl describe hpa autoscaled; return 1; }
}

autoscaler_sees() { # autoscaler_sees REPLICAS
    [ "$(kubectl get hpa autoscaled -o 'jsonpath={.status.currentReplicas}')" = "$1" ]
}

# The API server asks a server on this machine for the metrics: a Service of the type ExternalName
# names it.
start_metrics() { # start_metrics VALUE: a file
    local folder=$BATS_FILE_TMPDIR port
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=metrics \
        -keyout "$folder/metrics.key" -out "$folder/metrics.crt" 2>/dev/null
    rm -f "$folder/port"
    mkfifo "$folder/port"
    python3 e2e/metrics_api.py "$folder/metrics.crt" "$folder/metrics.key" "$1" \
        >"$folder/port" 2>"$folder/metrics.log" 3>&- &
    echo $! >"$folder/metrics.pid"
    read -r port <"$folder/port"
    kubectl apply -f - <<YAML
apiVersion: v1
kind: Service
metadata: {name: metrics, namespace: default}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: default, name: metrics, port: $port}
YAML
    kubectl wait apiservice/v1beta1.external.metrics.k8s.io --for=condition=Available \
        --timeout="${LIMIT}s"
}

# An API that is listed and does not answer keeps namespaces from being deleted.
stop_metrics() {
    kubectl delete apiservice v1beta1.external.metrics.k8s.io --ignore-not-found
    kubectl delete service metrics --ignore-not-found
    [ ! -e "$BATS_FILE_TMPDIR/metrics.pid" ] || kill "$(cat "$BATS_FILE_TMPDIR/metrics.pid")" || true
}

teardown_file() {
    stop_metrics
    stop_installation
}

autoscale() {
    start_endless autoscaled 'minReplicas: 2, maxReplicas: 4' replicas=2 strategy="$stages" ||
        return
    autoscaler 3 4 | kubectl apply -f - || return
    eventually "$LIMIT" trains_with autoscaled 2 3 || return
    eventually "$LIMIT" autoscaler_says ScalingActive FailedGetExternalMetric || return
    eventually "$LIMIT" autoscaler_says AbleToScale SucceededGetScale || return
    eventually "$LIMIT" autoscaler_sees 3 || return
    echo 4 >"$BATS_TEST_TMPDIR/nodes"
    start_metrics "$BATS_TEST_TMPDIR/nodes" || return
    eventually "$LIMIT" trains_with autoscaled 4 4 || return
    eventually "$LIMIT" autoscaler_says ScalingActive ValidMetricFound || return
    echo 2 >"$BATS_TEST_TMPDIR/nodes"
    autoscaler 2 4 | kubectl apply -f - || return
    eventually "$LIMIT" trains_with autoscaled 2 2 || return
    echo "more than the job allows"
    autoscaler 5 5 | kubectl apply -f - || return
    eventually "$LIMIT" autoscaler_says AbleToScale FailedUpdateScale || return
    trains_with autoscaled 2 2 || return
    kubectl delete hpa autoscaled || return
    stop_metrics || return
    unless_missed autoscaled field_is autoscaled restarts.count 0 || return
    [[ "$(field autoscaled 'restarts.history[*].lostSteps')" =~ ^(0( 0)*)?$ ]]
}

@test "a HorizontalPodAutoscaler keeps a job between its bounds, and follows a metric" {
    none_missed autoscaled autoscale
    remove_job autoscaled
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
