#!/usr/bin/env bats
# What people and other tools do to the objects of a running job: its status removed or restored,
# the Lease deleted with it, labels of a worker changed and taken off, the job deleted without its
# pods. Method: kubectl; the weights at the end.

bats_require_minimum_version 1.5.0
load lib

setup_file() {
    start_installation
}

worker() { # worker JOB: the name of its worker 0
    kubectl get pods -l "fleetjob.dev/job-name=$1,fleetjob.dev/worker-index=0" -o jsonpath='{.items[0].metadata.name}'
}

pod_uids() { # pod_uids JOB: by the pods' names, not by their labels
    kubectl get pods -o custom-columns=NAME:.metadata.name,UID:.metadata.uid --no-headers |
        grep "^$1-worker-" | sort
}

remove_status() { # remove_status JOB
    kubectl get fj "$1" -o json | python3 -c 'import json, sys; o = json.load(sys.stdin); o.pop("status", None); json.dump(o, sys.stdout)' |
        kubectl replace --subresource=status -f -
}

is_recorded() { # is_recorded JOB: the generation that it trains in
    field_at_least "$1" rendezvous.generation 1
}

no_restart() { # no_restart JOB
    [[ "$(field "$1" restarts.count)" =~ ^0?$ ]]
}

remove_its_status() {
    start_endless lost '' replicas=2 || return
    before=$(as_it_is lost)
    eventually "$LIMIT" remove_status lost || return
    eventually "$LIMIT" is_recorded lost && becomes lost Running || return
    nothing_noticed lost "$before" && unless_missed lost no_restart lost || return
    stops_like_reference lost
}

@test "a status removed by hand is written again, and no step is lost" {
    none_missed lost remove_its_status
    remove_job lost
}

remove_status_and_lease() {
    start_endless older '' replicas=2 || return
    for _ in 1 2; do # epochs grow with each leader
        was=$(leader)
        kubectl delete pod "$was" -n "$system" --wait || return
        eventually "$LIMIT" one_of_them_leads || return
    done
    before=$(pod_uids older)
    kubectl scale deployment/fleetjob-controller -n "$system" --replicas=0 || return
    eventually "$LIMIT" controllers_are_gone || return
    remove_status older && kubectl delete lease fleetjob-controller -n "$system" || return
    kubectl scale deployment/fleetjob-controller -n "$system" --replicas=1 || return
    eventually "$LIMIT" one_of_them_leads && becomes older Running || return
    eventually "$LIMIT" field_at_least older progress.step 1 || return
    unless_missed older no_restart older || return
    [ "$(pod_uids older)" = "$before" ] || return
    stops_like_reference older
}

@test "status and Lease lost together: the greater epoch of the workers is adopted" {
    none_missed older remove_status_and_lease
    remove_job older
}

label_is_back() { # label_is_back POD
    [ -n "$(kubectl get pod "$1" -o jsonpath='{.metadata.labels.fleetjob\.dev/job-uid}')" ]
}

change_labels() {
    start_endless labels '' replicas=2 || return
    before=$(as_it_is labels)
    pods=$(pod_uids labels)
    pod=$(worker labels)
    kubectl label pod "$pod" --overwrite app.kubernetes.io/managed-by=Helm \
        fleetjob.dev/worker-attempt=7 || return
    kubectl label pod "$pod" fleetjob.dev/job-uid- || return
    eventually "$LIMIT" label_is_back "$pod" || return
    step=$(field labels progress.step)
    eventually "$LIMIT" field_at_least labels progress.step $((${step:-0} + 1)) || return
    [ "$(pod_uids labels)" = "$pods" ] || return # by their names
    nothing_noticed labels "$before" && stops_like_reference labels
}

@test "labels of a worker that are changed or taken off make no second worker" {
    none_missed labels change_labels
    remove_job labels
}

# The controller ends the pods when it sees the deletion, for every propagation policy.
@test "workers of a job that is deleted with --cascade=orphan end" {
    start_job orphan replicas=2 steps=10000000
    kubectl delete fj orphan --cascade=orphan
    eventually "$LIMIT" have_ended orphan
    kubectl delete pods,services,secrets -l fleetjob.dev/job-name=orphan
}

@test "a name that Kubernetes has no Service for is refused at apply" {
    run bash -c 'kubectl apply --dry-run=server -f - 2>&1' <<<"$(job_file 3d-unet)"
    echo "$output"
    [ "$status" != 0 ] && [[ $output == *"begin with a letter"* ]]
}
