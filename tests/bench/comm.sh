#!/usr/bin/env bash
# Collectives beside Gloo's in the same run, on 2, 4 and 8 ranks: `make bench-comm`.
#
#   tests/bench/comm.sh PROGRAM
#
# Gloo comes with PyTorch: `python3` (or $RIVAL_PYTHON) if it has torch, else the virtual
# environment that this makes from PyPI below the cache folder (gigabytes: torch comes with its CUDA
# libraries). Without one, the column of the rival stays empty. Lines that are JSON objects go to
# build/bench-comm.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
environment=${FLEETJOB_CACHE:-$HOME/.cache/fleetjob}/gloo

has_torch() { "$1" -c 'import torch.distributed' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in "${RIVAL_PYTHON:-python3}" "$environment/bin/python"; do
        has_torch "$candidate" && echo "$candidate" && return
    done
    return 1
}

if ! python=$(find_python); then
    { python3 -m venv "$environment" && "$environment/bin/pip" install -q numpy torch; } || true
    python=$(find_python) || echo "no python3 with torch: without the rival"
fi
[ -z "${python:-}" ] || export RIVAL_PYTHON=$python
mkdir -p build
: >build/bench-comm.json
for ranks in 2 4 8; do
    "$1" "$ranks" | tee >(grep '^{' >>build/bench-comm.json || true) | grep -v '^{' || true
done
echo "numbers: build/bench-comm.json"
