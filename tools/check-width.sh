#!/usr/bin/env bash
# No line is wider than 100 columns. Prints those that are, and ends with 1 if there are any.
#
# Exceptions: tables and code blocks of Markdown, a line that is one word (an address, a digest),
# text between quotes and documents in a shell script, expressions of a chart's template, generated
# files and recordings.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

mapfile -t files < <(git ls-files '*.c' '*.h' '*.def' '*.md' '*.sh' '*.bash' '*.bats' '*.yaml' \
    Makefile Dockerfile .ci/run e2e/cluster/cluster images \
    ':!docs/reference/fleetjob.md' ':!docs/reference/training.md' ':!docs/reference/status.md' \
    ':!docs/reference/strategy' ':!crds' ':!charts/fleetjob/files' ':!tests/golden/*.yaml')

wide=$(grep -HnE '^.{101,}' "${files[@]}" |
    grep -vE '^[^:]*\.md:[0-9]+:( *>? *\||    )' |
    grep -vE '^[^:]*:[0-9]+:[ #*/>-]*[^ ]+$' |
    grep -vE '^charts/[^:]*/templates/[^:]*:.*\{\{' || true)

bad=0
while IFS=: read -r file line text; do
    case $file in
    '') continue ;;
    *.md) # between fences?
        [ $(($(head -n "$line" "$file" | grep -c '^ *```') % 2)) = 0 ] || continue
        ;;
    *.sh | *.bash | *.bats | .ci/run | e2e/cluster/cluster)
        # what stands outside of quotes counts; a document is not the script's
        outside=$(sed -E "s/'[^']*'|\"[^\"]*\"//g" <<<"$text")
        [[ $text =~ ^\ *# ]] || [ ${#outside} -ge 80 ] || continue
        [[ ! $text =~ ^\ *[a-z]+:\ [\[\{] ]] || continue
        ;;
    esac
    echo "$file:$line: ${#text} columns: ${text:0:80}…"
    bad=1
done <<<"$wide"
exit $bad
