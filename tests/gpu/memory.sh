#!/usr/bin/env bash
# The memory of a GPU that a plan says, beside what a trainer takes there:
#
#   tests/gpu/memory.sh FLEETJOB
#
# Environment as for `fleetjob run` on a GPU. What nvidia-smi counts has CUDA's context and kernels,
# too, and the plan does not. So a small and a large job run, and their differences are compared.
# Nothing else may use the GPU. Fails if a job does, or if the large one takes more than 1 % less or
# more than planned.
set -euo pipefail
fleetjob=${1:?fleetjob}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

used() {
    nvidia-smi --format=csv,noheader,nounits --query-gpu=memory.used -i 0
}

# measure NAME LAYERS WIDTH: sets planned and grown, in bytes
measure() {
    local job=$work/$1.yaml before most=0 now pid
    cat >"$job" <<JOB
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: memory}
spec:
  worker:
    replicas: 1
    template:
      spec: {containers: [{name: worker, env: [{name: FLEET_BACKEND, value: cuda}]}]}
  training:
    model: {name: gpt, layers: $2, heads: 12, width: $3, context: 1024}
    data: {path: $PWD/tests/golden/torch/jobs/text.txt, tokenizer: bytes}
    optimizer: {name: adamw, learningRate: 3.0e-4}
    globalBatchSize: 2
    microBatchSize: 2
    steps: 12
    precision: bf16
JOB
    planned=$("$fleetjob" plan --output json "$job" |
        python3 -c 'import json, sys; print(int(json.load(sys.stdin)["gpu"]["bytesPerRank"]["total"]))')
    before=$(used)
    "$fleetjob" run --json "$job" >"$work/events" 2>"$work/errors" &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        now=$(used)
        if [ "$now" -gt "$most" ]; then most=$now; fi
        sleep 0.05
    done
    wait $pid || { tail -n 20 "$work/errors" "$work/events"; exit 1; }
    grown=$(((most - before) * 1048576))
    echo "$1: planned $planned bytes, nvidia-smi grew by $grown"
}

measure small 1 96
small_planned=$planned small_grown=$grown
measure large 12 768
awk -v planned=$((planned - small_planned)) -v grown=$((grown - small_grown)) 'BEGIN {
    ratio = grown / planned
    printf "differences: planned %.1f MB, taken %.1f MB, ratio %.3f\n", planned / 1e6, grown / 1e6,
           ratio
    exit ratio < 0.99 || ratio > 1.01
}'
