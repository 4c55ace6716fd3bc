# shellcheck shell=bash
# What the scenarios share: the installation, words about jobs, what is left of them. A file whose
# jobs are in another namespace sets `namespace` after loading this.

repository=$(cd "$BATS_TEST_DIRNAME/.." && pwd)
cluster=$BATS_TEST_DIRNAME/cluster/cluster
images=${FLEETJOB_IMAGES:-$repository/build/images}
system=fleetjob-system
namespace=default
references=${FLEETJOB_REFERENCES:-$BATS_RUN_TMPDIR}
# seconds for what takes a few: no machine is that slow, and one that waits so long has failed
LIMIT=600
# shellcheck source=e2e/job.bash
. "$BATS_TEST_DIRNAME/job.bash"
use_steps

# ---- the installation ----------------------------------------------------------------------------

# A cluster of two nodes with the chart, as it is or made again; with how many controllers.
start_installation() { # start_installation [CONTROLLERS]
    local controllers=${1:-1}
    measure_steps
    if ! "$cluster" status >/dev/null 2>&1; then
        "$cluster" up 2
        touch "$BATS_FILE_TMPDIR/ours"
    fi
    eval "$("$cluster" env)"
    if ! kubectl get deployment fleetjob-controller -n "$system" >/dev/null 2>&1; then
        "$cluster" load "$images"/fleetjob-{controller,runtime}.tar
    fi
    helm upgrade --install fleetjob "$repository/charts/fleetjob" -n "$system" --create-namespace \
        --set replicas="$controllers" --wait --timeout "${LIMIT}s"
    eventually "$LIMIT" one_of_them_leads
}

# Not one that an upgrade is about to end, nor one that it has ended and whose Lease stands until it
# runs out.
one_of_them_leads() {
    local name
    kubectl rollout status deployment/fleetjob-controller -n "$system" --timeout=5s || return
    name=$(leader)
    [ -n "$name" ] &&
        [ -z "$(kubectl get pod "$name" -n "$system" -o jsonpath='{.metadata.deletionTimestamp}')" \
        ] &&
        kubectl get pod "$name" -n "$system"
}

somebody_leads_but() { # somebody_leads_but POD
    local now
    now=$(leader)
    [ -n "$now" ] && [ "$now" != "$1" ]
}

# Another process than this one, of the same pod or not.
another_holds() { # another_holds HOLDER
    local now
    now=$(holder)
    [ -n "$now" ] && [ "$now" != "$1" ]
}

controllers_are_gone() {
    local left
    left=$(kubectl get pods -n "$system" -l app.kubernetes.io/component=controller -o name) &&
        [ -z "$left" ]
}

# Stopped and started with the same data. Ready, it may not serve FleetJobs yet.
restart_api_server() {
    "$cluster" restart apiserver
    eventually "$LIMIT" kubectl get fj -A
}

stop_installation() {
    [ ! -e "$BATS_FILE_TMPDIR/ours" ] || "$cluster" down
}

audit_log() {
    printf '%s/log/audit.log\n' "$(dirname "$(dirname "$KUBECONFIG")")"
}

audited() { # lines of the audit log so far
    wc -l <"$(audit_log)"
}

# The pod that leads, empty while nobody does.
leader() {
    kubectl get lease fleetjob-controller -n "$system" -o jsonpath='{.spec.holderIdentity}' |
        cut -d_ -f1
}

# The process that leads: a pod may hold several, one after the other.
holder() {
    kubectl get lease fleetjob-controller -n "$system" -o jsonpath='{.spec.holderIdentity}'
}

# On a machine that is busy enough a leader loses its Lease, and the next hub does not know why a
# pod went that nobody has recorded; or a worker is missed. Then the scenario is played again.
undisturbed() { # undisturbed JOB COMMAND…: it may fail only if one of them happened meanwhile
    local job=$1 before
    shift
    for _ in 1 2 3 4 5; do
        eventually "$LIMIT" one_of_them_leads || return
        before=$(holder)
        "$@" && return
        [ "$(holder)" != "$before" ] || has_missed_one "$job" || return 1
        make_room "$job" || return
    done
    return 1
}

