#!/usr/bin/env bash
# The chart, without a cluster: lint, and what it renders for which values (templates.py). What a
# real API server says to it is in e2e/. Needs helm (PATH, or what e2e/cluster has built) and
# python3-yaml. The last line is "N passed, N failed"; without Helm ", 1 skipped".
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PATH:${FLEETJOB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetjob}/bin
command -v helm >/dev/null || {
    echo "there is no helm; e2e/cluster/cluster build makes one"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
exec python3 tests/chart/templates.py
