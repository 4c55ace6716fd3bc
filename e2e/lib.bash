# shellcheck shell=bash
# What the scenarios share: the installation, a small job, its reference, words about it.
#
# The reference of a job is `fleetjob run` of the same file on this machine: whatever happens in the
# cluster, the weights at the end are its weights, to the last bit.

repository=$(cd "$BATS_TEST_DIRNAME/.." && pwd)
cluster=$BATS_TEST_DIRNAME/cluster/cluster
images=${FLEETJOB_IMAGES:-$repository/build/images}
system=fleetjob-system
references=${FLEETJOB_REFERENCES:-$BATS_RUN_TMPDIR}
LIMIT=180 # seconds for what takes a few: no machine is that slow, and one that waits so long has failed

# Steps of the small job, three seconds or more: its four workers are faster on more processors, and what a scenario
# does to it must come before its end.
STEPS=$(nproc)
STEPS=$((400 * (STEPS < 2 ? 2 : STEPS > 8 ? 8 : STEPS)))
LONG=$((3 * STEPS)) # of a job that several things happen to

# ---- the installation ------------------------------------------------------------------------------

# A cluster of two nodes with the chart, as it is or made anew; with how many controllers.
start_installation() { # start_installation [CONTROLLERS]
    local controllers=${1:-1}
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

# Not one that an upgrade has ended, and whose Lease stands until it runs out.
one_of_them_leads() {
    local name
    name=$(leader)
    [ -n "$name" ] && [ -z "$(kubectl get pod "$name" -n "$system" -o jsonpath='{.metadata.deletionTimestamp}')" ] &&
        kubectl get pod "$name" -n "$system"
}

stop_installation() {
    [ ! -e "$BATS_FILE_TMPDIR/ours" ] || "$cluster" down
}

audit_log() {
    printf '%s/log/audit.log\n' "$(dirname "$(dirname "$KUBECONFIG")")"
}

# The pod that leads, empty while nobody does.
leader() {
    kubectl get lease fleetjob-controller -n "$system" -o jsonpath='{.spec.holderIdentity}' | cut -d_ -f1
}

# ---- the small job ---------------------------------------------------------------------------------

# A job file: [key=value…] set replicas, steps, and lines of worker, strategy and runPolicy.
job_file() { # job_file NAME [replicas=N] [steps=N] [worker='…'] [policy='…'] [checkpoint='…']
    local name=$1 replicas=4 steps=$STEPS worker='' policy='' checkpoint='' setting
    shift
    for setting in "$@"; do
        local "${setting%%=*}=${setting#*=}"
    done
    cat <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $name}
spec:
  worker: {replicas: $replicas${worker:+, $worker}}
  training:
    model: {name: gpt, layers: 2, heads: 2, width: 64, context: 64}
    data: {tokenizer: synthetic-markov, symbols: 64}
    optimizer: {name: adamw, learningRate: 1.0e-3}
    globalBatchSize: 8
    microBatchSize: 2
    steps: $steps
    ${checkpoint:+checkpoint: {$checkpoint\}}
  ${policy:+runPolicy: {$policy\}}
END
}

start_job() { # start_job NAME [setting…]: and wait until it trains
    job_file "$@" | kubectl apply -f -
    becomes "$1" Running
}

becomes() { # becomes JOB CONDITION [SECONDS]
    kubectl wait "fj/$1" --for="condition=$2" --timeout="${3:-$LIMIT}s"
}

field() { # field JOB PATH: of the job's status, empty if it has none
    kubectl get fj "$1" -o "jsonpath={.status.$2}"
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
    [ "$actual" = "$3" ] || { printf '%s of %s: expected "%s", actual "%s"\n' "$2" "$1" "$3" "$actual"; return 1; }
}

field_at_least() { # field_at_least JOB PATH NUMBER
    local actual
    actual=$(field "$1" "$2")
    [ "${actual:-0}" -ge "$3" ] || { printf '%s of %s: expected at least %s, actual "%s"\n' "$2" "$1" "$3" "$actual"; return 1; }
}

pods_of() { # pods_of JOB: NAME UID a line
    kubectl get pods -l "fleetjob.dev/job-name=$1" -o jsonpath='{range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}'
}

trainer_of() { # trainer_of POD: its process number on this machine
    "$cluster" pids "$1" fleetjob-train | head -n 1
}

kill_trainer() { # kill_trainer POD
    local pid
    pid=$(trainer_of "$1")
    echo "kill -KILL $pid, the trainer in $1"
    kill -KILL "$pid"
}

# ---- at the end ------------------------------------------------------------------------------------

# The weights of `fleetjob run` after so many steps of the small job.
reference() { # reference [STEPS]
    local steps=${1:-$STEPS}
    local file=$references/reference-$steps
    if [ ! -s "$file" ]; then
        job_file reference replicas=4 steps="$steps" >"$file.yaml"
        "$repository/build/bin/fleetjob" run "$file.yaml" --json >"$file.log" || { cat "$file.log"; return 1; }
        grep -oE '"weightsSha256":"[0-9a-f]{64}"' "$file.log" | tail -n 1 | cut -d'"' -f4 >"$file"
    fi
    cat "$file"
}

# It ends well, with the weights of the reference.
ends_like_reference() { # ends_like_reference JOB [STEPS]
    becomes "$1" Succeeded $((3 * LIMIT)) || return
    field_is "$1" result.steps "${2:-$STEPS}" || return
    field_is "$1" result.weightsSha256 "$(reference "${2:-$STEPS}")"
}

nothing_left_of() { # nothing_left_of JOB
    local left
    left=$(kubectl get pods,secrets,services,fleetjobs -A -o name -l "fleetjob.dev/job-name=$1"
        kubectl get fleetjobs -o name --field-selector "metadata.name=$1")
    [ -z "$left" ] || { printf 'left of %s:\n%s\n' "$1" "$left"; return 1; }
}

remove_job() { # remove_job JOB: and see that nothing stays behind
    kubectl delete fj "$1" --wait --timeout="${LIMIT}s"
    eventually "$LIMIT" nothing_left_of "$1"
}

# Told when a scenario fails.
diagnose() {
    kubectl get fj,pods -A -o wide
    kubectl get fj -A -o yaml | sed -n '/^  status:/,/^- apiVersion/p' | sed '/^    plan:/,/^    [a-oq-z]/{/^    [a-oq-z]/!d}'
    kubectl get events -A --sort-by=.lastTimestamp | grep -v MissingClusterDNS | tail -n 30
    kubectl logs -n "$system" -l app.kubernetes.io/component=controller --tail=60 --prefix
    kubectl logs -l fleetjob.dev/job-name --tail=15 --prefix --max-log-requests=20
    "$cluster" status
}

setup() {
    eval "$("$cluster" env)"
    cd "$repository" || return
}

teardown() {
    [ -n "${BATS_TEST_COMPLETED:-}" ] && return 0
    diagnose 2>&1 | sed 's/^/| /'
    kubectl delete fj --all --wait --timeout="${LIMIT}s" >/dev/null 2>&1 || true
}

teardown_file() {
    stop_installation
}
