#!/usr/bin/env bash
# The folders of the product code and the includes between them, as a table.
#
#   tools/folders.sh [COMMIT]     as it is now, or as it was
#
# A line for each folder: its sources and headers, their lines, and the folders that it includes
# with the number of includes. An arrow in both directions between two folders has a `!`.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-}
roots=(libfleet controller agent cli cuda distributed)
endings=('*.c' '*.h' '*.cu' '*.cuh' '*.def')
files=()
for root in "${roots[@]}"; do
    for ending in "${endings[@]}"; do files+=("$root/$ending"); done
done

# One or two levels: agent/runtime/comm and below are one folder, and so is cli with its parts.
git grep -c '' ${commit:+"$commit"} -- "${files[@]}" | sed "s|^${commit:+$commit:}||" |
    sed 's/:\([0-9]*\)$/ lines \1/' >"${TMPDIR:-/tmp}/folders.$$"
git grep -E '^#include "' ${commit:+"$commit"} -- "${files[@]}" | sed "s|^${commit:+$commit:}||" |
    sed 's/:#include "\([^"]*\)".*/ includes \1/' >>"${TMPDIR:-/tmp}/folders.$$"
trap 'rm -f "${TMPDIR:-/tmp}/folders.$$"' EXIT

awk '
    function folder(path,    part, n) {
        n = split(path, part, "/")
        if (n == 1) return ""
        if (part[1] == "agent" && part[2] == "runtime" && n > 3) return "agent/runtime/" part[3]
        if ((part[1] == "libfleet" || part[1] == "controller" || part[1] == "agent") && n > 2)
            return part[1] "/" part[2]
        return part[1]
    }
    $2 == "lines" { f = folder($1); files[f]++; lines[f] += $3 }
    $2 == "includes" {
        from = folder($1)
        to = folder($3)
        if (to != "" && to != from) count[from, to]++
    }
    END {
        for (f in files) {
            list = ""
            k = 0
            for (g in files)
                if ((f, g) in count) name[++k] = g
            for (i = 2; i <= k; i++)
                for (j = i; j > 1 && count[f, name[j]] > count[f, name[j - 1]]; j--) {
                    t = name[j]; name[j] = name[j - 1]; name[j - 1] = t
                }
            for (i = 1; i <= k; i++)
                list = list " " name[i] " " count[f, name[i]] (((name[i], f) in count) ? "!" : "")
            printf "%-28s %4d files %6d lines  →%s\n", f, files[f], lines[f], list
        }
    }' "${TMPDIR:-/tmp}/folders.$$" | LC_ALL=C sort
