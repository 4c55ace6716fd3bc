#!/usr/bin/env bash
# Everything: `make test`. Stages, each counted; the last line adds them up.
#
#   tests/all.sh [STAGE…]
#       stages: programs e2e chart hygiene release golden asan tsan levels cuda fuzz model
#       chaos images transformers
#
# Without a stage all of them: what needs no cluster runs beside the scenarios on it, which
# mostly wait; its results are printed after theirs. A part says at its end how long it took, and
# how long processors worked for it (except for what it leaves running, as a cluster is, and for
# what lost its parent).
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# A new clone compiles nothing that this machine has compiled before; debug information names the
# older folder.
[ ! -d /usr/lib/ccache ] || export PATH=/usr/lib/ccache:$PATH CCACHE_NOHASHDIR=1

passed=0 failed=0 skipped=0
work=$(mktemp -d)
beside='' busy=''

finish() { # also on a signal: bash runs it for any signal that is not caught
    [ -z "$beside" ] || kill -- "-$beside" 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT

# Run a part's command; it ends with "N passed, N failed" or counts as one test of its own.
part() {
    local name=$1 rc line TIMEFORMAT='%0R s, processors %0U s and %0S s for the kernel'
    shift
    echo "== $name"
    { time "$@" 2>&1; } 2>"$work/time" | grep --line-buffered -vE '^  (cc|ld|fuzz-cc) ' |
        tee "$work/log"
    rc=${PIPESTATUS[0]}
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$work/log" | tail -1)
    if [ -n "$line" ]; then
        read -r p f s < <(sed -E 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?.*/\1 \2 \4/' <<<"$line")
    else
        p=$((rc == 0)) f=$((rc != 0)) s=0
    fi
    [ "$rc" != 0 ] && [ "$f" = 0 ] && f=1
    [ "$f" = 0 ] || remember "$name" "$rc" "$p"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
    echo "== $name: $p passed, $f failed ($(cat "$work/time"))"
}

# What a part that failed said of its failures, to be printed again at the end: the end of a long
# output is what one reads first. A part without a count said it in its last lines.
remember() { # remember NAME CODE PASSED
    {
        echo "== $1: failed, code $2"
        if ! sed '1,/^== what failed/d' "$work/log" | grep .; then
            grep -E -A 8 '^ *(not ok|FAILED|\[  FAILED)|: error:|^REFUSED' "$work/log" | head -n 80
            [ "$3" != 0 ] || tail -n 30 "$work/log"
        fi
    } >>"$work/failures"
}

stage() {
    case $1 in
    programs) # what the cluster needs, and what e2e/01-client.bats would build beside others
        part "programs and images" make -s -j2 DEV=1 all image \
            build/release/tests/integration/test_kube_cluster \
            build/release/tests/integration/test_kube_machinery
        ;;
    e2e) part "end to end, on a real Kubernetes" e2e/run.sh ;;
    transformers) part "exports in transformers, where it is installed" tests/transformers/run.sh ;;
    chart) part "chart" tests/chart/run.sh ;; # after e2e, which builds the Helm that it needs
    hygiene)
        part "format" make -s check-format
        part "width of lines" make -s check-width
        part "length of files and functions" make -s check-size
        part "prose" make -s check-prose
        part "names of tests" make -s check-tests
        part "lines of the log" make -s check-logs
        part "files and tests that pages name" make -s check-docs
        part "linters" make -s -j2 lint
        part "includes follow their list" tools/check-includes.sh
        part "headers compile alone" make -s DEV=1 check-headers
        part "generated files agree" make -s verify
        ;;
    release) part "release build" make -s -j2 check-all DEV=1 ;;
    golden) part "recordings of other systems" make -s -j2 golden ;;
    asan)
        part "address and undefined sanitizers" make -s -j2 check-asan
        part "recordings under them" make -s -j2 golden VARIANT=asan
        ;;
    tsan)
        part "thread sanitizer, plain kernels" make -s -j2 check-tsan
        FLEET_ISA=plain part "recorded operators under it" make -s -j2 golden VARIANT=tsan \
            GOLDEN_FILES=torch/ops/index.json
        ;;
    levels)
        part "every instruction-set level" make -s check-levels
        part "memory that the host cannot touch" make -s check-guard
        ;;
    cuda) # gets the toolkit from PyPI where there is none: 100 MB
        part "CUDA kernels on the emulator" make -s -j2 check-cuda-race
        part "CUDA kernels under sanitizers" make -s -j2 check-cuda-asan
        part "CUDA toolkit" make -s cuda-toolkit
        part "CUDA library" make -s -j2 cuda
        part "CUDA kernels without local memory" tools/cuda-sass.sh check
        ;;
    fuzz) part "fuzz targets, ${FUZZ_SECONDS:-10} s each" make -s -j2 fuzz ;;
    model) part "membership protocol, all histories of a model" make -s check-model ;;
    chaos) part "chaos, a few runs" make -s check-chaos ;;
    images) part "images" tests/image/run.sh ;; # not made again: the cluster may be loading them
    *) echo "tests/all.sh: unknown stage $1" >&2; exit 2 ;;
    esac
}

# All that needs no cluster, in a session of its own, so that it can be ended. It is to work while
# the scenarios wait, and to leave them most of the processors when they do not: the kernel shares
# those between sessions first (autogroup). More modest it may not be: its tests have deadlines.
start_beside() { # start_beside STAGE…
    setsid bash -c '{ echo 5 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 5 "$@"' - \
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

busy() { # seconds that all processors have worked since the machine's start
    awk -v ticks="$(getconf CLK_TCK)" '/^cpu / {print int(($2 + $3 + $4 + $7 + $8) / ticks)}' \
        /proc/stat
}

if [ $# -gt 0 ]; then
    for one in "$@"; do
        stage "$one"
    done
else
    busy=$(busy) # of all processes of the machine, unlike the figures of the parts
    stage programs
    mkdir "$work/references"
    export FLEETJOB_REFERENCES=$work/references
    e2e/run.sh --measure # before others work
    start_beside hygiene release golden model chaos asan tsan levels cuda fuzz images transformers
    stage e2e
    stage chart
    end_beside "beside the scenarios"
fi
if [ -s "$work/failures" ]; then
    echo "== what failed"
    cat "$work/failures"
fi
echo "$SECONDS s in all${busy:+, processors $(($(busy) - busy)) s}"
if [ "$skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" = 0 ]
