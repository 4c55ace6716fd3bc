#!/usr/bin/env bats
# A job for each setting of the strategy that changes what workers hold or exchange. Method: all of
# them train side by side; of those whose weights kills do not change, the test deletes a pod on the
# way. Each ends with the weights of `fleetjob run` of the same file.

load lib

exact=(sharding hybrid lamb fp16)   # a lost worker changes no bit
lossy=(localsgd adaptive dgc)       # a lost worker takes something along: they are left alone
declare -gA strategies=(
    [sharding]='sharding: true, gradient_merge: true, gradient_merge_configs: {k_steps: 2}'
    [hybrid]='sharding: true, sharding_configs: {hybrid_dp: true, sharding_group_size: 2}, recompute: true'
    [lamb]='sharding: true, lamb: true'
    [fp16]='fp16_allreduce: true'
    [localsgd]='localsgd: true, localsgd_configs: {k_steps: 3}'
    [adaptive]='adaptive_localsgd: true, adaptive_localsgd_configs: {init_k_steps: 4}'
    [dgc]='dgc: true, dgc_configs: {rampup_begin_step: 3, sparsity: [0.9]}'
)
declare -gA workers=([hybrid]=4)
declare -gA optimizers=(
    [lamb]='adam, learningRate: 1.0e-3'
    [localsgd]='momentum, learningRate: 0.02'
    [adaptive]='momentum, learningRate: 0.02'
    [dgc]='momentum, learningRate: 0.02'
)

setup_file() {
    start_installation
}

knob_file() { # knob_file KNOB
    cat <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: knob-$1}
spec:
  worker: {replicas: ${workers[$1]:-2}}
  strategy: {${strategies[$1]}}
  training:
    model: {name: gpt, layers: 2, heads: 2, width: 128, context: 128}
    data: {tokenizer: synthetic-markov, symbols: 64}
    optimizer: {name: ${optimizers[$1]:-adamw, learningRate: 1.0e-3}}
    globalBatchSize: 8
    microBatchSize: 2
    steps: $STEPS
END
}

# The weights of `fleetjob run` of the job of a knob.
knob_weights() { # knob_weights KNOB
    local file=$BATS_FILE_TMPDIR/knob-$1
    knob_file "$1" >"$file.yaml"
    "$repository/build/bin/fleetjob" run "$file.yaml" --json >"$file.log" || { cat "$file.log";
        return 1; }
    grep -oE '"weightsSha256":"[0-9a-f]{64}"' "$file.log" | tail -n 1 | cut -d'"' -f4
}

@test "a job for each setting, and pods deleted on the way: the weights of fleetjob run" {
    local knob weights
    for knob in "${exact[@]}" "${lossy[@]}"; do
        knob_file "$knob" | kubectl apply -f -
    done
    for knob in "${exact[@]}"; do
        eventually "$LIMIT" field_at_least "knob-$knob" progress.step 1
        kubectl delete pod --wait=false "$(pods_of "knob-$knob" | tail -n 1 | cut -d' ' -f1)"
    done
    for knob in "${exact[@]}" "${lossy[@]}"; do
        weights=$(knob_weights "$knob")
        [ -n "$weights" ]
        becomes "knob-$knob" Succeeded $((3 * LIMIT))
        field_is "knob-$knob" result.steps "$STEPS"
        field_is "knob-$knob" result.weightsSha256 "$weights"
    done
    for knob in "${exact[@]}"; do # the deleted pods were missed
        field_at_least "knob-$knob" rendezvous.generation 2
    done
    for knob in "${exact[@]}" "${lossy[@]}"; do
        remove_job "knob-$knob"
    done
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