# The hub misses a worker that says nothing for 2.5 s. A machine that is busy enough does that to
# any worker, in any scenario, and the job makes a generation more than the scenario expects.
has_missed_one() { # has_missed_one JOB
    kubectl get fj "$1" -n "$namespace" -o jsonpath='{.status}' |
        grep -oE '"MemberLost"|silent for|without a connection for'
}

unless_missed() { # unless_missed JOB COMMAND…: false if the command is, and 3 if one was missed
    "${@:2}" || { has_missed_one "$1" && return 3; return 1; }
}

# Play a scenario that returns 3 again. One that misses a worker each time has failed.
none_missed() { # none_missed 'JOB…' COMMAND…
    local jobs=$1 job code
    shift
    for _ in 1 2 3 4 5; do
        code=0
        "$@" || code=$?
        [ $code = 3 ] || return $code
        echo "a worker was missed: once more"
        for job in $jobs; do
            make_room "$job" || return
        done
    done
    return 1
}

make_room() { # make_room JOB: for another one of the name
    kubectl delete fj "$1" -n "$namespace" --wait || return
    eventually "$LIMIT" nothing_left_of "$1"
}

# ---- the small job -------------------------------------------------------------------------------

# A job that may be over before the next line runs: only for what holds then, too.
# $led_by is its leader then, and $restarted how many restarts it has had: a start may be slow.
start_job() { # start_job NAME [setting…]: and wait until it trains
    job_file "$@" | kubectl apply -n "$namespace" -f - || return
    becomes "$1" Running || return
    led_by=$(holder)
    restarted=$(restarts_of "$1")
}

# A job that trains until it is stopped, however long it takes what a scenario does to it. It saves
# then, into a folder that both nodes see. WORKER: lines of its worker, '' for none.
start_endless() { # start_endless NAME WORKER [setting…]
    local name=$1 worker=$2 folder
    shift 2
    folder=$(volume_folder "$name")
    start_job "$name" steps=1000000 checkpoint='path: /checkpoints, everySteps: 1000000' \
        worker="${worker:+$worker, }volumes: [{name: checkpoints, mountPath: /checkpoints, hostPath: $folder}]" \
        "$@"
}

volumes() {
    printf '%s/volumes\n' "$(dirname "$(dirname "$KUBECONFIG")")"
}

volume_folder() { # volume_folder NAME: a fresh one that all may write, which both nodes see
    local folder
    folder=$(volumes)/$1
    rm -rf "$folder"
    install -d -m 777 "$folder"
    echo "$folder"
}

becomes() { # becomes JOB CONDITION [SECONDS]
    kubectl wait -n "$namespace" "fj/$1" --for="condition=$2" --timeout="${3:-$LIMIT}s"
}

field() { # field JOB PATH: of the job's status, empty if it has none
    kubectl get fj "$1" -n "$namespace" -o "jsonpath={.status.$2}"
}

# eventually SECONDS COMMAND…: poll until it holds; its last output is shown if it does not.
eventually() {
    local deadline=$((SECONDS + $1)) told=${BATS_TEST_TMPDIR:-$BATS_FILE_TMPDIR}/eventually
    shift
    until "$@" >"$told" 2>&1; do
        if [ $SECONDS -ge "$deadline" ]; then
            printf 'it did not come to: %s\n' "$*"
            cat "$told"
            return 1
        fi
        sleep 0.3
    done
}

field_is() { # field_is JOB PATH VALUE
    local actual
    actual=$(field "$1" "$2")
    [ "$actual" = "$3" ] || { printf '%s of %s: expected "%s", actual "%s"\n' "$2" "$1" "$3" \
        "$actual"; return 1; }
}

field_at_least() { # field_at_least JOB PATH NUMBER
    local actual
    actual=$(field "$1" "$2")
    [ "${actual:-0}" -ge "$3" ] || {
        printf '%s of %s: expected at least %s, actual "%s"\n' "$2" "$1" "$3" "$actual"; return 1; }
}

