#!/usr/bin/env bats
# Jobs whose strategy a search finds, and jobs with MindSpore's strategy files. Method: status.plan
# and an event name what was chosen; kubectl scale while a job trains; the weights are those of
# `fleetjob run` of the same file.

load lib

setup_file() {
    start_installation
}

# Two micro-batches: more than two ranks must share tensors.
auto_file() { # auto_file NAME REPLICAS STEPS CONTEXT FOLDER [PATH] [LINES]: PATH in pods is FOLDER
    cat <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker:
    replicas: $2
    volumes: [{name: shared, mountPath: ${6:-/shared}, hostPath: $5}]
  autoParallel: {gradients_mean: true, $4}
  ${7:-}
  training:
    model: {name: gpt, layers: 2, heads: 2, width: 128, context: 128}
    data: {tokenizer: synthetic-markov, symbols: 64}
    optimizer: {name: adamw, learningRate: 1.0e-3}
    globalBatchSize: 8
    microBatchSize: 4
    steps: $3
    checkpoint: {path: ${6:-/shared}/checkpoints, everySteps: 1000000}
END
}

# A file like it on this machine: the weights after so many steps.
weights_here() { # weights_here auto_file's arguments
    local folder=$BATS_TEST_TMPDIR/here
    mkdir -p "$folder"
    auto_file "$1" "$2" "$3" "$4" "$folder" "$folder" "${7:-}" | grep -v 'volumes:' >"$folder/job.yaml"
    "$repository/build/bin/fleetjob" run "$folder/job.yaml" --json >"$folder/log" 2>&1 || {
        cat "$folder/log"; return 1; }
    grep -oE '"weightsSha256":"[0-9a-f]{64}"' "$folder/log" | tail -n 1 | cut -d'"' -f4
}

resize() { # resize JOB REPLICAS
    kubectl scale fj "$1" --replicas="$2"
}

resize_what_was_searched() {
    local folder step first
    rm -rf "$BATS_TEST_TMPDIR/here" # of a scenario that is played again
    folder=$(volume_folder searched)
    auto_file searched 2 1000000 'parallel_mode: auto_parallel' "$folder" |
        sed 's/replicas: 2/&\n    minReplicas: 1\n    maxReplicas: 4/' | kubectl apply -f - ||
            return
    eventually "$LIMIT" describes searched StrategyChosen 'recursive_programming for 2 ranks: data 2' ||
        return
    eventually "$LIMIT" describes searched 'predicted: ' 'ms an update' 'a rank' || return
    eventually "$LIMIT" field_is searched plan.search.mode recursive_programming || return
    eventually "$LIMIT" field_is searched 'plan.search.ahead[*].workers' '1 2 4' || return
    eventually "$LIMIT" field_at_least searched progress.step 1 || return
    echo "four workers share two micro-batches, so two share each tensor"
    resize searched 4 || return
    eventually "$LIMIT" describes searched StrategyChosen 'for 4 ranks: data 2, model 2' || return
    eventually "$LIMIT" trains_with searched 4 4 || return
    # that of the two workers: the four save nothing before the next resize
    eventually "$LIMIT" field_at_least searched checkpoint.step 1 || return
    first=$(field searched checkpoint.step)
    eventually "$LIMIT" field_at_least searched progress.step $((first + 1)) || return
    eventually "$LIMIT" field_is searched plan.search.running.model 2 || return
    echo "two of them fit two workers"
    resize searched 2 || return
    eventually "$LIMIT" trains_with searched 2 2 || return
    eventually "$LIMIT" field_is searched plan.search.running.workers 2 || return
    field_is searched plan.search.running.model 2 || return
    kubectl patch fj searched --type merge -p '{"spec": {"runPolicy": {"suspend": true}}}' || return
    becomes searched Suspended || return
    unless_missed searched field_is searched restarts.count 0 || return
    step=$(($(field searched checkpoint.step) + 10))
    kubectl patch fj searched --type merge \
        -p "{\"spec\": {\"runPolicy\": {\"suspend\": false}, \"training\": {\"steps\": $step}}}" ||
            return
    becomes searched Succeeded || return
    field_is searched result.steps "$step" || return
    weights_here searched 2 "$first" 'parallel_mode: auto_parallel' here >/dev/null || return
    field_is searched result.weightsSha256 \
        "$(weights_here searched 4 "$step" 'parallel_mode: auto_parallel' here)"
}

@test "a search finds the strategy; a resize keeps it if it fits, and else changes it" {
    none_missed searched resize_what_was_searched
    remove_job searched
}

full='parallel_mode: auto_parallel, search: full, full_batch: true'

@test "search: full trains to the weights of fleetjob run; a key without effect is a condition" {
    local folder
    folder=$(volume_folder full)
    auto_file full 2 20 "$full" "$folder" | kubectl apply -f -
    becomes full Succeeded
    eventually "$LIMIT" describes full StrategyChosen 'full for 2 ranks: data ' 'predicted: '
    field_is full plan.search.mode full
    condition_says full KeyIgnored NoEffect 'spec.autoParallel.full_batch: has no effect'
    field_is full result.weightsSha256 "$(weights_here full 2 20 "$full" here)"
    remove_job full
}

graph='parallel_mode: semi_auto_parallel'
tensors='strategy: {hybrid_configs: {mp_degree: 2}}'

@test "a strategy file is written in one job and read in another; a file for other degrees is refused" {
    local folder
    folder=$(volume_folder files)
    auto_file writes 2 20 "$graph, strategy_ckpt_save_file: /shared/strategy.json" "$folder" \
        /shared "$tensors" | kubectl apply -f -
    becomes writes Succeeded
    field_is writes result.weightsSha256 "$(weights_here writes 2 20 "$graph" here here "$tensors")"
    rm -r "$folder/checkpoints"
    auto_file reads 2 20 "$graph, strategy_ckpt_load_file: /shared/strategy.json" "$folder" \
        /shared "$tensors" | kubectl apply -f -
    becomes reads Succeeded
    field_is reads result.weightsSha256 "$(field writes result.weightsSha256)"
    rm -r "$folder/checkpoints"
    auto_file differs 2 20 "$graph, strategy_ckpt_load_file: /shared/strategy.json" "$folder" |
        kubectl apply -f -
    becomes differs Failed
    condition_says differs Failed strategy.json
    remove_job writes
    remove_job reads
    remove_job differs
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
