#!/usr/bin/env bash
# Everything: `make test`. Stages in order, each counted; the last line adds them up.
#
#   tests/all.sh [STAGE…]     stages: hygiene release golden e2e packaging levels build asan tsan fuzz
#
# Without a stage all of them; then those that only compute run beside the end-to-end stage, which mostly waits.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

passed=0 failed=0 skipped=0
work=$(mktemp -d)
beside=''

finish() { # also when we are told to end: bash runs it for any signal that is not caught
    [ -z "$beside" ] || kill -- "-$beside" 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT

# Run a part's command; it ends with "N passed, N failed" or counts as one test of its own.
part() {
    local name=$1 rc start=$SECONDS line
    shift
    echo "== $name"
    "$@" 2>&1 | grep --line-buffered -vE '^  (cc|ld|fuzz-cc) ' | tee "$work/log"
    rc=${PIPESTATUS[0]}
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$work/log" | tail -1)
    if [ -n "$line" ]; then
        read -r p f s < <(sed -E 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?.*/\1 \2 \4/' <<<"$line")
    else
        p=$((rc == 0)) f=$((rc != 0)) s=0
    fi
    [ "$rc" != 0 ] && [ "$f" = 0 ] && f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
    echo "== $name: $p passed, $f failed ($((SECONDS - start)) s)"
}

stage() {
    case $1 in
    hygiene)
        part "includes follow the design" tools/check-includes.sh
        part "headers compile alone" make -s DEV=1 check-headers
        ;;
    release) part "release build" make -s -j2 check-all DEV=1 ;;
    golden) part "recordings of other systems" make -s -j2 golden ;;
    e2e)
        part "programs and images for the cluster" make -s -j2 all image
        part "end to end, on a real Kubernetes" e2e/run.sh
        ;;
    packaging) # after e2e, which builds the Helm that the chart's tests need
        part "generated files agree" make -s verify
        part "images" make -s -j2 check-image
        part "chart" make -s check-chart
        ;;
    levels) part "every instruction-set level" make -s check-levels ;;
    build) part "programs for sanitizers" make -s -j2 build-sanitized ;;
    asan)
        part "address and undefined sanitizers" make -s -j2 check-asan
        part "recordings under them" make -s -j2 golden VARIANT=asan
        ;;
    tsan)
        part "thread sanitizer, plain kernels" make -s -j2 check-tsan
        FLEET_ISA=plain part "recorded operators under it" make -s -j2 golden VARIANT=tsan \
            GOLDEN_FILES=torch/ops/index.json
        ;;
    fuzz) part "fuzz targets, ${FUZZ_SECONDS:-10} s each" make -s -j2 fuzz ;;
    *) echo "tests/all.sh: unknown stage $1" >&2; exit 2 ;;
    esac
}

# Stages that only compute, on processors that nobody else wants: whatever else is to run takes them at once.
# A session of its own, so that all of it can be ended; the kernel shares processors between sessions first
# (autogroup), so that this one must be modest as well. One target at a time: two would share what is left.
start_beside() { # start_beside STAGE…
    TEST_JOBS=2 FUZZ_JOBS=1 setsid bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec chrt --idle 0 "$@"' - \
        tests/all.sh "$@" >"$work/beside" 2>&1 </dev/null &
    beside=$!
}

end_beside() { # end_beside NAME
    wait "$beside"
    part "$1" told $?
    beside=''
}

told() { # told CODE
    cat "$work/beside"
    return "$1"
}

if [ $# -gt 0 ]; then
    for one in "$@"; do
        stage "$one"
    done
else
    stage hygiene
    stage release
    stage golden
    start_beside build levels fuzz
    stage e2e
    end_beside "beside the end-to-end stage"
    stage packaging
    stage asan
    stage tsan
fi
if [ "$skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" = 0 ]
