#!/usr/bin/env bats
# A job's life as a user drives it by kubectl: refused, seen, deleted, made again under the same
# name, cleaned up by itself. Method: what the API server and the controller say, and what is left.

bats_require_minimum_version 1.5.0
load lib

setup_file() {
    start_installation
    start_image # it reports after half a minute what it waits for
}

# A job that waits for its workers is Stalled after this time, and Pending before.
stays_pending='elastic: {timeoutSeconds: 86400}'

# A registry that refuses at once: what names are looked up in, and for how long, is the machine's
# affair.
start_image() {
    job_file image replicas=1 worker='image: "127.0.0.1:1/nowhere:1"' policy="$stays_pending" |
        kubectl apply -f -
}

# ---- refused -------------------------------------------------------------------------------------

# refused_at_apply WORDS [sed expression]…: the small job, changed, is refused with these words
refused_at_apply() {
    local words=$1 change=()
    shift
    for expression in "$@"; do
        change+=(-e "$expression")
    done
    run bash -c 'kubectl apply --dry-run=server -f - 2>&1' <<<"$(job_file bad | sed "${change[@]}")"
    echo "$output"
    [ "$status" != 0 ] && [[ $output == *"$words"* ]]
}

@test "the schema refuses: types, ranges, enums, what is missing, names that are too long" {
    refused_at_apply 'spec.worker.replicas' 's/replicas: 4/replicas: -1/'
    refused_at_apply 'spec.worker.replicas' 's/replicas: 4/replicas: four/'
    refused_at_apply 'spec.training.optimizer.learningRate' 's/learningRate: 1.0e-3/learningRate: 0/'
    refused_at_apply 'Unsupported value: "adamwx"' 's/adamw/adamwx/'
    refused_at_apply 'spec.training.steps: Required value' '/steps:/d'
    refused_at_apply 'spec.training.globalBatchSize' 's/globalBatchSize: 8/globalBatchSize: 7/'
    refused_at_apply 'minReplicas' 's/replicas: 4/replicas: 4, minReplicas: 5/'
    refused_at_apply 'name' 's/name: bad/name: a123456789-123456789-123456789-123456789-123456789-123456789/'
    refused_at_apply 'exactly one of' "s/replicas: 4/replicas: 4, volumes: [{name: x, mountPath: \/x, claim: a, configMap: b}]/"
    refused_at_apply 'unknown field "spec.training.globalBatchSise"' 's/globalBatchSize/globalBatchSise/'
}

@test "what is trained cannot change once the job has started" {
    job_file fixed steps=20 replicas=1 | kubectl apply -f -
    becomes fixed Succeeded
    run kubectl patch fj fixed --type merge -p '{"spec": {"training": {"steps": 30}, "strategy": {"amp": true}}}'
    echo "$output"
    [ "$status" != 0 ]
    [[ $output == *"spec.training cannot change while the job runs"*"spec.strategy cannot change"* ]]
    run kubectl patch fj fixed --type merge -p '{"spec": {"training": {"model": {"width": 256}}}}'
    echo "$output"
    [ "$status" != 0 ]
    [[ $output == *spec.training.model* ]]
    remove_job fixed
}

shows() { # shows JOB PATTERN: what kubectl get prints of it
    kubectl get fj "$1" | tee /dev/stderr | grep -qi "$2"
}

not_accepted() { # not_accepted JOB WORDS…: Accepted=False with all of the words, and no pod
    local message words
    kubectl wait "fj/$1" --for=condition=Accepted=False --timeout="${LIMIT}s"
    message=$(kubectl get fj "$1" -o jsonpath='{.status.conditions[?(@.type=="Accepted")].message}')
    echo "$message"
    for words in "${@:2}"; do
        [[ $message == *"$words"* ]] || { echo "expected: $words"; return 1; }
    done
    is_empty pods_of "$1"
}

@test "the controller refuses a misspelt knob with what was meant, and all errors at once" {
    job_file knob strategy='gradient_merg: true, amp_configs: {init_los_scaling: 2}' | kubectl apply -f -
    not_accepted knob 'spec.strategy.gradient_merg' 'did you mean "gradient_merge"?' \
        'spec.strategy.amp_configs.init_los_scaling' 'did you mean "init_loss_scaling"?'
    eventually "$LIMIT" shows knob 'knob  *Refused  *InvalidSpec  *0'
    echo "corrected, it runs"
    job_file knob steps=20 | kubectl apply -f -
    becomes knob Succeeded
    remove_job knob
}

# A job that no grid of ranks can run: [LINE] is another one of the spec.
bad_grid() { # bad_grid NAME REPLICAS STRATEGY [LINE]
    { job_file "grid-$1" replicas="$2" strategy="$3" && printf '  %s\n' "${4:-}"; } \
        >"$BATS_TEST_TMPDIR/$1.yaml"
    kubectl apply -f "$BATS_TEST_TMPDIR/$1.yaml"
}

