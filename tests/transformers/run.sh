#!/usr/bin/env bash
# Exports of gpt and llama in Hugging Face's transformers: from_pretrained() takes the folder, the
# loss on a text is ours, the tokenizer makes our tokens, greedy generation writes the same.
#
#   tests/transformers/run.sh [--install]
#
# Uses `python3` (or $FLEETJOB_PYTHON) if it has torch and transformers, else the virtual
# environment that --install makes from PyPI below the cache folder (several gigabytes: torch comes
# with its CUDA libraries). Without either the test is skipped. The last line is "N passed, N
# failed" (", 1 skipped").
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD
environment=${FLEETJOB_CACHE:-$HOME/.cache/fleetjob}/transformers
fleetjob=${FLEET_BIN:-$here/build/bin}/fleetjob
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

has_both() { "$1" -c 'import torch, transformers' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in "${FLEETJOB_PYTHON:-python3}" "$environment/bin/python"; do
        has_both "$candidate" && echo "$candidate" && return
    done
    return 1
}

if ! python=$(find_python); then
    if [ "${1:-}" = --install ]; then
        { python3 -m venv "$environment" && "$environment/bin/pip" install -q torch transformers; } || true
    fi
    python=$(find_python) || {
        echo "tests/transformers/run.sh: skipped, no python3 with torch and transformers; --install gets them from PyPI"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    }
fi

job() { # name, model, more of data
    cat >"$work/$1.yaml" <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker: {replicas: 1}
  training:
    model: {$2}
    data: {path: $here/tests/golden/torch/jobs/text.txt$3}
    optimizer: {name: adamw, learningRate: 0.003}
    globalBatchSize: 8
    microBatchSize: 4
    steps: 60
    checkpoint: {path: checkpoints-$1}
END
    "$fleetjob" run "$work/$1.yaml" >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; exit 1; }
    "$fleetjob" export "$work/checkpoints-$1" "$work/$1"
}

bpe=", tokenizer: bpe, vocabulary: $here/tests/golden/bpe/vocab.json, merges: $here/tests/golden/bpe/merges.txt"
small="layers: 2, heads: 2, width: 32, context: 48"
job gpt "name: gpt, $small" ""
job gpt-untied "name: gpt, $small, hidden: 50, tieEmbeddings: false" "$bpe"
job llama "name: llama, $small, hidden: 40" "$bpe"
job llama-tied "name: llama, $small, tieEmbeddings: true" ""
job llama-grouped "name: llama, layers: 2, heads: 4, kvHeads: 2, width: 32, context: 48" ""
"$python" tests/transformers/compare.py "$fleetjob" "$here/README.md" \
    "$work"/{gpt,gpt-untied,llama,llama-tied,llama-grouped}
