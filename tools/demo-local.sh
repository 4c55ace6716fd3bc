#!/usr/bin/env bash
# The demo on one machine: train the example on four worker processes, kill one of them a third of
# the way, and say what happened.
#
#   tools/demo-local.sh [--data PATH]      another text to learn
#
# All that it starts ends with it; Ctrl-C stops it cleanly.
set -euo pipefail
cd "$(dirname "$0")/.."

# What it leaves is kept a user apart: on a machine of several, the folder of the job is the first
# one's.
results=${TMPDIR:-/tmp}/fleetjob-$(id -u)
options=(--checkpoint "$results/gpt-text" --curve "$results/gpt-text.svg")
if [ "${1:-}" = --data ]; then
    options+=(--data "$2")
fi
job=docs/examples/gpt-text.yaml
fleetjob=build/bin/fleetjob
steps=300
state=$(mktemp -d)/state.json

# A signal stops the run as one Ctrl-C, whichever process got it: a second would make the run
# forget its checkpoint. So the run has a session of its own, which the terminal's Ctrl-C does
# not reach. We send it SIGTERM, because a shell starts its background processes with SIGINT
# ignored.
run=''
stopped=''
stop() {
    stopped=yes
    [ -z "$run" ] || kill -TERM "$run" 2>/dev/null || true
}
trap stop INT TERM HUP
trap 'rm -rf "$(dirname "$state")"' EXIT

mkdir -p "$results"
echo "\$ fleetjob run $job ${options[*]}"
setsid "$fleetjob" run "$job" "${options[@]}" --state-file "$state" &
run=$!
[ -z "$stopped" ] || stop

# The number after "key" in the state file, 0 if there is none yet.
number() {
    { grep -oE "\"$1\":[0-9]+" "$state" 2>/dev/null || true; } | head -n 1 | grep -oE '[0-9]+$' ||
        echo 0
}

# Ctrl-C ends the program that the script waits for, too.
step=0
while kill -0 "$run" 2>/dev/null && [ -z "$stopped" ] && [ "${step:-0}" -lt $((steps / 3)) ]; do
    sleep 0.1 || true
    step=$(number step) || true
done
if [ -z "$stopped" ] && kill -0 "$run" 2>/dev/null; then
    victim=$({ grep -oE '"trainerPids":\[[0-9]+' "$state" || true; } | tail -n 1 | grep -oE '[0-9]+$') || true
    if [ -n "$victim" ]; then
        printf '\n\ndemo: kill -KILL %s, the trainer of the last worker\n' "$victim"
        kill -KILL "$victim" 2>/dev/null || true
    fi
fi

# A signal ends wait before the run has ended.
until
    code=0
    wait "$run" || code=$?
    ! kill -0 "$run" 2>/dev/null
do :; done
exit "$code"
