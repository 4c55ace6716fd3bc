#!/usr/bin/env bash
# Linters for everything but C: shellcheck, yamllint, codespell. `make lint` runs clang-tidy and
# gcc's analyzer before.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
bad=0

for tool in shellcheck yamllint codespell; do
    command -v "$tool" >/dev/null && continue
    echo "$tool is not installed: make prerequisites-test" >&2
    bad=1
done
[ "$bad" = 0 ] || exit 1

git ls-files -z '*.sh' '*.bash' .ci/run e2e/cluster/cluster |
    xargs -0 shellcheck -S warning || bad=1

# Templates of the chart are no YAML before Helm has rendered them; tests/chart/run.sh does.
git ls-files -z '*.yaml' ':!charts/fleetjob/templates' ':!tests/golden' |
    xargs -0 yamllint -s || bad=1

git ls-files -z '*.c' '*.h' '*.def' '*.md' '*.sh' '*.bash' '*.bats' '*.yaml' Makefile |
    xargs -0 codespell -q 3 -I tools/words.txt || bad=1
exit $bad
