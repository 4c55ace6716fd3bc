#!/usr/bin/env bash
# The demo on one machine: train the example on four worker processes, kill one of them a third of
# the way, and say what happened.
#
#   tools/demo-local.sh [--data PATH]      another text to learn
#
# Whatever it starts ends with it; Ctrl-C stops it cleanly.
set -euo pipefail
cd "$(dirname "$0")/.."

# What it leaves is kept a user apart: on a machine of several, the folder of the job is the first one's.
results=${TMPDIR:-/tmp}/fleetjob-$(id -u)
options=(--checkpoint "$results/gpt-text" --curve "$results/gpt-text.svg")
if [ "${1:-}" = --data ]; then
    options+=(--data "$2")
fi
job=docs/examples/gpt-text.yaml
fleetjob=build/bin/fleetjob
steps=300
state=$(mktemp -d)/state.json

mkdir -p "$results"
echo "\$ fleetjob run $job ${options[*]}"
"$fleetjob" run "$job" "${options[@]}" --state-file "$state" &
run=$!
trap 'kill -INT "$run" 2>/dev/null || true' INT TERM
trap 'rm -rf "$(dirname "$state")"' EXIT

# The number after "key" in the state file, 0 if there is none yet.
number() {
    { grep -oE "\"$1\":[0-9]+" "$state" 2>/dev/null || true; } | head -n 1 | grep -oE '[0-9]+$' || echo 0
}

while kill -0 "$run" 2>/dev/null && [ "$(number step)" -lt $((steps / 3)) ]; do
    sleep 0.1
done
if kill -0 "$run" 2>/dev/null; then
    victim=$({ grep -oE '"trainerPids":\[[0-9]+' "$state" || true; } | tail -n 1 | grep -oE '[0-9]+$' || true)
    if [ -n "$victim" ]; then
        printf '\n\ndemo: kill -KILL %s, the trainer of the last worker\n' "$victim"
        kill -KILL "$victim" 2>/dev/null || true
    fi
fi

code=0
wait "$run" || code=$?
[ "$code" -gt 128 ] && wait "$run" 2>/dev/null # a signal woke us first: let it finish its stop
exit "$code"
