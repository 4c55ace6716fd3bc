#!/usr/bin/env bats
# The cluster itself, before FleetJob runs in it: pods, a lost node, a crashed one, a second
# cluster, the API server away. The last file (09-down) checks what it leaves behind. Method: the
# real thing.

setup_file() {
    export CLUSTER="$BATS_TEST_DIRNAME/cluster/cluster"
    if ! "$CLUSTER" status >/dev/null 2>&1; then
        touch "$BATS_FILE_TMPDIR/ours"
        "$CLUSTER" up 2
    fi
    "$BATS_TEST_DIRNAME/cluster/image.sh" "$BATS_FILE_TMPDIR/busybox.tar" fleet.local/busybox:1 /bin/busybox
    "$CLUSTER" load "$BATS_FILE_TMPDIR/busybox.tar"
}

setup() {
    eval "$("$CLUSTER" env)"
}

teardown_file() {
    [ ! -e "$BATS_FILE_TMPDIR/ours" ] || "$CLUSTER" down
}

run_pod() { # run_pod NAME NODE ARGUMENT…: busybox with the arguments, on that node
    local name=$1 node=$2
    shift 2
    kubectl run "$name" --image=fleet.local/busybox:1 --restart=Never --overrides \
        '{"spec": {"nodeName": "'"$node"'", "terminationGracePeriodSeconds": 0,
          "dnsPolicy": "Default"}}' -- "$@"
}

finished() { # finished POD: wait until it has ended, then print its log
    kubectl wait --for=jsonpath='{.status.phase}'=Succeeded "pod/$1" --timeout=600s >&2
    kubectl logs "$1"
}

@test "up again changes nothing and succeeds" {
    local before
    before=$(components)
    run "$CLUSTER" up 2
    [ "$status" = 0 ]
    [ "$(components)" = "$before" ]
}

components() { # and their process numbers, without the nodes, which have an age
    "$CLUSTER" status | grep -E '^[^ ]+ +[0-9]+$'
}

@test "a pod on one node reaches a pod on the other, logs and exec work, delete removes it" {
    run_pod server node-1 nc -l -p 8080 -e /bin/busybox echo hello
    kubectl wait --for=condition=Ready pod/server --timeout=600s
    address=$(kubectl get pod server -o jsonpath='{.status.podIP}')
    run kubectl exec server -- /bin/busybox echo executed
    [ "$output" = executed ]
    # Ready says that it has started, not that it listens yet.
    run_pod client node-2 sh -c "until /bin/busybox nc -w 600 $address 8080; do /bin/busybox sleep 0.2; done"
    run finished client
    [[ $output == *hello* ]]
    kubectl delete pod server client --wait
    left=$(kubectl get pods -o name)
    [ -z "$left" ]
}

@test "a second cluster is refused with the way out" {
    run env FLEETJOB_CLUSTER_DIR="$BATS_TEST_TMPDIR/second" "$CLUSTER" up 1
    [ "$status" != 0 ]
    [[ $output == *"already runs on this machine"*"stop it:"* ]]
    kubectl get nodes
}

@test "a lost node becomes NotReady and comes back" {
    "$CLUSTER" lose-node 2
    kubectl wait --for=condition=Ready=Unknown node/node-2 --timeout=600s
    "$CLUSTER" restore-node 2
    kubectl wait --for=condition=Ready node/node-2 --timeout=600s
}

@test "a crashed node comes back and runs pods again" {
    run_pod doomed node-2 sleep 1000
    kubectl wait --for=condition=Ready pod/doomed --timeout=600s
    "$CLUSTER" crash-node 2
    run "$CLUSTER" pid kubelet-2
    [ "$status" != 0 ]
    "$CLUSTER" restore-node 2
    kubectl delete pod doomed --wait --timeout=600s
    run_pod again node-2 echo alive
    run finished again
    [[ $output == *alive* ]]
    kubectl delete pod again --wait
}

@test "the API server can be stopped and started" {
    local before
    before=$("$CLUSTER" pid apiserver)
    "$CLUSTER" restart apiserver
    [ "$("$CLUSTER" pid apiserver)" != "$before" ]
    kubectl get nodes
}
