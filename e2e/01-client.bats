#!/usr/bin/env bats
# The C client and the controller's machinery against the real API server: TLS, HTTP/2, apply,
# conflicts, tokens, a burst under a watch; leading, Events, handing over, a server that restarts.

setup_file() {
    export FLEET_CLUSTER="$BATS_TEST_DIRNAME/cluster/cluster"
    "$FLEET_CLUSTER" up 1
    cd "$BATS_TEST_DIRNAME/.."
    make -s build/release/tests/integration/test_kube_cluster build/release/tests/integration/test_kube_machinery
}

setup() {
    eval "$("$FLEET_CLUSTER" env)"
    export FLEET_TEST_KUBECONFIG=$KUBECONFIG
    cd "$BATS_TEST_DIRNAME/.."
}

teardown_file() {
    "$FLEET_CLUSTER" down
}

@test "the client does what the API server's rules say" {
    build/release/tests/integration/test_kube_cluster
}

@test "the machinery leads, sees, tells, hands over, and outlives the API server" {
    build/release/tests/integration/test_kube_machinery
}
