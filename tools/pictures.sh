#!/usr/bin/env bash
# Make the pictures of the documentation again, from real runs:
#
#   docs/images/gpt-text.svg   docs/examples/gpt-text.yaml with held-out text: a trainer is killed,
#                              all four workers are stopped, two go on
#   docs/images/compare.svg    three learning rates
#
#   tools/pictures.sh [FLEETJOB]     the program, build/bin/fleetjob; takes some minutes
set -euo pipefail
cd "$(dirname "$0")/.."
fleetjob=${1:-build/bin/fleetjob}
program=$(realpath "$fleetjob")
work=$(mktemp -d)
run=''
trap '[ -z "$run" ] || kill -TERM "$run" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir -p docs/images

# The example below $work, with held-out text; further arguments are expressions of sed.
job() { # job NAME [EXPRESSION]…
    local name=$1 edits=()
    shift
    for edit in "$@"; do
        edits+=(-e "$edit")
    done
    sed -e 's/tokenizer: bytes}/tokenizer: bytes, validation: 0.05}/' \
        -e 's/^    globalBatchSize/    evaluation: {everySteps: 25}\n&/' \
        -e "s|path: /tmp/fleetjob/gpt-text, everySteps: 100, keep: 2, resume: never|path: $name, everySteps: 50, keep: 1|" \
        -e '/^    log:/d' "${edits[@]}" docs/examples/gpt-text.yaml >"$work/$name.yaml"
}

# The number after "key" in the state file, 0 if there is none yet.
number() {
    { grep -oE "\"$1\":\[?[0-9]+" "$work/state" 2>/dev/null || true; } | tail -n 1 | grep -oE '[0-9]+$' || echo 0
}

job gpt-text
wait_for_step() { # wait_for_step N
    while kill -0 "$run" 2>/dev/null && [ "$(number step)" -lt "$1" ]; do
        sleep 0.1
    done
}

"$fleetjob" run "$work/gpt-text.yaml" --state-file "$work/state" &
run=$!
wait_for_step 100
kill -KILL "$(number trainerPids)"
wait_for_step 200
kill -TERM "$run" # saves and stops
wait "$run" || [ $? = 130 ]
run=''
"$fleetjob" run "$work/gpt-text.yaml" --workers 2
"$fleetjob" curve "$work/gpt-text" -o docs/images/gpt-text.svg

for rate in 0.01 0.001 0.0001; do
    job "rate-$rate" "s/learningRate: 1.0e-3/learningRate: $rate/" 's/steps: 300/steps: 150/'
    "$fleetjob" run "$work/rate-$rate.yaml"
done
(cd "$work" && "$program" curve rate-0.01 rate-0.001 rate-0.0001 --compare \
    --title 'gpt-text with three learning rates' -o "$OLDPWD/docs/images/compare.svg")