# With the words of `fleetjob validate`, WORDS among them.
is_refused_as_here() { # is_refused_as_here NAME WORDS
    local words
    ! words=$(build/bin/fleetjob validate "$BATS_TEST_TMPDIR/$1.yaml" 2>&1)
    [[ $words == *"$2"* ]] || { printf 'expected: %s\nactual: %s\n' "$2" "$words"; return 1; }
    not_accepted "grid-$1" "$words"
    remove_job "grid-$1"
}

@test "a grid that does not fit is refused with the nearest numbers that do, before a pod exists" {
    bad_grid layers 3 'pipeline: true, hybrid_configs: {pp_degree: 3}'
    bad_grid heads 4 'hybrid_configs: {mp_degree: 4}'
    bad_grid batches 8 'pipeline: true, hybrid_configs: {pp_degree: 2}'
    bad_grid chunks 2 'pipeline: true, hybrid_configs: {pp_degree: 2}' \
        'strategyOptions: {pipelineChunks: 2}'
    bad_grid product 4 'pipeline: true, hybrid_configs: {pp_degree: 2, mp_degree: 2, dp_degree: 2}'
    bad_grid world 3 'pipeline: true, hybrid_configs: {pp_degree: 2}'
    is_refused_as_here layers '2 workers with pp_degree 2'
    is_refused_as_here heads 'nearest possible: mp_degree 2'
    is_refused_as_here batches 'nearest possible: 4 workers, or globalBatchSize 16'
    is_refused_as_here chunks 'pipelineChunks 1'
    is_refused_as_here product 'nearest possible: 8 workers'
    is_refused_as_here world 'nearest possible: 2 or 4 workers'
}

@test "pods that cannot be made or placed: the job says why" {
    job_file class replicas=1 worker='template: {spec: {priorityClassName: nowhere, containers: [{name: worker}]}}' | kubectl apply -f -
    eventually "$LIMIT" condition_says class Scheduled CreateRefused 'no PriorityClass with name nowhere'
    job_file room replicas=1 worker='resources: {requests: {cpu: 1000}}' policy="$stays_pending" |
        kubectl apply -f -
    eventually "$LIMIT" condition_says room Scheduled 'nodes are available'
    eventually "$LIMIT" shows room 'Pending  *Unschedulable'
    eventually "$LIMIT" describes room Warning 'Worker 0 finds no node' 'nodes are available'
    remove_job class
    remove_job room
}

@test "a pod template that the API server refuses is refused with its words" {
    kubectl apply -f - <<'END'
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: template}
spec:
  worker:
    replicas: 2
    template:
      spec:
        containers:
          - name: trainer
            image: fleet.local/fleetjob-runtime:0.1.0
            command: [x]
            volumeMounts: [{name: nowhere, mountPath: /x}]
END
    not_accepted template nowhere
    remove_job template
}

# ---- seen ----------------------------------------------------------------------------------------

@test "kubectl get, describe and logs answer; no DNS is there or needed" {
    is_empty kubectl get services -n kube-system -o name
    job_file seen steps="$SHORT" | kubectl apply -f -
    ends_like_reference seen "$SHORT"
    eventually "$LIMIT" lists \
        "^NAME +STATE +REASON +WORKERS +STEP +LOSS +RESTARTS +AGE +WAITING *
seen +Succeeded +[0-9] +$SHORT/$SHORT +[0-9]\.[0-9]{1,5} +[0-9] +[0-9]+" seen
    eventually "$LIMIT" lists 'HELD-OUT +TOKENS/S +GOODPUT +GENERATION' seen -o wide
    eventually "$LIMIT" describes seen Accepted 'all steps are done' Events: 'Training on 4 workers'
    eventually "$LIMIT" log_has seen-worker-0-0 'Connected to the hub'
    kubectl explain fleetjob.spec.training.microBatchSize | grep 'through the model at a time'
    eventually "$LIMIT" field_is seen workers.succeeded 4
    # the image was loaded by hand: its name has no digest
    eventually "$LIMIT" names_its_image seen
    remove_job seen
}

lists() { # lists EXPRESSION ARGUMENT…: kubectl get fj prints what matches it
    local text
    text=$(kubectl get fj "${@:2}" 2>/dev/null)
    [[ $text =~ $1 ]] || { printf 'expected: %s\nactual: %s\n' "$1" "$text"; return 1; }
}

names_its_image() { # names_its_image JOB
    [[ "$(field "$1" imageID)" == *sha256:* ]]
}

@test "the loss on held-out data is in the status, and a column of -o wide" {
    { job_file held steps=40 replicas=1 | sed 's/symbols: 64}/symbols: 64, validation: 0.1}/' &&
        printf '    evaluation: {everySteps: 20, batches: 2}\n'; } | kubectl apply -f -
    becomes held Succeeded
    eventually "$LIMIT" field_is held progress.heldOutStep 40
    [[ "$(field held progress.heldOutLoss)" =~ ^[0-9]+\.[0-9]+$ ]]
    kubectl get fj held -o wide | tee /dev/stderr | grep -F "$(field held progress.heldOutLoss | cut -c1-5)"
    remove_job held
}

