#!/usr/bin/env bash
# Run fuzz targets for some seconds each, two (FUZZ_JOBS) at a time, on their committed corpus.
#
#   tests/fuzz/run.sh SECONDS PROGRAM…
#
# Every run draws the same random numbers, so a failure can be repeated on any machine; FUZZ_SEED=0
# draws others. A crash is kept in tests/fuzz/crashes/<target>/ and printed. Ends with "N passed, N
# failed".
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=$1
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

run_one() {
    local program=$1 seconds=$2 logs=$3 name target crashes rc=0
    name=$(basename "$program")
    target=${name#fuzz_}
    crashes=$logs/$name.crashes # of its own: another target comes and goes at the same time
    mkdir -p "$logs/$name.corpus" "$crashes"
    local corpora=("$logs/$name.corpus")
    [ -d "tests/fuzz/corpus/$target" ] && corpora+=("tests/fuzz/corpus/$target")
    local dictionary=()
    case $target in
    prototxt | strategy_json | select) dictionary=(-dict=tests/fuzz/strategy.dict) ;;
    esac
    "$program" -seed="${FUZZ_SEED:-1}" -max_total_time="$seconds" -timeout=1200 -rss_limit_mb=2048 \
        -max_len=65536 -artifact_prefix="$crashes/" \
        "${dictionary[@]}" "${corpora[@]}" >"$logs/$name.log" 2>&1 || rc=$?
    if [ "$rc" = 0 ]; then
        printf '  ok    %-40s %s\n' "$name" \
            "$(grep -oE 'Done [0-9]+ runs' "$logs/$name.log" | tail -1)"
        echo 1 0 >"$logs/$name.count"
    else
        printf '  FAIL  %s\n' "$name"
        mkdir -p "tests/fuzz/crashes/$target"
        cp -r "$crashes/." "tests/fuzz/crashes/$target/"
        tail -n 40 "$logs/$name.log" | sed 's/^/    | /'
        echo 0 1 >"$logs/$name.count"
    fi
}
export -f run_one

[ $# -gt 0 ] && printf '%s\n' "$@" |
    xargs -P "${FUZZ_JOBS:-2}" -I{} bash -c 'run_one "$@"' _ {} "$seconds" "$logs"
read -r passed failed < <(cat "$logs"/*.count 2>/dev/null | awk '{p += $1; f += $2} END {print p + 0, f + 0}')
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
