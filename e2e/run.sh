#!/usr/bin/env bash
# The scenarios on a real Kubernetes: brings the cluster up (building it first if its cache is empty),
# runs them, takes it down, also after a failure.
#
#   e2e/run.sh [FILE.bats …]     all, or these
#
# Needs root, `make all image`, and what e2e/cluster/prerequisites.sh names; skipped, with the reason, without
# root or where the kernel lacks something. The last line is "N passed, N failed" (", N skipped" may follow).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cluster=$here/cluster/cluster
work=$(mktemp -d)
background=''

skip() {
    echo "skipped: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

finish() {
    local code=$?
    trap - EXIT INT TERM
    [ -z "$background" ] || { pkill -P "$background"; kill "$background"; } 2>/dev/null
    [ ! -e "$work/ours" ] || "$cluster" down >/dev/null
    rm -rf "$work"
    exit "$code"
}

# Each file alone, so that what it printed stays together; bats' own lines are counted.
run_file() {
    local file=$1 start=$SECONDS
    echo "-- $(basename "$file" .bats)"
    bats --timing --tap "$file" 2>&1 | grep --line-buffered -vE '^1\.\.[0-9]+$' | tee -a "$work/tap" | sed -u 's/^/  /'
    [ "${PIPESTATUS[0]}" = 0 ] || grep -q '^not ok' "$work/tap" || echo "not ok $file ended early" | tee -a "$work/tap"
    echo "-- $(basename "$file" .bats): $((SECONDS - start)) s"
}

[ "$(id -u)" = 0 ] || skip "the cluster needs root"
"$cluster" check >"$work/check" 2>&1 || skip "$(cat "$work/check")"
! "$cluster" status >/dev/null 2>&1 || skip "a cluster runs already, perhaps of make demo; make demo-down stops it"
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"$cluster" build || exit 1

files=("$@")
if [ ${#files[@]} = 0 ]; then
    files=("$here"/[0-9]*.bats)
    export FLEETJOB_WHOLE=1 # the last one judges what all of them have shown
fi
touch "$work/tap"
export FLEETJOB_REFERENCES=$work

# References are computed while the first scenarios wait for their clusters.
# shellcheck disable=SC2034 # of job.bash
repository=$here/.. references=$work
# shellcheck source=e2e/job.bash
. "$here/job.bash"
measure_steps || exit 1
use_steps
echo "the small job has $STEPS steps, the long one $LONG"
{ reference "$STEPS" && reference "$LONG"; } >"$work/references" 2>&1 &
background=$!
for file in "${files[@]}"; do
    case $(basename "$file") in
    0[01]-*) ;; # these bring their own cluster up and down
    *)
        [ -z "$background" ] || wait "$background" || { cat "$work/references"; exit 1; }
        background=''
        if [ ! -e "$work/ours" ]; then
            touch "$work/ours"
            "$cluster" up 2 || exit 1
        fi
        ;;
    esac
    run_file "$file"
done
passed=$(grep -c '^ok' "$work/tap")
failed=$(grep -c '^not ok' "$work/tap")
skipped=$(grep -cE '^ok .* # skip' "$work/tap")
passed=$((passed - skipped))
echo "$passed passed, $failed failed$([ "$skipped" = 0 ] || echo ", $skipped skipped")"
[ "$failed" = 0 ]
