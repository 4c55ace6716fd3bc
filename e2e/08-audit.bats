#!/usr/bin/env bats
# The rights of the chart against what was done with them: no request of the controller was forbidden, and no
# verb is granted that it never uses. Method: the audit log of the API server, which has seen all scenarios
# before this one; alone there is nothing to judge.

load lib

setup_file() {
    start_installation
    [ "$(grep -cF '"username":"system:serviceaccount:fleetjob-system:fleetjob-controller"' "$(audit_log)")" -gt 1000 ] ||
        skip "the other scenarios have not run on this cluster"
}

@test "nothing was forbidden, nothing is granted that is not needed" {
    kubectl get clusterroles,roles -A -o json >"$BATS_TEST_TMPDIR/roles.json"
    python3 e2e/rbac.py "$(audit_log)" "$BATS_TEST_TMPDIR/roles.json"
}
