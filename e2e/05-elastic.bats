#!/usr/bin/env bats
# A job that changes its size, stops and goes on while it trains. Method: kubectl scale and spec
# changes; the weights at the end are those of `fleetjob run`, and the lineage shows that each step
# was done once.

load lib

setup_file() {
    start_installation
}

scale_up_and_down() {
    start_endless scaled 'minReplicas: 1, maxReplicas: 4' replicas=2 || return
    kubectl scale fj scaled --replicas=4 || return
    eventually "$LIMIT" trains_with scaled 4 || return
    kubectl scale fj scaled --replicas=3 || return
    eventually "$LIMIT" trains_with scaled 3 || return
    stops_like_reference scaled || return
    unless_missed scaled field_is scaled restarts.count 0 || return
    [[ "$(field scaled 'restarts.history[*].lostSteps')" =~ ^(0( 0)*)?$ ]]
}

@test "scaled from 2 to 4 to 3 while it trains" {
    none_missed scaled scale_up_and_down
    remove_job scaled
}

# Each generation begins with the step after the last one of the generation before.
suspend_and_resume() {
    local step
    start_endless suspended '' || return
    stops_like_reference suspended || return
    eventually "$LIMIT" no_pods_of suspended || return
    step=$(field suspended checkpoint.step)
    eventually "$LIMIT" field_is suspended progress.step "$step" || return
    kubectl patch fj suspended --type merge -p '{"spec": {"runPolicy": {"suspend": false}}}' ||
        return
    eventually "$LIMIT" field_at_least suspended progress.step $((step + 1)) || return
    field_is suspended 'rendezvous.lineage[-1:].firstStep' $((step + 1)) || return
    unless_missed suspended field_is suspended restarts.count 0 || return
    stops_like_reference suspended
}

@test "suspended and resumed: no step is lost or done twice" {
    none_missed suspended suspend_and_resume
    remove_job suspended
}

no_pods_of() { # no_pods_of JOB
    is_empty pods_of "$1"
}

@test "suspended from the beginning: no pod until it is resumed" {
    job_file asleep steps="$SHORT" policy='suspend: true' | kubectl apply -f -
    becomes asleep Suspended
    no_pods_of asleep
    kubectl patch fj asleep --type merge -p '{"spec": {"runPolicy": {"suspend": false}}}'
    ends_like_reference asleep "$SHORT"
    remove_job asleep
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