@test "an image that does not come: the job says why" {
    start_image
    eventually "$LIMIT" condition_says image Running 'pod image-worker-0-0 waits' Image
    eventually "$LIMIT" shows image 'Pending  *ImagePullBackOff'
    eventually "$LIMIT" describes image Warning ImagePullBackOff 'Worker 0 cannot start'
    remove_job image
}

@test "what only the events of a pod know: a missing ConfigMap, until it is there" {
    job_file mounts steps=20 replicas=1 policy="$stays_pending" \
        worker='volumes: [{name: more, mountPath: /more, configMap: nowhere}]' | kubectl apply -f -
    eventually "$LIMIT" shows mounts 'Pending  *MissingConfigMap'
    eventually "$LIMIT" describes mounts Warning MissingConfigMap 'Worker 0 cannot start: FailedMount' \
        'configmap "nowhere" not found'
    eventually "$LIMIT" condition_says mounts Blocked MissingConfigMap nowhere
    kubectl create configmap nowhere --from-literal=a=b
    becomes mounts Succeeded $((3 * LIMIT)) # the kubelet asks again after two minutes at most
    [ "$(kubectl get fj mounts -o 'jsonpath={.status.conditions[?(@.type=="Blocked")].status}')" = False ]
    field_is mounts reason ''
    kubectl delete configmap nowhere
    remove_job mounts
}

pods_are_refused() { # an API server that has just got the quota may not know it yet
    kubectl run probe --image=none --restart=Never --dry-run=server 2>&1 | grep -F 'exceeded quota'
}

@test "a quota that is used up has a word" {
    kubectl create quota none --hard=count/pods=0
    eventually "$LIMIT" pods_are_refused
    job_file quota replicas=1 policy="$stays_pending" | kubectl apply -f -
    eventually "$LIMIT" shows quota 'Pending  *QuotaExceeded'
    kubectl delete quota none
    remove_job quota
}

# Two megabytes hold no checkpoint of this job. The deadline is set when all steps are done: a pod
# may take longer to start than any.
@test "a checkpoint that cannot be written is reported, and without the last one the job has failed" {
    job_file full steps=60 replicas=1 checkpoint='path: /checkpoints, everySteps: 20' \
        worker='volumes: [{name: checkpoints, mountPath: /checkpoints, emptyDir: {medium: Memory, sizeLimit: 2Mi}}]' |
        kubectl apply -f -
    eventually "$LIMIT" condition_says full CheckpointFailed 'No space left on device' 'there is no checkpoint yet'
    eventually "$LIMIT" describes full 'Warning' 'CheckpointFailed' 'failed and is tried again'
    eventually "$LIMIT" field_is full progress.step 60
    kubectl patch fj full --type merge -p '{"spec": {"runPolicy": {"progressDeadlineSeconds": 5}}}'
    becomes full Failed
    condition_says full Failed CheckpointFailed
    remove_job full
}

@test "every example and every job of the documentation is accepted by the API server" {
    for example in docs/examples/*.yaml; do
        kubectl apply --dry-run=server -f "$example"
    done
    python3 e2e/documented.py >"$BATS_TEST_TMPDIR/documented.json"
    kubectl create --dry-run=server -f "$BATS_TEST_TMPDIR/documented.json" -o name >"$BATS_TEST_TMPDIR/accepted"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/accepted")" -gt 100 ]
}

# ---- the end -------------------------------------------------------------------------------------

@test "deleted while it trains: nothing is left" {
    start_job gone
    kubectl delete fj gone
    eventually "$LIMIT" nothing_left_of gone
}

make_it_again() {
    start_job again || return
    first=$(pods_of again)
    kubectl delete fj again --wait=false || return
    job_file again steps="$SHORT" >"$BATS_TEST_TMPDIR/again.yaml"
    eventually "$LIMIT" kubectl create -f "$BATS_TEST_TMPDIR/again.yaml" || return
    ends_like_reference again "$SHORT" || return
    unless_missed again field_is again restarts.count 0 || return
    eventually "$LIMIT" none_is_left_of again "$first"
}

@test "deleted and made again at once under the same name: a job of its own" {
    none_missed again make_it_again
    remove_job again
}

none_is_left_of() { # none_is_left_of JOB PODS: that a former job of the name had
    local pod uid now
    now=$(pods_of "$1")
    [ -n "$now" ] || return
    while read -r pod uid; do
        [[ $now != *"$uid"* ]] || { echo "$pod of the first job is still there"; return 1; }
    done <<<"$2"
}

@test "a finished job goes by itself after its time" {
    job_file short steps=20 replicas=1 policy='ttlSecondsAfterFinished: 1' | kubectl apply -f -
    eventually "$LIMIT" nothing_left_of short
}

@test "a namespace that is deleted takes its jobs with it" {
    kubectl create namespace doomed
    eventually "$LIMIT" kubectl get serviceaccount default -n doomed
    job_file inside | kubectl apply -n doomed -f -
    kubectl wait -n doomed fj/inside --for=condition=Running --timeout="${LIMIT}s"
    kubectl delete namespace doomed --timeout="${LIMIT}s"
    run kubectl get namespace doomed
    [ "$status" != 0 ]
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
