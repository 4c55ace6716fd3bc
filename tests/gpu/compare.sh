#!/usr/bin/env bash
# Compare two files of digests (tests/numerics/rig_digest.h), operator by operator:
#
#   tests/gpu/compare.sh EXPECTED ACTUAL
#
# Lines of the same operator, inputs and output are paired in their order. Prints a row an operator
# that differs, with the first elements of its first difference, and what is in one file only. Exit
# 1 if anything differs.
set -euo pipefail
awk '
function key_of(    key) {
    key = $1 " " $2 " " $3
    return key " " ++seen[FILENAME, key]
}
FILENAME == ARGV[1] { expected[key_of()] = $6; sample[FNR] = 0; next_line = FNR
    first[$1 " " $2 " " $3 " " seen[FILENAME, $1 " " $2 " " $3]] = $7; next }
{
    key = key_of()
    all[$1]++
    if (!(key in expected)) { only[$1]++; next }
    compared++
    if (expected[key] != $6) {
        other[$1]++
        if (!($1 in shown)) shown[$1] = "output " $3 ", " $4 " x " $5 "\n    " first[key] "\n    " $7
    }
    delete expected[key]
}
END {
    for (key in expected) { split(key, part, " "); missing[part[1]]++ }
    for (op in missing) { print op ": " missing[op] " results only in the first file"; bad++ }
    for (op in only) { print op ": " only[op] " results only in the second file"; bad++ }
    for (op in other) {
        print op ": " other[op] " of " all[op] " results have other bits; " shown[op]
        bad++
    }
    print compared + 0 " results compared, " bad + 0 " operators differ"
    exit bad > 0 || compared == 0
}' "$1" "$2"
