#!/usr/bin/env bash
# What nvcc made of the kernels: registers, spills, width of accesses, by cuobjdump of the toolkit.
#
#   tools/cuda-sass.sh             print docs/cuda-sass.md, from build/cuda/kernels/*.o (make cuda)
#   tools/cuda-sass.sh check       print the kernels that use local memory; exit 1 if there are any
#
# Local memory (instructions LDL and STL) is where registers are spilled, and where arrays lie whose
# index is not known at compile time.
set -euo pipefail
cd "$(dirname "$0")/.."

toolkit=$(tools/cuda-toolkit.sh find)
if [ -z "$toolkit" ] || [ ! -x "$toolkit/bin/cuobjdump" ]; then
    echo "cuda-sass: no toolkit with cuobjdump (make cuda-toolkit)" >&2
    [ "${1:-}" != check ] || { echo "0 passed, 0 failed, 1 skipped" && exit 0; }
    exit 2
fi
compgen -G 'build/cuda/kernels/*.o' >/dev/null || {
    echo "cuda-sass: no kernels in build/cuda/kernels (make cuda)" >&2
    exit 2
}

# A line a kernel and architecture: FILE ARCH REGISTERS LOCAL LOAD STORE TENSOR NAME. LOCAL counts
# instructions, LOAD and STORE are the widest accesses to device memory in bits.
rows() {
    local object
    for object in build/cuda/kernels/*.o; do
        { "$toolkit/bin/cuobjdump" -res-usage "$object"; "$toolkit/bin/cuobjdump" -sass "$object"; } |
            awk -v file="$(basename "$object" .o)" '
            function opcode(    i) { # without its guard
                for (i = 2; i <= 3; i++)
                    if ($i !~ /^@/) return $i
            }
            function wider(old, op,    bits) {
                bits = op ~ /\.128/ ? 128 : op ~ /\.64/ ? 64 : op ~ /\.[US]16/ ? 16 : \
                    op ~ /\.[US]8/ ? 8 : 32
                return bits > old ? bits : old
            }
            /^arch = /             { arch = $3 }
            /^ Function /          { name = $2; sub(/:$/, "", name) }
            /^  REG:/              { split($1, part, ":"); registers[arch, name] = part[2] }
            /^\t\tFunction : /     { name = $3; order[++count] = arch SUBSEP name }
            !/^        \/\*[0-9a-f]+\*\// { next }
            { op = opcode() }
            op ~ /^(LDL|STL)/           { spills[arch, name]++ }
            op ~ /^(HMMA|HGMMA)/        { tensor[arch, name]++ }
            op ~ /^(LDG|LDGSTS|LD)(\.|$)/ { load[arch, name] = wider(load[arch, name], op) }
            op ~ /^(STG|ST)(\.|$)/        { store[arch, name] = wider(store[arch, name], op) }
            END {
                for (i = 1; i <= count; i++) {
                    key = order[i]
                    split(key, part, SUBSEP)
                    print file, part[1], registers[key], spills[key] + 0, load[key] + 0,
                        store[key] + 0, tensor[key] + 0, part[2]
                }
            }'
    done | c++filt | sed -E 's/void //; s/\([^()]*\)$//'
}

case ${1:-print} in
check)
    rows | awk '$4 > 0 { print $1 ".cu, " $2 ": " $8 " has " $4 " accesses to local memory"; bad = 1 }
        END { exit bad }'
    ;;
print)
    cat <<PAGE
# What nvcc makes of the kernels

\`make cuda-sass\` writes this page; nvcc was of release $(
        "$toolkit/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p').

Columns of three numbers are those of sm_80, sm_90a and sm_100. Local memory counts the instructions
that read or write it: spilled registers, and arrays whose index is not known at compile time. It
must be 0. Widths are in bits, of a thread's widest access to device memory on sm_90a; a kernel that
takes tensors of any type or alignment has narrow ones, too. Tensor counts the instructions for
tensor cores on sm_90a.

| file | kernel | registers | local memory | load | store | tensor |
|---|---|---|---|---|---|---|
PAGE
    rows | sort -s -k1,1 -k8 | awk '
        function flush() {
            if (key != "")
                printf "| %s | `%s` | %s | %s | %s | %s | %s |\n", file, name, registers, local,
                    load, store, tensor
        }
        {
            full = $8
            for (i = 9; i <= NF; i++) full = full " " $i
            if ($1 " " full != key) {
                flush()
                key = $1 " " full; file = $1; name = full; registers = local = "? ? ?"
            }
            place = $2 == "sm_80" ? 1 : $2 == "sm_90a" ? 2 : 3
            registers = put(registers, place, $3); local = put(local, place, $4)
            if (place == 2) { load = $5 ? $5 : "–"; store = $6 ? $6 : "–"; tensor = $7 ? $7 : "–" }
        }
        function put(list, i, value,    part) {
            split(list, part, " ")
            part[i] = value
            return part[1] " " part[2] " " part[3]
        }
        END { flush() }'
    ;;
*) echo "tools/cuda-sass.sh: check or nothing, not $1" >&2; exit 2 ;;
esac
