#!/usr/bin/env bats
# A job for each setting of the strategy that changes what workers hold or exchange. Method: they
# train side by side; of those whose weights kills do not change, the test deletes a pod on the way.
# Each ends with the weights of `fleetjob run` of the same file.

load lib

exact=(sharding parameters cells grid shards hybrid lamb fp16 norms) # a lost worker changes no bit
lossy=(localsgd adaptive dgc) # a lost worker takes something along: they are left alone
declare -gA strategies=(
    [sharding]='sharding: true, gradient_merge: true, gradient_merge_configs: {k_steps: 2}'
    [parameters]='sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.5}'
    [cells]='sharding: true, sharding_configs: {stage: 3, fuse_broadcast_MB: 0.2}, hybrid_configs: {sharding_degree: 2, mp_degree: 2}'
    [grid]='pipeline: true, hybrid_configs: {dp_degree: 2, pp_degree: 2, mp_degree: 2}'
    [shards]='sharding: true, pipeline: true, sharding_configs: {stage: 2}, hybrid_configs: {sharding_degree: 2, pp_degree: 2, mp_degree: 2}'
    [norms]='sync_batch_norm: true'
    [hybrid]='sharding: true, sharding_configs: {hybrid_dp: true, sharding_group_size: 2}, recompute: true'
    [lamb]='sharding: true, lamb: true'
    [fp16]='fp16_allreduce: true'
    [localsgd]='localsgd: true, localsgd_configs: {k_steps: 3}'
    [adaptive]='adaptive_localsgd: true, adaptive_localsgd_configs: {init_k_steps: 4}'
    [dgc]='dgc: true, dgc_configs: {rampup_begin_step: 3, sparsity: [0.9]}'
)
declare -gA workers=([hybrid]=4 [cells]=4 [grid]=4 [shards]=4)
declare -gA processes=([grid]=2 [shards]=2) # eight ranks
declare -gA optimizers=(
    [lamb]='adam, learningRate: 1.0e-3'
    [localsgd]='momentum, learningRate: 0.02'
    [adaptive]='momentum, learningRate: 0.02'
    [dgc]='momentum, learningRate: 0.02'
)

setup_file() {
    start_installation
    make_images
}

# 40 images of noise for the one knob that needs them: on this machine and, in a ConfigMap, under
# the same path in its pods.
make_images() {
    mkdir "$BATS_FILE_TMPDIR/images"
    python3 - "$BATS_FILE_TMPDIR/images/data_batch_1.bin" <<'END'
import random, sys
noise = random.Random(1)
with open(sys.argv[1], "wb") as out:
    for i in range(40):
        out.write(bytes([i % 10]) + bytes(noise.randrange(256) for _ in range(3072)))
END
    kubectl create configmap knob-images --from-file="$BATS_FILE_TMPDIR/images"
}

teardown_file() {
    kubectl delete configmap knob-images --ignore-not-found
}

# Where a job differs from the others.
template() { # template KNOB
    [ "$1" != norms ] || echo ", template: {spec: {containers: [{name: trainer, volumeMounts: \
[{name: images, mountPath: $BATS_FILE_TMPDIR/images}]}], \
volumes: [{name: images, configMap: {name: knob-images}}]}}"
}

model() { # model KNOB
    if [ "$1" = norms ]; then
        echo '{name: resnet, preset: resnet18, baseWidth: 4}'
    else
        echo '{name: gpt, layers: 2, heads: 2, width: 128, context: 128}'
    fi
}

data() { # data KNOB
    if [ "$1" = norms ]; then
        echo "{path: $BATS_FILE_TMPDIR/images, tokenizer: cifar10}"
    else
        echo '{tokenizer: synthetic-markov, symbols: 64}'
    fi
}

knob_file() { # knob_file KNOB [TIMES]: with so many times the usual steps
    cat <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: knob-$1}
spec:
  worker: {replicas: ${workers[$1]:-2}, processesPerPod: ${processes[$1]:-1}$(template "$1")}
  strategy: {${strategies[$1]}}
  training:
    model: $(model "$1")
    data: $(data "$1")
    optimizer: {name: ${optimizers[$1]:-adamw, learningRate: 1.0e-3}}
    globalBatchSize: 8
    microBatchSize: 2
    steps: $((STEPS * ${2:-1}))
END
}

# The weights of `fleetjob run` of the job of a knob.
knob_weights() { # knob_weights KNOB [TIMES]
    local file=$BATS_FILE_TMPDIR/knob-$1
    knob_file "$@" >"$file.yaml"
    "$repository/build/bin/fleetjob" run "$file.yaml" --json >"$file.log" || { cat "$file.log";
        return 1; }
    grep -oE '"weightsSha256":"[0-9a-f]{64}"' "$file.log" | tail -n 1 | cut -d'"' -f4
}

delete_a_pod() { # delete_a_pod KNOB: once the job trains
    eventually "$LIMIT" field_at_least "knob-$1" progress.step 1
    kubectl delete pod --wait=false "$(pods_of "knob-$1" | tail -n 1 | cut -d' ' -f1)"
}

has_the_weights() { # has_the_weights KNOB [TIMES]
    local weights
    weights=$(knob_weights "$@")
    [ -n "$weights" ]
    becomes "knob-$1" Succeeded $((3 * LIMIT))
    field_is "knob-$1" result.steps "$((STEPS * ${2:-1}))"
    field_is "knob-$1" result.weightsSha256 "$weights"
}

# A deleted pod was missed, unless the job was over before; then a longer one is tried.
misses_a_pod() { # misses_a_pod KNOB
    local times
    for ((times = 2; times <= 32; times *= 2)); do
        ! field_at_least "knob-$1" rendezvous.generation 2 >/dev/null 2>&1 || return 0
        remove_job "knob-$1"
        eventually "$LIMIT" nothing_left_of "knob-$1"
        knob_file "$1" "$times" | kubectl apply -f -
        delete_a_pod "$1"
        has_the_weights "$1" "$times"
    done
    field_at_least "knob-$1" rendezvous.generation 2
}

@test "a job for each setting, and pods deleted on the way: the weights of fleetjob run" {
    local knob
    for knob in "${exact[@]}"; do
        knob_file "$knob" | kubectl apply -f -
        delete_a_pod "$knob"
    done
    for knob in "${lossy[@]}"; do
        knob_file "$knob" | kubectl apply -f -
    done
    for knob in "${exact[@]}" "${lossy[@]}"; do
        has_the_weights "$knob"
    done
    for knob in "${exact[@]}"; do
        misses_a_pod "$knob"
    done
    for knob in "${exact[@]}" "${lossy[@]}"; do
        remove_job "knob-$knob"
    done
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
