#!/usr/bin/env bash
# No file has more than 500 lines, no function more than 60, from its "{" to its "}" at the edge.
# Prints those that have, and ends with 1 if there are any. It reads sources of C, CUDA, Python and
# shells, and tables; functions of C and CUDA only. A longer file has a second idea, and a longer
# function a part with a name.
set -euo pipefail
cd "$(dirname "$0")/.."

# Named exceptions, with the reason behind "#": FILE, or FILE:FUNCTION. A line without a use is an
# error.
exceptions='
libfleet/strategy/knobs.def   # the one table of all settings of a strategy
'

mapfile -t files < <(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.def' '*.py' '*.sh' '*.bash' '*.bats')
awk -v files_max=500 -v functions_max=60 -v table="$exceptions" '
    BEGIN {
        n = split(table, lines, "\n")
        for (i = 1; i <= n; i++) {
            sub(/ *#.*/, "", lines[i])
            if (lines[i] != "") allowed[lines[i]] = 1
        }
    }
    function look(name, count, max, where) {
        if (count <= max) return
        if (name in allowed) { used[name] = 1; return }
        print where ": " count " lines, at most " max
        bad = 1
    }
    function end_of_file() {
        if (file != "") look(file, length_of_file, files_max, file)
    }
    FNR == 1 { end_of_file(); file = FILENAME; is_c = file ~ /\.(c|h|cu|cuh)$/; open = 0 }
    { length_of_file = FNR }
    !is_c { next }
    # the last line that looks like a head: it begins at the edge and has "("
    /^[a-zA-Z_].*\(/ { head = $0; sub(/\(.*/, "", head); sub(/.*[ *]/, "", head) }
    /^\{/ { open = FNR }
    /^\}/ && open {
        look(file ":" head, FNR - open + 1, functions_max, file ":" open ": " head "()")
        open = 0
    }
    END {
        end_of_file()
        for (name in allowed)
            if (!(name in used)) {
                print "tools/check-size.sh: the exception of " name " has no use"
                bad = 1
            }
        exit bad
    }' "${files[@]}"
