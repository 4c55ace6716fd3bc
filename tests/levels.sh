#!/usr/bin/env bash
# Run test programs once for each instruction-set level this machine has, forced by FLEET_ISA.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
flags=$(grep -m1 '^flags' /proc/cpuinfo)
levels=(plain)
has() { for f in "$@"; do grep -qw "$f" <<<"$flags" || return 1; done; }
has avx2 fma f16c && levels+=(avx2)
has avx512f avx512bw avx512dq avx512vl && levels+=(avx512)
has avx512_bf16 && levels+=(avx512bf16)
has amx_tile amx_bf16 && levels+=(amx)
passed=0 failed=0
for level in "${levels[@]}"; do
    echo "-- FLEET_ISA=$level"
    said=$(FLEET_ISA=$level tests/run.sh "$@")
    echo "$said"
    read -r p f < <(tail -n 1 <<<"$said" | sed -E 's/^([0-9]+) passed, ([0-9]+) failed.*/\1 \2/')
    passed=$((passed + p)) failed=$((failed + f))
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
