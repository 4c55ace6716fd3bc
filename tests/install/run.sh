#!/usr/bin/env bash
# What `make install` puts down is complete and works: programs start, every command has help, a
# manual page that names all its options and renders, and completion; wrong usage exits 2.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
failed=0
fail() { echo "FAIL: $*"; failed=1; }

make -s VARIANT=release install DESTDIR="$root" PREFIX=/usr >/dev/null
PATH="$root/usr/bin:$PATH"
man_folder=$root/usr/share/man/man1
for program in fleetjob fleetjob-agent fleetjob-train fleetjob-controller kubectl-fleetjob; do
    [ -x "$root/usr/bin/$program" ] || fail "$program is not installed"
done
[ "$(kubectl-fleetjob version)" = "$(fleetjob version)" ] ||
    fail "kubectl-fleetjob is another program"
[[ $(kubectl-fleetjob export --help) == "Usage: kubectl fleetjob export JOB"* ]] ||
    fail "kubectl-fleetjob export is not the cluster's"

renders() { # page
    command -v man >/dev/null || return 0
    local said
    said=$(MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 -Z "$1" 2>&1 >/dev/null) || {
        fail "$1 does not render: $said"; return 0; }
    [ -z "$said" ] || fail "$1 renders with warnings: $said"
}
renders "$man_folder/fleetjob.1"

mapfile -t commands < <(fleetjob help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
[ "${#commands[@]}" -ge 8 ] || fail "expected at least 8 commands, got ${commands[*]}"
for command in "${commands[@]}"; do
    help=$(fleetjob "$command" --help) || fail "$command --help exits $?"
    [[ $help == Usage:\ fleetjob* ]] || fail "$command --help does not begin with its usage: $help"
    [ "$command" = help ] && continue
    code=0
    fleetjob "$command" --no-such-option x >/dev/null 2>&1 || code=$?
    [ "$code" = 2 ] || fail "$command --no-such-option exits $code, expected 2"
    page=$man_folder/fleetjob-$command.1
    [ -f "$page" ] || { fail "$page is missing"; continue; }
    renders "$page"
    plain=$(sed 's/\\-/-/g' "$page")
    while read -r option; do
        [ -z "$option" ] || [[ $plain == *"$option"* ]] || fail "$page does not name $option"
    done < <(grep -oE -- '--[a-z][a-z-]*' <<<"$help" | sort -u)
done

# shellcheck source=/dev/null
source "$root/usr/share/bash-completion/completions/fleetjob"
completes() { # expected words, then the line; its last word is the one that is completed
    local expected=$1
    shift
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    _fleetjob
    local got="${COMPREPLY[*]-}"
    [ "$got" = "$expected" ] || fail "completing '$*': expected '$expected', got '$got'"
}
completes plan fleetjob pl
completes "convert" fleetjob help conv
completes "--rank" fleetjob plan --ra
completes "full paddle" fleetjob plan job.yaml --policy ""
completes "prototxt" fleetjob convert x --to p
completes "2.0 2.1" fleetjob convert x --schema ""
completes "table json" fleetjob plan --output ""
completes "yaml json" fleetjob select --output ""
completes "README.md" fleetjob validate READ

[ "$failed" = 0 ] && echo "ok: ${#commands[@]} commands installed, with help, manual and completion"
exit "$failed"
