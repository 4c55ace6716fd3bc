#!/usr/bin/env bash
# Do the pages name files and tests that exist? Looks at text between backquotes: a path, the name
# of a source, or a test (test_<module>__<what>; "…_<what>" is an end of one).
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
files=$(git ls-files)
names=$(sed 's|.*/||' <<<"$files")
tests=$(git grep -hoE 'test_[a-z0-9_]+__[a-z0-9_]+|^ *TEST\([a-z0-9_]+' -- 'tests/*.c' | sed 's/^ *TEST(/__/')

while IFS=: read -r page line word; do
    word=${word//\`/}
    case $word in
    */*) grep -qxF "$word" <<<"$files" ;;
    *.*) grep -qxF "$word" <<<"$names" ;;
    …*) grep -qF "${word#…_}" <<<"$tests" ;;
    *) grep -qxF -e "$word" -e "__${word##*__}" <<<"$tests" ;;
    esac || {
        echo "$page:$line: there is no $word"
        bad=1
    }
done < <(git grep -noE '`([A-Za-z0-9_/.-]+\.(c|h|sh|def|bats)|(test|…)_[a-z0-9_]+__[a-z0-9_]+|…_[a-z0-9_]{12,})`' -- \
    'docs/*.md' 'docs/decisions/*.md' README.md CONTRIBUTING.md 'e2e/README.md')
exit $bad
