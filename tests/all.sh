#!/usr/bin/env bash
# Everything: `make test`. Stages in order, each counted; the last line adds them up.
#
#   tests/all.sh [STAGE…]     stages: hygiene release golden e2e packaging levels asan tsan fuzz
set -uo pipefail
cd "$(dirname "$0")/.." || exit

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(hygiene release golden e2e packaging levels asan tsan fuzz)
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Run a stage's command; it ends with "N passed, N failed" or counts as one test of its own.
stage() {
    local name=$1 rc start=$SECONDS line
    shift
    echo "== $name"
    "$@" 2>&1 | grep --line-buffered -vE '^  (cc|ld|fuzz-cc) ' | tee "$log"
    rc=${PIPESTATUS[0]}
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
    if [ -n "$line" ]; then
        read -r p f s < <(sed -E 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?.*/\1 \2 \4/' <<<"$line")
    else
        p=$((rc == 0)) f=$((rc != 0)) s=0
    fi
    [ "$rc" != 0 ] && [ "$f" = 0 ] && f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
    echo "== $name: $p passed, $f failed ($((SECONDS - start)) s)"
}

for one in "${stages[@]}"; do
    case $one in
    hygiene)
        stage "includes follow the design" tools/check-includes.sh
        stage "headers compile alone" make -s check-headers
        ;;
    release) stage "release build" make -s -j2 check-all DEV=1 ;;
    e2e)
        stage "programs and images for the cluster" make -s -j2 all image
        stage "end to end, on a real Kubernetes" e2e/run.sh
        ;;
    packaging) # after e2e, which builds the Helm that the chart's tests need
        stage "generated files agree" make -s verify
        stage "images" make -s -j2 check-image
        stage "chart" make -s check-chart
        ;;
    golden) stage "recordings of other systems" make -s -j2 golden ;;
    levels) stage "every instruction-set level" make -s check-levels ;;
    asan)
        stage "address and undefined sanitizers" make -s -j2 check-asan
        stage "recordings under them" make -s -j2 golden VARIANT=asan
        ;;
    tsan)
        stage "thread sanitizer, plain kernels" make -s -j2 check-tsan
        FLEET_ISA=plain stage "recorded operators under it" make -s -j2 golden VARIANT=tsan \
            GOLDEN_FILES=torch/ops/index.json
        ;;
    fuzz) stage "fuzz targets, ${FUZZ_SECONDS:-10} s each" make -s -j2 fuzz ;;
    *) echo "tests/all.sh: unknown stage $one" >&2; exit 2 ;;
    esac
done
if [ "$skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" = 0 ]
