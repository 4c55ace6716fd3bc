#!/usr/bin/env bash
# Registers, spills and widest accesses of each kernel, from libfleet_cuda.so: a table in Markdown.
#
#   tools/cuda-sass.sh [LIBRARY [ARCHITECTURE]]     build/bin/libfleet_cuda.so sm_90a
#
# cuobjdump of the toolkit reads the code. A store to local memory (STL) is a spill, or the frame of
# a call.
set -euo pipefail
cd "$(dirname "$0")/.."

library=${1:-build/bin/libfleet_cuda.so} architecture=${2:-sm_90a}
toolkit=$(tools/cuda-toolkit.sh find)
[ -n "$toolkit" ] || { echo "cuda-sass: there is no toolkit: make cuda-toolkit" >&2; exit 1; }
[ -f "$library" ] || { echo "cuda-sass: $library is missing: make cuda" >&2; exit 1; }
tool=$toolkit/bin/cuobjdump

echo "| kernel | registers | stack, bytes | spilled stores | widest load | widest store |"
echo "|---|---|---|---|---|---|"
{
    "$tool" -arch "$architecture" -res-usage "$library" 2>/dev/null
    "$tool" -arch "$architecture" -sass "$library"
} | c++filt -p | awk '
    function width(opcode) { # LDG.E.128.CONSTANT: bits of the access; 32 where none is named
        if (opcode ~ /\.128(\.|$)/) return 128
        if (opcode ~ /\.64(\.|$)/) return 64
        if (opcode ~ /\.[US]?16(\.|$)/) return 16
        if (opcode ~ /\.[US]8(\.|$)/) return 8
        return 32
    }
    function opcode_of(line) {
        match(line, /(LDG?|STG?|STL)\.[A-Z0-9._]*/)
        return substr(line, RSTART, RLENGTH)
    }
    function widest(of, kernel, line) {
        of[kernel] = width(opcode_of(line)) > of[kernel] ? width(opcode_of(line)) : of[kernel]
    }
    /^ *Function .*:$/ { sub(/^ *Function /, ""); sub(/:$/, ""); name = $0; next }
    /REG:[0-9]+/ && name != "" {
        match($0, /REG:[0-9]+/); registers[name] = substr($0, RSTART + 4, RLENGTH - 4)
        match($0, /STACK:[0-9]+/); stack[name] = substr($0, RSTART + 6, RLENGTH - 6)
        name = ""; next
    }
    /Function : / { sub(/.*Function : /, ""); current = $0; seen[current] = 1; next }
    current != "" && /[ \t]STL/ { spills[current]++ }
    current != "" && /[ \t]LDG?\./ { widest(loads, current, $0) }
    current != "" && /[ \t]STG?\./ { widest(stores, current, $0) }
    END {
        for (k in seen)
            printf "| `%s` | %s | %s | %d | %d | %d |\n", k, registers[k], stack[k], spills[k],
                loads[k], stores[k]
    }' | LC_ALL=C sort