trains_with() { # trains_with JOB MEMBERS [PODS]: so many train; the others are ready, as spares
    field_is "$1" state Running && field_is "$1" rendezvous.members "$2" &&
        field_is "$1" workers.ready "${3:-$2}" && [ "$(pods_of "$1" | wc -l)" = "${3:-$2}" ]
}

restarts_of() { # restarts_of JOB: how many its history has
    field "$1" 'restarts.history[*].generation' | wc -w
}

# It trains, and so many generations have followed since $restarted was set: each is in the history
# once it has done a step. One loss may cost two of them: a worker that is found dead later than its
# neighbour.
restarts_are_over() { # restarts_are_over JOB COUNT: so many at least
    field_is "$1" state Running && [ "$(restarts_of "$1")" -ge $((restarted + $2)) ]
}

# So many restarts at least since $restarted was set are in the history, and none has lost a step. A
# hub that another one has followed since $led_by was set may have taken the numbers along.
lost_no_step() { # lost_no_step JOB RESTARTS
    local lost
    lost=$(field "$1" 'restarts.history[*].lostSteps') || return
    if ! [[ $lost =~ ^(0( 0)*)?$ ]] ||
        { [ "$(wc -w <<<"$lost")" -lt $((restarted + $2)) ] && [ "$(holder)" = "$led_by" ]; }; then
        printf 'expected %s restarts without a lost step, actual "%s"\n' "$2" "$lost"
        return 1
    fi
}

# The next pod of the worker is a member, and so many train.
has_new_worker() { # has_new_worker JOB INDEX COUNT
    field_at_least "$1" rendezvous.generation 2 && field_at_least "$1" "attempts.$2" 1 &&
        field_is "$1" state Running && field_is "$1" workers.ready "$3"
}

# condition_says JOB CONDITION WORDS…: the condition has all of the words, in reason or message
condition_says() {
    local text words
    text=$(kubectl get fj "$1" -n "$namespace" \
        -o jsonpath="{.status.conditions[?(@.type==\"$2\")]['reason','message']}")
    for words in "${@:3}"; do
        [[ $text == *"$words"* ]] || { printf 'expected: %s\nactual: %s\n' "$words" "$text"; return 1; }
    done
}

describes() { # describes JOB WORDS…: what kubectl tells has all of them
    local text words
    text=$(kubectl describe fj "$1" -n "$namespace")
    for words in "${@:2}"; do
        [[ $text == *"$words"* ]] || { printf 'expected: %s\nactual:\n%s\n' "$words" "$text"; return 1; }
    done
}

pods_of() { # pods_of JOB: NAME UID a line
    kubectl get pods -n "$namespace" -l "fleetjob.dev/job-name=$1" \
        -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}'
}

# What a job is before something that it must not notice: its pods, and the newest generation. A
# slow start may have cost it some. Once it is Running, the newest one has made a step.
as_it_is() { # as_it_is JOB
    pods_of "$1" && field "$1" rendezvous.generation
}

# The job went through it as if nothing had been: its pods, and no generation after that one.
nothing_noticed() { # nothing_noticed JOB AS-IT-WAS
    unless_missed "$1" is_still "$@"
}

is_still() { # is_still JOB AS-IT-WAS
    local now newest
    now=$(as_it_is "$1") && newest=$(field "$1" 'restarts.history[-1:].generation') || return
    [ "$now" = "$2" ] && [ "${newest:-0}" -le "${2##*$'\n'}" ] || {
        printf 'before:\n%s\nafter:\n%s\nnewest restart: "%s"\n' "$2" "$now" "$newest"
        return 1
    }
}

# is_empty COMMAND…: it succeeds and prints nothing. [ -z "$(COMMAND)" ] is also true if it fails.
is_empty() {
    local printed
    printed=$("$@") || return
    [ -z "$printed" ] || { echo "$printed"; return 1; }
}

