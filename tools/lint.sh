#!/usr/bin/env bash
# Linters, as far as they are installed; says which are not.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
bad=0
have() {
    command -v "$1" >/dev/null && return 0
    echo "skipped: $1 is not installed"
    return 1
}

mapfile -t sources < <(git ls-files 'libfleet/*.c' 'controller/*.c' 'agent/*.c' 'cli/*.c')
if have clang-tidy; then
    clang-tidy --quiet "${sources[@]}" -- -std=c17 -D_GNU_SOURCE -I. -DFLEET_VERSION='"lint"' 2>/dev/null || bad=1
fi
for f in $(git ls-files 'libfleet/*.c'); do
    gcc -std=c17 -D_GNU_SOURCE -I. -O1 -fanalyzer -DFLEET_VERSION='"lint"' -c -o /dev/null "$f" || bad=1
done
have shellcheck && { git ls-files '*.sh' '.ci/run' | xargs shellcheck -S warning || bad=1; }
have yamllint && { git ls-files 'docs/*.yaml' 'crds/*.yaml' | xargs -r yamllint -d relaxed || bad=1; }
misspelt_by_tests=cirle,fied,nd,precison
have codespell && { git ls-files '*.c' '*.h' '*.md' | xargs codespell -q 3 -L "$misspelt_by_tests" || bad=1; }
exit $bad
