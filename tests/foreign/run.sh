#!/usr/bin/env bash
# Scripts of PyTorch, Paddle and MindSpore train under FleetJobs of their own, on the CPU: they ask
# for restarts, are killed, go on, and see the variables of docs/own-trainer.md.
#
#   tests/foreign/run.sh [--install] [FRAMEWORK…]
#
# Uses what find.sh finds: a `python3` that has the framework, or a virtual environment below the
# cache folder, which --install makes from PyPI: Paddle and MindSpore for processors only (1 and 3
# GB), PyTorch with its CUDA libraries (5 GB; PyPI has no other one). What is not there is skipped.
# The last line is "N passed, N failed" (", N skipped").
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${FLEETJOB_CACHE:-$HOME/.cache/fleetjob}
fleetjob=${FLEET_BIN:-$PWD/build/bin}/fleetjob
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

installs=''
if [ "${1:-}" = --install ]; then
    installs=yes
    shift
fi
[ $# -gt 0 ] || set -- torch paddle mindspore

declare -A package=([torch]=torch [paddle]=paddlepaddle [mindspore]=mindspore)

get() { # get FRAMEWORK
    python3 -m venv "$cache/foreign/$1" &&
        "$cache/foreign/$1/bin/pip" install -q --only-binary :all: numpy "${package[$1]}" || true
}

count() { # count COMMAND…: what it says of errors is printed if it fails
    if "$@" 2>"$work/errors"; then
        passed=$((passed + 1))
    else
        cat "$work/errors"
        failed=$((failed + 1))
    fi
}

passed=0 failed=0 skipped=0
for framework; do
    python=$(tests/foreign/find.sh "$framework") || {
        [ -z "$installs" ] || get "$framework"
        python=$(tests/foreign/find.sh "$framework") || {
            echo "  skip  $framework: no python3 has it; make check-foreign gets it from PyPI"
            skipped=$((skipped + 1))
            continue
        }
    }
    mkdir "$work/$framework"
    case $framework in
    paddle) count "$python" tests/foreign/strategy_fields.py "$fleetjob" ;;
    mindspore)
        mkdir "$work/files"
        count "$python" tests/foreign/strategy_files.py "$fleetjob" "$work/files"
        ;;
    esac
    count python3 tests/foreign/check.py "$framework" "$python" "$fleetjob" "$work/$framework"
done
[ "$skipped" = 0 ] && echo "$passed passed, $failed failed" ||
    echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
