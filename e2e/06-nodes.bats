#!/usr/bin/env bats
# Nodes that vanish while a job trains on them, and come back. Method: the link of a node taken
# down, a node's process 1 killed; the job ends with the weights of `fleetjob run` and leaves
# nothing on any node.

load lib

setup_file() {
    start_installation 2
}

teardown() {
    local code=$?
    [ -n "${BATS_TEST_COMPLETED:-}" ] || diagnose 2>&1 | sed 's/^/| /'
    "$cluster" restore-node 1
    "$cluster" restore-node 2
    return $code
}

node_of() { # node_of NAMESPACE POD: its number
    kubectl get pod "$2" -n "$1" -o jsonpath='{.spec.nodeName}' | cut -d- -f2
}

other_than() { # other_than NODE
    echo $((3 - $1))
}

# One controller a node: the affinity prefers it, a node that was away may have left both on the
# other; then the one that does not lead is made again. Both nodes take pods.
controllers_apart() {
    local pods=(kubectl get pods -n "$system" -l app.kubernetes.io/component=controller)
    kubectl wait --for=condition=Ready nodes --all --timeout=5s || return
    # or all workers go to one node
    is_empty kubectl get nodes -o jsonpath='{.items[*].spec.taints}' || return
    kubectl rollout status deployment/fleetjob-controller -n "$system" --timeout=5s || return
    [ "$("${pods[@]}" -o jsonpath='{.items[*].spec.nodeName}' | tr ' ' '\n' | sort -u | wc -l)" != 2 ] || return 0
    "${pods[@]}" -o name | grep -v "/$(leader)\$" | head -n 1 | xargs -r kubectl delete -n "$system" --wait
    return 1
}

workers_on() { # workers_on JOB NODE: whether some run there
    kubectl get pods -l "fleetjob.dev/job-name=$1" --field-selector "spec.nodeName=node-$2" -o name | grep -q .
}

@test "a node is cut off: its workers are replaced; it comes back: nothing of the job stays there" {
    eventually "$LIMIT" controllers_apart
    eventually "$LIMIT" one_of_them_leads
    lost=$(other_than "$(node_of "$system" "$(leader)")")
    start_endless cut ''
    workers_on cut "$lost"
    "$cluster" lose-node "$lost"
    eventually "$LIMIT" field_is cut "restarts.history[$restarted].cause" MemberLost
    "$cluster" restore-node "$lost"
    stops_like_reference cut # once its pods on that node are gone, too
    remove_job cut
    eventually "$LIMIT" nothing_left_of cut
}

@test "the node of the leading controller loses power: the survivors go on under the next one" {
    eventually "$LIMIT" controllers_apart
    eventually "$LIMIT" one_of_them_leads
    lost=$(node_of "$system" "$(leader)")
    start_job power steps="$LONG" worker='minReplicas: 1'
    workers_on power "$lost"
    "$cluster" crash-node "$lost"
    ends_like_reference power "$LONG"
    "$cluster" restore-node "$lost"
    remove_job power
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
