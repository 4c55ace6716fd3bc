#!/usr/bin/env bash
# Each line of the log has its keys: in the controller the job, in agent and trainer rank and
# generation. Prints the calls that could write another line.
#
# Code that knows a job (controller/fleetjob) has one way to the log, reconciler_job_trouble(). It
# takes the job. Agent and trainer have a context (fleet_log_set_context()) that each line gets.
# What the controller logs without a job is about itself and is listed here.
set -euo pipefail
cd "$(dirname "$0")/.."

# Messages of the controller that are about no single job. `what` is that of on_trouble() in
# controller/main.c, which installation, leadership, /metrics and start use; and the errors that end
# the process.
own='
"Read the certificate of /metrics"
"Renewed the hub'"'"'s certificate"
"Lost the lease"
"Ending"
"Leading"
"Could not start"
what
'
# Files that print before the log is set up, or as the process ends.
printers='
controller/command_line.c
agent/main.c
agent/runtime/main.c
libfleet/base/assert.c
'
bad=0

# (1) Only programs log; their libraries return errors. The log of samples and the progress of data
# that comes from a store belong to the trainer.
if git grep -nE '\bfleet_log_(error|warning|info|debug|write)\(' -- libfleet controller/fleetjob \
    controller/machinery agent/runtime distributed \
    ':!libfleet/base/log.[ch]' ':!agent/runtime/main.c' ':!agent/runtime/step/sample_log.c' \
    ':!agent/runtime/store/store_log.c'; then
    echo "^ this code returns errors, or calls reconciler_job_trouble()"
    bad=1
fi

# (2) There is no other way to standard error.
others=$(git grep -nE '\bf(printf|puts|write)\([^;]*stderr|\bperror\(|\bv?dprintf\(2|\bwrite\((2|STDERR_FILENO)' \
    -- libfleet controller agent ':!agent/entrypoint' ':!libfleet/base/log.c' |
    grep -vE '^[^:]*:[0-9]+: *(/?\*|.*/\*.*write\(2)' || true)
while read -r file; do
    [ -n "$file" ] && others=$(grep -v "^$file:" <<<"$others" || true)
done <<<"$printers"
if [ -n "$others" ]; then
    echo "$others"
    echo "^ a line without the keys of the log: use fleet_log_…()"
    bad=1
fi

# (3) A call in the controller has the job, or its message is the controller's own.
while IFS=$'\t' read -r place call; do
    message=$(sed -E 's/^fleet_log_[a-z]+\( *("([^"\\]|\\.)*"|[a-z_]+).*/\1/' <<<"$call")
    [[ $call == *'FLEET_STR("job"'* ]] && continue
    grep -qxF "$message" <<<"$own" && continue
    echo "$place: $call"
    echo "^ add the job, or name the message in tools/check-logs.sh"
    bad=1
done < <(git ls-files 'controller/*.c' | while read -r file; do
    awk -v file="$file" '
        /fleet_log_(error|warning|info|debug)\(/ { at = NR; call = "" }
        at { sub(/^ +/, ""); call = call (call == "" ? "" : " ") $0 }
        at && /;/ { print file ":" at "\t" call; at = 0 }' "$file"
done)
exit $bad
