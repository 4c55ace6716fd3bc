#!/usr/bin/env bash
# Our column of the comparison with other code bases: production code only, no tests.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(git ls-files 'libfleet/*.c' 'controller/*.c' 'agent/*.c' 'cli/*.c' 'cuda/*.c' 'cuda/*.cu' \
    'distributed/*.c')
mapfile -t headers < <(git ls-files 'libfleet/*.h' 'controller/*.h' 'agent/*.h' 'cli/*.h' 'cuda/*.h' \
    'distributed/*.h' 'include/*.h')

# median, 90th percentile, maximum of numbers on stdin
spread() { sort -n |
    awk '{a[NR] = $1} END {printf "%d | %d | %d\n", a[int((NR + 1) / 2)], a[int(NR * 0.9 + 0.999)], a[NR]}'; }
function_lengths() { awk '/^\{/ {start = NR} /^\}/ && start {print NR - start + 1; start = 0}' \
    "$@"; }
comment_share() {
    awk '{t = $0; gsub(/^[ \t]+/, "", t)}
         t == "" {next}
         t ~ /^\/\*/ {c++; if (t !~ /\*\//) inside = 1; next}
         inside {c++; if (t ~ /\*\//) inside = 0; next}
         {code++}
         END {printf "%d%%\n", 100 * c / (c + code)}' "$@"
}

echo "source files measured            ${#sources[@]}"
echo "file lines, median | 90% | max   $(for f in "${sources[@]}"; do wc -l <"$f"; done | spread)"
echo "function lines                   $(function_lengths "${sources[@]}" | spread)"
echo "comment share, sources           $(comment_share "${sources[@]}")"
echo "comment share, headers           $(comment_share "${headers[@]}")"
echo "line width, median | 95% | max   $(cat "${sources[@]}" | LC_ALL=C tr -d '\200-\277' | awk 'length {print length}' | sort -n | awk '{a[NR] = $1} END {printf "%d | %d | %d\n", a[int((NR + 1) / 2)], a[int(NR * 0.95)], a[NR]}')"
echo "test lines per source line       $(awk -v t="$(git ls-files 'tests/*.c' 'tests/*.h' 'tests/*.sh' 'e2e/*.bats' 'e2e/*.sh' | xargs cat | wc -l)" -v s="$(cat "${sources[@]}" | wc -l)" 'BEGIN {printf "%.2f", t / s}')"
echo "fuzz targets                     $(git ls-files 'tests/fuzz/fuzz_*.c' | wc -l)"
echo "build file lines                 $(wc -l <Makefile)"