have_ended() { # have_ended JOB: its pods, by their names
    local pods
    pods=$(kubectl get pods -n "$namespace" --no-headers) || return
    ! grep "^$1-worker-" <<<"$pods" | grep -E 'Running|Pending|Init|Terminating'
}

trainer_of() { # trainer_of POD: its process number on this machine
    "$cluster" pids "$1" fleetjob-train | head -n 1
}

# Of its first container. The hub learns of a pod before the kubelet tells the API server that it
# runs, and until then the server has no log: ask `eventually`.
log_has() { # log_has POD WORDS
    kubectl logs -n "$namespace" "$1" | grep -F -- "$2"
}

kill_trainer() { # kill_trainer POD
    local pid
    pid=$(trainer_of "$1")
    echo "kill -KILL $pid, the trainer in $1"
    kill -KILL "$pid"
}

# ---- at the end ----------------------------------------------------------------------------------

# It ends well, with the weights of the reference.
ends_like_reference() { # ends_like_reference JOB [STEPS]
    becomes "$1" Succeeded $((3 * LIMIT)) || return
    field_is "$1" result.steps "${2:-$STEPS}" || return
    field_is "$1" result.weightsSha256 "$(reference "${2:-$STEPS}")"
}

# An endless job is suspended: it has saved the weights of the reference after as many steps.
stops_like_reference() { # stops_like_reference JOB
    local step weights said=$BATS_TEST_TMPDIR/stopped
    kubectl patch fj "$1" -n "$namespace" --type merge \
        -p '{"spec": {"runPolicy": {"suspend": true}}}' || return
    becomes "$1" Suspended || return
    step=$(field "$1" checkpoint.step)
    echo "suspended after step $step"
    [ "${step:-0}" -gt 0 ] || return
    weights=$(reference "$step") || return
    "$repository/build/bin/fleetjob" export "$(volumes)/$1" - 2>"$said" >/dev/null || {
        cat "$said"; return 1; }
    [[ $(cat "$said") == *" of step $step "*"weights SHA-256 $weights"* ]] || {
        printf 'expected weights %s\n' "$weights"; cat "$said"; return 1; }
}

# Kubernetes takes seconds to clear up after a job. Nobody waits for it but the last test of a file:
# nothing_left.
remove_job() { # remove_job JOB
    kubectl delete fj "$1" -n "$namespace" --wait=false
}

nothing_left_of() { # nothing_left_of JOB
    nothing_left "=$1"
}

nothing_left() { # of any job, wherever it was
    local left jobs
    left=$(kubectl get pods,secrets,services -A -o name -l "fleetjob.dev/job-name${1:-}") || return
    jobs=$(kubectl get fleetjobs -A -o name ${1:+--field-selector "metadata.name$1"}) || return
    [ -z "$left$jobs" ] || { printf 'left:\n%s\n%s\n' "$jobs" "$left"; return 1; }
}

# Told when a scenario fails.
diagnose() {
    kubectl get fj,pods -A -o wide
    kubectl get fj -A -o yaml | sed -n '/^  status:/,/^- apiVersion/p' |
        sed '/^    plan:/,/^    [a-oq-z]/{/^    [a-oq-z]/!d}'
    kubectl get events -A --sort-by=.lastTimestamp | grep -v MissingClusterDNS | tail -n 30
    kubectl logs -n "$system" -l app.kubernetes.io/component=controller --tail=60 --prefix
    kubectl logs -n "$namespace" -l fleetjob.dev/job-name --tail=15 --prefix --max-log-requests=20
    "$cluster" status
}

setup() {
    eval "$("$cluster" env)"
    cd "$repository" || return
}

teardown() {
    [ -n "${BATS_TEST_COMPLETED:-}" ] && return 0
    diagnose 2>&1 | sed 's/^/| /'
    kubectl delete fj --all -n "$namespace" --wait --timeout="${LIMIT}s" >/dev/null 2>&1 || true
}

teardown_file() {
    stop_installation
}
