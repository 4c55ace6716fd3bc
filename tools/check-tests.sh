#!/usr/bin/env bash
# Names of tests: test_<module>__<what it shows>. The module is the one that the test is about; a
# file may have tests of several. Prints the functions with the type of a test and another name.
set -euo pipefail
cd "$(dirname "$0")/.."

! git grep -nE '^(static )?void [a-z0-9_]+\(void \*\*' -- 'tests/**/test_*.c' |
    grep -vE 'void test_[a-z0-9]+(_[a-z0-9]+)*__[a-z0-9_]+\('
