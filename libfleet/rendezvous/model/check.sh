#!/usr/bin/env bash
# Check the model of the membership protocol with spin, and whether its properties notice errors.
#
#   libfleet/rendezvous/model/check.sh [--more]
#
# A configuration is a set of budgets (membership.pml); each of its histories is looked at. Then
# each error of the list is put into the model, and the check must find it. --more adds
# configurations that need minutes. The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")"
model=$PWD/membership.pml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

passed=0 failed=0
spin -a "$model"
"${CC:-gcc}" -O1 -w -DSAFETY -DCOLLAPSE -DMEMLIM=4000 -o check pan.c
"${CC:-gcc}" -O1 -w -DSAFETY -DCOLLAPSE -DMEMLIM=4000 -DP_RAND -DT_RAND -o check_shuffled pan.c

# check SETTING…: the checker's words are in `out` then
check() { env "$@" ./check -m1000000 >out 2>&1 || true; }

result() { # result OK WORDS
    if [ "$1" = yes ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "  $([ "$1" = yes ] && echo ok || echo FAIL)  $2"
}

holds() { # holds SETTING…
    local states ok=no
    check "$@"
    states=$(awk '/states, stored/ {print $1}' out)
    grep -q 'errors: 0' out && ! grep -q 'max search depth too small\|out of memory' out && ok=yes
    result $ok "$*: ${states:-no} states"
    [ $ok = yes ] || sed 's/^/    | /' out
}

notices() { # notices PROPERTY NUMBER SETTING…
    local property=$1 number=$2 ok=no
    shift 2
    check BREAK="$number" "$@"
    grep -q "^property $property is broken" out && ok=yes
    result $ok "BREAK=$number $*: $property is lost"
    [ $ok = yes ] || sed 's/^/    | /' out
}

# The same, where the order above finds the error too late: histories come in an order by a seed,
# and the first of a few seeds that finds it ends the search.
notices_shuffled() { # notices_shuffled PROPERTY NUMBER SETTING…
    local property=$1 number=$2 ok=no
    shift 2
    for seed in 2 7 8 9 10; do
        env BREAK="$number" "$@" timeout -s INT 60 ./check_shuffled -m300 "-RS$seed" \
            >out 2>&1 || true
        grep -q "^property $property is broken" out && ok=yes && break
    done
    result $ok "BREAK=$number $*: $property is lost"
    [ $ok = yes ] || sed 's/^/    | /' out
}

echo "every history keeps P1 to P10:"
holds STEPS=2 ELECTIONS=1
holds STEPS=1 CRASHES=1
holds STEPS=1 LOSSES=2
holds STEPS=1 GOODBYES=1 LOSSES=1
holds STEPS=1 LINKS=1
holds STEPS=1 SUSPICIONS=1
holds STEPS=1 LOSSES=1 REPEATS=2
holds STEPS=2 CELLS=2 CRASHES=1 HURRIES=1 REPEATS=1
holds STEPS=2 CELLS=2 CRASHES=1
holds STEPS=2 CELLS=2 LOSSES=1 ELECTIONS=1
if [ "${1:-}" = --more ]; then
    holds STEPS=2 CRASHES=1 LOSSES=1
    holds STEPS=2 SUSPICIONS=1
    holds STEPS=1 LINKS=1 HURRIES=1 REPEATS=1
    holds STEPS=1 CRASHES=1 ELECTIONS=1
    holds STEPS=1 LEAST=1 ELECTIONS=1 HURRIES=1
    holds STEPS=2 CELLS=2 CRASHES=1 ELECTIONS=1
fi

echo "and these notice errors:"
notices P1 1 SUSPICIONS=1  # a member votes in a generation that it has left
notices P2 2 ELECTIONS=1   # a hub does not wait for the record
notices P3 3 STEPS=1       # a step is made without the last vote
notices P3 11 CELLS=2 CRASHES=1 # a state counts though a cell of it is lost
# an older state counts, and the hub begins again from it
notices P4 4 CALM=1 STEPS=1 SUSPICIONS=1 HURRIES=1
notices P5 5 LINKS=1       # a hub goes on without the state of its members
notices P6 6 STEPS=1 REPEATS=1 LINKS=1 # a member obeys what it has left
# a hub goes on though a member knows a newer one
notices_shuffled P7 7 CALM=1 STEPS=1 ELECTIONS=1 MOVES=1 LEAST=1 HURRIES=1 SUSPICIONS=1
notices P8 8 STEPS=1 CRASHES=1 # each cause counts, not each incident
notices P9 9 STEPS=1 LINKS=1 # the first accusation evicts
notices P10 10 STEPS=1 LOSSES=1 # a hub does not repeat an order

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
