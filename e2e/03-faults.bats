#!/usr/bin/env bats
# A job in the cluster, left alone, and with trainers, pods and nodes lost on the way. Method: real
# signals and real kubectl; every job ends with the weights of `fleetjob run`.

load lib

setup_file() {
    start_installation
}

@test "apply, and it ends with the weights of fleetjob run" {
    job_file plain steps="$SHORT" | kubectl apply -f -
    ends_like_reference plain "$SHORT"
    field_is plain state Succeeded
    remove_job plain
}

@test "a killed trainer: its pod stays, no step is lost" {
    start_endless killed ''
    before=$(pods_of killed)
    kill_trainer killed-worker-2-0
    eventually "$LIMIT" restarts_are_over killed 1
    [ "$(pods_of killed)" = "$before" ]
    stops_like_reference killed
    field_at_least killed 'restarts.history[?(@.exitCode==137)].generation' 2
    field_is killed 'restarts.history[?(@.exitCode==137)].cause' MemberLost
    field_is killed 'restarts.history[?(@.exitCode==137)].member' 2
    lost_no_step killed 1
    remove_job killed
}

@test "a pod deleted by force: a replacement joins, no step is lost" {
    start_endless deleted ''
    kubectl delete pod deleted-worker-1-0 --force --grace-period=0
    eventually "$LIMIT" has_new_worker deleted 1 4
    eventually "$LIMIT" restarts_are_over deleted 1
    run pods_of deleted
    [[ $output == *deleted-worker-0-0* && $output == *deleted-worker-1-1* &&
        $output == *deleted-worker-2-0* && $output == *deleted-worker-3-0* ]]
    stops_like_reference deleted
    lost_no_step deleted 1
    remove_job deleted
}

@test "trainers killed one after the other: each restart is reported, and counted" {
    start_endless storm ''
    for round in 1 2 3; do
        kill_trainer "storm-worker-$round-0"
        eventually "$LIMIT" restarts_are_over storm "$round"
        field_at_least storm restarts.count "$round"
    done
    stops_like_reference storm
    lost_no_step storm 3
    remove_job storm
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
