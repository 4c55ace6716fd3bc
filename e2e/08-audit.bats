#!/usr/bin/env bats
# The rights of the chart against what was done with them: no request of the controller was
# forbidden, and no verb is granted that it never uses. Method: the audit log of the API server,
# which has seen all scenarios before this one; alone there is nothing to judge.

load lib

setup_file() {
    start_installation
}

@test "nothing was forbidden, nothing is granted that is not needed" {
    [ -n "${FLEETJOB_WHOLE:-}" ] || skip "the other scenarios have not run on this cluster"
    kubectl get clusterroles,roles -A -o json >"$BATS_TEST_TMPDIR/roles.json"
    # The controller writes the count of a repeated event half a minute later.
    eventually "$LIMIT" python3 e2e/rbac.py "$(audit_log)" "$BATS_TEST_TMPDIR/roles.json"
}
