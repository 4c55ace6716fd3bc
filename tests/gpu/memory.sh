#!/usr/bin/env bash
# The memory that a plan says, beside what one trainer takes on the GPU:
#
#   tests/gpu/memory.sh FLEETJOB [JOB]
#
# Environment as for `fleetjob run` on a GPU. JOB is a file, by default a gpt of twelve layers. The
# growth is that of `nvidia-smi`, so nothing else may use the GPU: it has CUDA's context, too, and
# kernels. Fails if the job does, or if it takes less than planned: then nothing was measured.
set -euo pipefail
fleetjob=${1:?fleetjob} job=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "$job" ]; then
    job=$work/job.yaml
    cat >"$job" <<JOB
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: memory}
spec:
  worker: {replicas: 1}
  training:
    model: {name: gpt, layers: 12, heads: 12, width: 768, context: 1024}
    data: {path: $PWD/tests/golden/torch/jobs/text.txt, tokenizer: bytes}
    optimizer: {name: adamw, learningRate: 3.0e-4}
    globalBatchSize: 2
    microBatchSize: 2
    steps: 12
    precision: bf16
JOB
fi

used() {
    nvidia-smi --format=csv,noheader,nounits --query-gpu=memory.used -i 0
}

planned=$("$fleetjob" plan "$job" 2>/dev/null | awk '
    $1 == "total" { print $2 * ($3 == "GB" ? 1000 : $3 == "kB" ? 0.001 : 1); exit }')
before=$(used) most=0
"$fleetjob" run --json "$job" >"$work/events" 2>"$work/errors" &
pid=$!
while kill -0 $pid 2>/dev/null; do
    now=$(used)
    if [ "$now" -gt "$most" ]; then most=$now; fi
    sleep 0.1
done
wait $pid || { tail -n 20 "$work/errors" "$work/events"; exit 1; }
grep -E '"step"' "$work/events" | tail -n 3
awk -v planned="$planned" -v before="$before" -v most="$most" 'BEGIN {
    grown = (most - before) * 1.048576
    printf "planned %.1f MB, grown by %.1f MB, ratio %.3f\n", planned, grown, grown / planned
    exit grown < planned
}'
