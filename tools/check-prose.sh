#!/usr/bin/env bash
# Wordings that need a second look (CONTRIBUTING.md, "Plain English"). Prints the lines that have
# one, and ends with 1 if there are any. The remedy is a sentence with its actor as the subject:
#
#   whoever reads the log        a user who reads the log
#   who leads writes             the leader writes
#   a list of which one goes     a list; one entry is removed
#   the agent is told to leave   the hub orders the agent to leave
#
# It reads comments, messages, help, pages, descriptions of fields and the chart. Names in code have
# no blanks, so they are not found.
set -euo pipefail
cd "$(dirname "$0")/.."

# A wording a line: an extended regular expression; \b is the edge of a word.
wordings='
\b[Ww]hoever\b
\bwhom(ever)?\b
\b([Oo]f|[Bb]y) which\b
\b[Oo]f what\b
\b(is|are|was|were|be|been|get|gets) told\b
(^|[.:;(!?*#/"]) *Who [a-z]
(^|[:;(*#"]) *who [a-z]
\b(by|of|on|to|from|than|is|are|does|and|or|if|that|with|show|knows?|says?|tells?|see) who\b
\bstands? twice\b
\bbeyond all\b
\bweary\b
\bmeant to annoy\b
\bnobody need\b
\banew\b
\bin vain\b
\bth(e|at) very\b
\bthose who\b
\b(of|none of) ours\b
\bshall\b
\b[Ww]ithout a word\b
\blast words\b
\bwhat is said\b
\blooked after\b
\bto be had\b
\bso long (a|an|until|as it)\b
\bmeant to\b
\b[Ww]hatever\b
\blooks? after\b
\bspeaks? of\b
\bafresh\b
\bcounted ever\b
\bgoes? aside\b
\bstands? (there|before|behind)\b
\bstands? in [^f]
\bthe latter\b
\bat (the|its) begin\b
\b[Tt]here ?of\b
\b[Hh]ence\b
\bbut for\b
\bhears? of\b
\bput right\b
\bno news\b
\bhow (it|they) went\b
\b(is|are) to be (released|freed|sent|waited|written)\b
\b[Ww]hat is on (its|their) way\b
'

# Named exceptions: FILE, a blank, an expression for the line. A line without a use is an error.
exceptions='
CONTRIBUTING.md not "whoever"
docs/decisions/what-the-gate-reads.md ("whoever"|"is told"|"of which")
'

files=(':*.c' ':*.h' ':*.def' ':*.md' ':*.sh' ':*.bash' ':*.bats' ':*.yaml' ':Makefile'
    ':!docs/reference/strategy' ':!docs/reference/fleetjob.md' ':!docs/reference/training.md'
    # generated: their sources are read
    ':!docs/reference/status.md' ':!crds' ':!charts/fleetjob/files'
    ':!tests/golden/*.md' ':!CHANGELOG.md'                            # what others wrote, what was
    ':!tools/check-prose.sh')
found=$(git grep -nIE "$(sed '/^$/d' <<<"$wordings" | paste -sd '|')" -- "${files[@]}" || true)

while read -r file line; do
    [ -n "$file" ] || continue
    grep -qE "^$file:[0-9]+:.*$line" <<<"$found" ||
        { echo "tools/check-prose.sh: the exception of $file has no use"; exit 1; }
    found=$(grep -vE "^$file:[0-9]+:.*$line" <<<"$found" || true)
done <<<"$exceptions"
[ -z "$found" ] || { echo "$found"; exit 1; }
