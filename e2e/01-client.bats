#!/usr/bin/env bats
# The C client and the controller's machinery against the real API server: TLS, HTTP/2, apply,
# conflicts, tokens, a burst under a watch; leading, Events, handing over. Other scenarios run
# beside it (run.sh).

setup_file() {
    export FLEET_CLUSTER="$BATS_TEST_DIRNAME/cluster/cluster"
    if ! "$FLEET_CLUSTER" status >/dev/null 2>&1; then
        touch "$BATS_FILE_TMPDIR/ours"
        "$FLEET_CLUSTER" up 1
    fi
    cd "$BATS_TEST_DIRNAME/.."
    [ -n "${FLEETJOB_WHOLE:-}" ] || # then they are built, and another make may be at work
        make -s build/release/tests/integration/test_kube_cluster \
            build/release/tests/integration/test_kube_machinery
}

setup() {
    eval "$("$FLEET_CLUSTER" env)"
    export FLEET_TEST_KUBECONFIG=$KUBECONFIG
    cd "$BATS_TEST_DIRNAME/.."
}

teardown_file() {
    [ ! -e "$BATS_FILE_TMPDIR/ours" ] || "$FLEET_CLUSTER" down
}

@test "the client does what the API server's rules say" {
    build/release/tests/integration/test_kube_cluster
}

@test "the machinery leads, sees, tells and hands over" {
    build/release/tests/integration/test_kube_machinery '*hands_over'
}
