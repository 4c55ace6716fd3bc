#!/usr/bin/env bats
# What becomes of a running job when its controller is killed, frozen, upgraded or cut off, and when
# the API server restarts. Method: real signals to real processes; the job ends with the weights of
# `fleetjob run`, and the audit log has the requests of each client.

load lib

setup_file() {
    start_installation 2
}

# The job went through it as if nothing had been: the pods it began with, in its first generation.
nothing_noticed() { # nothing_noticed JOB PODS
    [ "$(pods_of "$1")" = "$2" ] || { printf 'pods before:\n%s\nafter:\n%s\n' "$2" "$(pods_of "$1")"; return 1; }
    field_is "$1" 'restarts.history[*].generation' ''
    field_is "$1" rendezvous.generation 1
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

@test "killed in the middle: training goes on, the next one takes over without disturbing it" {
    start_job orphan
    before=$(pods_of orphan)
    killed=$(leader)
    kill -KILL "$(controller_of "$killed")"
    ends_like_reference orphan
    nothing_noticed orphan "$before"
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

@test "frozen past its lease, then resumed: it does nothing more" {
    start_job frozen
    before=$(pods_of frozen)
    sleeper=$(leader)
    pid=$(controller_of "$sleeper")
    kill -STOP "$pid"
    eventually "$LIMIT" somebody_leads_but "$sleeper"
    first=$(audited)
    kill -CONT "$pid" || true # the kubelet may have ended it meanwhile
    eventually "$LIMIT" has_ended "$pid" # another one begins in the same pod, and may lead one day
    run changes_by "$sleeper" $((first + 1)) "$(audited)"
    echo "$output"
    [ -z "$output" ]
    ends_like_reference frozen
    nothing_noticed frozen "$before"
    remove_job frozen
}

@test "upgraded: the job keeps pods and generation" {
    start_job upgraded steps="$LONG"
    before=$(pods_of upgraded)
    helm upgrade fleetjob "$repository/charts/fleetjob" -n "$system" --reuse-values \
        --set-string podAnnotations.changed="$RANDOM$RANDOM" --wait --timeout "${LIMIT}s"
    ends_like_reference upgraded "$LONG"
    nothing_noticed upgraded "$before"
    remove_job upgraded
}

@test "the API server restarts: nothing notices" {
    start_job restarted
    before=$(pods_of restarted)
    restart_api_server
    ends_like_reference restarted
    nothing_noticed restarted "$before"
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
    pid=$(trainer_of alone-worker-3-0)
    "$cluster" stop apiserver
    kill -KILL "$pid"
    restart_api_server
    eventually "$LIMIT" goes_on alone
    stops_like_reference alone
    lost_no_step alone 1
    remove_job alone
}

goes_on() { # goes_on JOB: in a second generation, and one that still leads has reported the restart
    field_at_least "$1" rendezvous.generation 2 && field_is "$1" state Running &&
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

@test "its watches are cut: what happened meanwhile is seen" {
    start_job before-cut
    before=$(pods_of before-cut)
    job_file during-cut replicas=1 steps=50 >"$BATS_TEST_TMPDIR/job.yaml"
    cut_watches kubectl apply -f "$BATS_TEST_TMPDIR/job.yaml"
    becomes during-cut Succeeded
    ends_like_reference before-cut
    nothing_noticed before-cut "$before"
    remove_job before-cut
    remove_job during-cut
}

@test "its lease is deleted: a replica leads again, the job does not notice" {
    start_job leased
    before=$(pods_of leased)
    kubectl delete lease fleetjob-controller -n "$system"
    eventually "$LIMIT" somebody_leads_but nobody
    ends_like_reference leased
    nothing_noticed leased "$before"
    remove_job leased
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
