#!/usr/bin/env bash
# Run benchmarks one after the other. Each prints a table for people and, for programs, lines that
# are JSON objects; the results are collected in build/bench.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p build
: >build/bench.json
echo "machine: $(grep -m1 '^model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"
for bench in "$@"; do
    echo "== $(basename "$bench")"
    "$bench" | tee >(grep '^{' >>build/bench.json || true) | grep -v '^{' || true
done
echo "numbers: build/bench.json"
