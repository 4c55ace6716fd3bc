#!/usr/bin/env bash
# The scenarios on a real Kubernetes: brings one cluster up (building it first if its cache is
# empty), runs them, takes it down, also after a failure.
#
#   e2e/run.sh [FILE.bats …]     all, or these
#   e2e/run.sh --measure         only measure how many steps the small job needs, for a later run
#                                (job.bash); a load at that time alone would make the job too short
#
# FLEETJOB_REFERENCES: where that and the weights of `fleetjob run` are kept, a folder that goes by
# default.
#
# Needs root, `tests/all.sh programs`, and what e2e/cluster/prerequisites.sh names; skipped, with
# the reason, without root or where the kernel lacks something. The last line is "N passed, N
# failed" (", N skipped" may follow).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cluster=$here/cluster/cluster
work=$(mktemp -d)
beside=()

skip() {
    echo "skipped: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

finish() {
    local code=$?
    trap - EXIT INT TERM
    for pid in "${beside[@]}"; do
        pkill -P "$pid"
        kill "$pid"
    done 2>/dev/null
    [ ! -e "$work/ours" ] || "$cluster" down >/dev/null
    rm -rf "$work"
    exit "$code"
}

# Each file alone, so that what it printed stays together; bats' own lines are counted.
run_file() {
    local file=$1 start=$SECONDS
    echo "-- $(basename "$file" .bats)"
    bats --timing --tap "$file" 2>&1 | grep --line-buffered -vE '^1\.\.[0-9]+$' |
        tee -a "$work/tap" | sed -u 's/^/  /'
    [ "${PIPESTATUS[0]}" = 0 ] || grep -q '^not ok' "$work/tap" || echo "not ok $file ended early" |
        tee -a "$work/tap"
    echo "-- $(basename "$file" .bats): $((SECONDS - start)) s"
}

export FLEETJOB_REFERENCES=${FLEETJOB_REFERENCES:-$work}
# shellcheck disable=SC2034 # of job.bash
repository=$here/.. references=$FLEETJOB_REFERENCES
# shellcheck source=e2e/job.bash
. "$here/job.bash"
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ "${1:-}" = --measure ]; then
    measure_steps
    exit
fi

[ "$(id -u)" = 0 ] || skip "the cluster needs root"
"$cluster" check >"$work/check" 2>&1 || skip "$(cat "$work/check")"
! "$cluster" status >/dev/null 2>&1 ||
    skip "a cluster runs already, perhaps of make demo; make demo-down stops it"
"$cluster" build || exit 1

files=("$@")
if [ ${#files[@]} = 0 ]; then
    files=("$here"/[0-9]*.bats)
    export FLEETJOB_WHOLE=1 # the last one judges what all of them have shown
fi
measure_steps || exit 1
use_steps
echo "the small job has $STEPS steps, the long one $LONG, the short one $SHORT"

# shellcheck source=e2e/traces.bash
. "$here/traces.bash"
export FLEETJOB_TRACES=$work/traces
traces >"$FLEETJOB_TRACES"
touch "$work/tap" "$work/ours"
"$cluster" up 2 || {
    echo "the cluster did not come up; once more from nothing"
    "$cluster" down
    "$cluster" up 2 || exit 1
}

# What runs while the first scenarios wait: the references, and 01, which disturbs nobody.
end_beside() {
    [ ${#beside[@]} -gt 0 ] || return 0
    wait "${beside[0]}" || { cat "$work/references"; exit 1; }
    wait "${beside[@]}"
    cat "$work/01"
    beside=()
}

touch "$work/01"
{ reference "$SHORT" && reference "$STEPS" && reference "$LONG"; } >"$work/references" 2>&1 &
beside=($!)
for file in "${files[@]}"; do
    case $(basename "$file") in
    01-*)
        run_file "$file" >"$work/01" &
        beside+=($!)
        continue
        ;;
    0[02]-*) ;; # they need no reference
    *) end_beside ;;
    esac
    run_file "$file"
done
end_beside
passed=$(grep -c '^ok' "$work/tap")
failed=$(grep -c '^not ok' "$work/tap")
skipped=$(grep -cE '^ok .* # skip' "$work/tap")
passed=$((passed - skipped))
echo "$passed passed, $failed failed$([ "$skipped" = 0 ] || echo ", $skipped skipped")"
[ "$failed" = 0 ]
