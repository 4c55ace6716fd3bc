#!/usr/bin/env bats
# What becomes of a running job when its controller is killed, frozen, upgraded or cut off, and when
# the API server restarts. Method: real signals to real processes; the job ends with the weights of
# `fleetjob run`, and the audit log has the requests of each client.

load lib

setup_file() {
    start_installation 2
}

controller_of() { # controller_of POD: its process number on this machine
    "$cluster" pids "$system/$1" fleetjob-controller
}

has_ended() { # has_ended PID
    ! kill -0 "$1" 2>/dev/null
}

# What that pod's controller changed within lines of the audit log, leases apart.
changes_by() { # changes_by POD FIRST LAST
    sed -n "$2,$3p" "$(audit_log)" | grep -F '"username":"system:serviceaccount:fleetjob-system:fleetjob-controller"' |
        grep -F "\"authentication.kubernetes.io/pod-name\":[\"$1\"]" |
        grep -E '"verb":"(create|update|patch|delete)"' | grep -vF '"resource":"leases"' | grep -E '"code":20[0-9]' || true
}

kill_the_leader() {
    start_job orphan || return
    before=$(as_it_is orphan)
    kill -KILL "$(controller_of "$(leader)")" || return
    ends_like_reference orphan && nothing_noticed orphan "$before"
}

@test "killed in the middle: training goes on, the next one takes over without disturbing it" {
    none_missed orphan kill_the_leader
    remove_job orphan
}

@test "killed, and a trainer at the same time: the next one restarts it" {
    start_endless twice ''
    controller=$(controller_of "$(leader)") trainer=$(trainer_of twice-worker-1-0)
    kill -KILL "$controller"
    kill -KILL "$trainer"
    eventually "$LIMIT" another_holds "$led_by"
    led_by=$(holder)
    eventually "$LIMIT" restarts_are_over twice 1
    stops_like_reference twice
    lost_no_step twice 1
    remove_job twice
}

freeze_the_leader() {
    start_job frozen || return
    before=$(as_it_is frozen)
    sleeper=$(leader)
    pid=$(controller_of "$sleeper")
    kill -STOP "$pid" || return
    eventually "$LIMIT" somebody_leads_but "$sleeper" || return
    first=$(audited)
    kill -CONT "$pid" || true # the kubelet may have ended it meanwhile
    # another one begins in the same pod, and may lead one day
    eventually "$LIMIT" has_ended "$pid" || return
    is_empty changes_by "$sleeper" $((first + 1)) "$(audited)" || return
    ends_like_reference frozen && nothing_noticed frozen "$before"
}

@test "frozen past its lease, then resumed: it does nothing more" {
    none_missed frozen freeze_the_leader
    remove_job frozen
}

upgrade_it() {
    start_job upgraded steps="$LONG" || return
    before=$(as_it_is upgraded)
    helm upgrade fleetjob "$repository/charts/fleetjob" -n "$system" --reuse-values \
        --set-string podAnnotations.changed="$RANDOM$RANDOM" --wait --timeout "${LIMIT}s" || return
    ends_like_reference upgraded "$LONG" && nothing_noticed upgraded "$before"
}

@test "upgraded: the job keeps pods and generation" {
    none_missed upgraded upgrade_it
    remove_job upgraded
}

restart_beside_it() {
    start_job restarted || return
    before=$(as_it_is restarted)
    restart_api_server || return
    ends_like_reference restarted && nothing_noticed restarted "$before"
}

@test "the API server restarts: nothing notices" {
    none_missed restarted restart_beside_it
    remove_job restarted
}

@test "the machinery alone outlives the API server" {
    [ -n "${FLEETJOB_WHOLE:-}" ] || make -s build/release/tests/integration/test_kube_machinery
    FLEET_CLUSTER=$cluster FLEET_TEST_KUBECONFIG=$KUBECONFIG \
        build/release/tests/integration/test_kube_machinery '*outlives*'
}

# The next leader cannot know what the last one never wrote to the API server. That is another
# scenario: the leader changes if the API server is away for longer than a Lease.
@test "a trainer dies while the API server is away" {
    start_endless alone ''
    generation=$(field alone rendezvous.generation)
    pid=$(trainer_of alone-worker-3-0)
    "$cluster" stop apiserver
    kill -KILL "$pid"
    restart_api_server
    eventually "$LIMIT" goes_on alone $((generation + 1))
    stops_like_reference alone
    lost_no_step alone 1
    remove_job alone
}

# In such a generation, and a controller that still leads has reported the restart.
goes_on() { # goes_on JOB GENERATION
    field_at_least "$1" rendezvous.generation "$2" && field_is "$1" state Running &&
        { restarts_are_over "$1" 1 || another_holds "$led_by"; }
}

are_refused() { # are_refused ADDRESS…: the API server has refused a connection from each of them
    local address refused
    refused=$(iptables -w -L INPUT -v -n -x) || return
    for address in "$@"; do
        awk -v address="$address" '/REJECT/ && index($0, " " address " ") && $1 > 0 { found = 1 }
            END { exit !found }' <<<"$refused" || return
    done
}

# The controllers' connections are reset, and new ones refused, until each of them has met that.
cut_watches() {
    local address addresses failed=0
    addresses=$(kubectl get pods -n "$system" -o jsonpath='{.items[*].status.podIP}')
    for address in $addresses; do
        iptables -w -I INPUT -s "$address" -p tcp --dport 6443 -j REJECT --reject-with tcp-reset
    done
    # shellcheck disable=SC2086 # a word for each address
    eventually "$LIMIT" are_refused $addresses || failed=1
    "$@" || failed=1
    for address in $addresses; do
        iptables -w -D INPUT -s "$address" -p tcp --dport 6443 -j REJECT --reject-with tcp-reset
    done
    return $failed
}

apply_while_cut() {
    start_job before-cut || return
    before=$(as_it_is before-cut)
    job_file during-cut replicas=1 steps=50 >"$BATS_TEST_TMPDIR/job.yaml"
    cut_watches kubectl apply -f "$BATS_TEST_TMPDIR/job.yaml" || return
    becomes during-cut Succeeded || return
    ends_like_reference before-cut && nothing_noticed before-cut "$before"
}

@test "its watches are cut: what happened meanwhile is seen" {
    none_missed 'before-cut during-cut' apply_while_cut
    remove_job before-cut
    remove_job during-cut
}

delete_the_lease() {
    start_job leased || return
    before=$(as_it_is leased)
    kubectl delete lease fleetjob-controller -n "$system" || return
    eventually "$LIMIT" somebody_leads_but nobody || return
    ends_like_reference leased && nothing_noticed leased "$before"
}

@test "its lease is deleted: a replica leads again, the job does not notice" {
    none_missed leased delete_the_lease
    remove_job leased
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
