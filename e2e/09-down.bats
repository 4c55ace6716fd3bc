#!/usr/bin/env bats
# The end of the cluster in which all of it happened: down without a trace, also after an `up` that
# was killed. Method: what is left compared with what was before the cluster came up (traces.bash).

setup_file() {
    export CLUSTER="$BATS_TEST_DIRNAME/cluster/cluster"
    export FLEETJOB_TRACES=${FLEETJOB_TRACES:-$BATS_FILE_TMPDIR/traces}
    # shellcheck source=e2e/traces.bash
    . "$BATS_TEST_DIRNAME/traces.bash"
    [ ! -e "$FLEETJOB_TRACES" ] || return 0
    if "$CLUSTER" status >/dev/null 2>&1; then
        echo "a cluster is in use; this scenario makes its own"
        return 1
    fi
    traces >"$FLEETJOB_TRACES"
    "$CLUSTER" up 2
}

setup() {
    # shellcheck source=e2e/traces.bash
    . "$BATS_TEST_DIRNAME/traces.bash"
}

# The kernel takes a moment to clear up after processes that were killed.
no_new_traces() {
    local deadline=$((SECONDS + 600))
    while [ $SECONDS -lt "$deadline" ]; do
        comm -13 <(sort -u "$FLEETJOB_TRACES") <(traces | sort -u) >"$BATS_TEST_TMPDIR/new"
        [ -s "$BATS_TEST_TMPDIR/new" ] || return 0
        sleep 0.1
    done
    cat "$BATS_TEST_TMPDIR/new"
    return 1
}

@test "after down, nothing is left; after a killed up, down still clears up" {
    "$CLUSTER" down
    no_new_traces
    timeout -s KILL 4 "$CLUSTER" up 2 || true
    "$CLUSTER" down
    no_new_traces
}
