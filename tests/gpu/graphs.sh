#!/usr/bin/env bash
# Two workers on one GPU by NCCL: tokens a second and the digest of the weights with communication
# in CUDA graphs, with graphs of kernels alone, and without graphs.
#
#   FLEET_NCCL_LIBRARY=FILE tests/gpu/graphs.sh PACKAGE [WORKERS]
#
# PACKAGE is a folder that `make gpu-package` made. It takes half a minute.
set -euo pipefail
cd "$(dirname "$0")/../.."
package=$(cd "${1:?a package}" && pwd)
workers=${2:-2}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
ln -s "$package/lib/libwebsockets-evlib_uv.so" "$place/"
cat >"$place/job.yaml" <<JOB
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: graphs}
spec:
  worker: {replicas: 1}
  training:
    model: {name: gpt, layers: 4, heads: 4, width: 256, context: 128}
    optimizer: {name: adamw, learningRate: 0.001, clip: {globalNorm: 1}}
    globalBatchSize: 16
    microBatchSize: 8
    steps: 200
    precision: bf16
    data: {path: $PWD/tests/golden/torch/jobs/text.txt}
JOB
for setting in communication kernels 0; do
    echo "== $setting"
    env -C "$place" "LD_LIBRARY_PATH=$package/lib" FLEET_BACKEND=cuda \
        "FLEET_CUDA_LIBRARY=${FLEET_CUDA_LIBRARY:-$package/bin/libfleet_cuda.so}" \
        NCCL_MULTI_RANK_GPU_ENABLE=1 FLEET_CUDA_GRAPH=$setting \
        timeout 60 "$package/bin/fleetjob" run --workers "$workers" job.yaml 2>&1 |
        grep -aE "tok/s|  time|restarts|weights|warn|rror" | tail -n 12
done
