#!/usr/bin/env bash
# Run test programs, the long ones first, and add up what they say. TEST_JOBS at a time: one more
# than processors, since many wait, four at most.
#
#   tests/run.sh [--variant NAME] PROGRAM…
#
# Each program runs in a folder of its own below build/, with a time limit; its output is shown only
# when it fails; beside how long it took stands how long processors worked for it. cmocka's closing
# lines are counted. Exit 77 is a skip. Tests that only do arithmetic look at FLEET_TEST_VARIANT to
# leave out what a sanitizer makes slow and release builds cover. The last line is "N passed, N
# failed" (", N skipped" may follow); exit 1 if anything failed.
set -euo pipefail

variant=release
if [ "${1:-}" = --variant ]; then
    variant=$2
    shift 2
fi
processors=$(nproc)
jobs=${TEST_JOBS:-$(((processors < 3 ? processors : 3) + 1))}
limit=${TEST_LIMIT_S:-1800}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

run_one() {
    local program=$1 logs=$2 limit=$3 variant=$4
    local name log start rc=0 passed failed took
    name=$(basename "$program")
    log=$logs/$name
    start=$(date +%s%N)
    FLEET_TEST_VARIANT=$variant \
    FLEET_BIN=${FLEET_BIN:-$([ "$variant" = release ] && echo "$PWD/build/bin" || echo "$PWD/build/$variant/bin")} \
    LSAN_OPTIONS="suppressions=$PWD/tests/sanitizers/lsan.supp:print_suppressions=0" \
    TSAN_OPTIONS="suppressions=$PWD/tests/sanitizers/tsan.supp:halt_on_error=1:second_deadlock_stack=1" \
    UBSAN_OPTIONS="print_stacktrace=1" \
        timeout -k 10 "$limit" "$program" >"$log" 2>&1 </dev/null || rc=$?
    passed=$(grep -aoE '\[  PASSED  \] [0-9]+ test' "$log" | awk '{s += $4} END {print s + 0}')
    failed=$(grep -aoE '^\[  FAILED  \] [0-9]+ test' "$log" | awk '{s += $4} END {print s + 0}')
    if [ "$rc" = 77 ]; then
        echo "0 0 1" >"$log.count"
    elif [ "$rc" != 0 ] && [ "$failed" = 0 ]; then
        echo "$passed 1 0" >"$log.count"
    else
        echo "$passed $failed 0" >"$log.count"
    fi
    local ms=$((($(date +%s%N) - start) / 1000000))
    times >"$log.times" # not in $( ): a child has had none
    took=$(awk -F'[ms ]+' 'NR == 2 {print int((60 * ($1 + $3) + $2 + $4) * 1000)}' "$log.times")
    if [ "$rc" = 0 ] || [ "$rc" = 77 ]; then
        printf '  %-5s %-40s %3s tests %6s ms, processors %6s ms\n' \
            "$([ "$rc" = 0 ] && echo ok || echo skip)" "$name" "$passed" "$ms" "$took"
    else
        printf '  FAIL  %-40s exit %s after %s ms\n' "$name" "$rc" "$ms"
        sed 's/^/    | /' "$log" | tail -n 60
    fi
}
export -f run_one

# Those that start processes take longest: first, so that nothing long is left to run alone at the
# end.
in_order() { printf '%s\n' "$@" |
    awk '{ print /\/test_(run|equality)/ ? 0 : /\/integration\// ? 1 : /\/numerics\// ? 2 : 3, $0 }' | sort -k1,1n -k2,2r | cut -d' ' -f2; }
[ $# -gt 0 ] && in_order "$@" |
    xargs -P "$jobs" -I{} bash -c 'run_one "$@"' _ {} "$logs" "$limit" "$variant"
read -r passed failed skipped < <(cat "$logs"/*.count 2>/dev/null | awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}')
if [ "$skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" = 0 ]
