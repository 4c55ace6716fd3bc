#!/usr/bin/env bash
# The demo on a real Kubernetes: two nodes on this machine, the chart by Helm,
# docs/examples/gpt-text.yaml by kubectl; one trainer is killed and one worker pod is deleted on the
# way; the weights at the end are compared with those of `fleetjob run`.
#
#   tools/demo.sh [--data PATH]      another text to learn (a file or folder below 1 MB)
#   tools/demo.sh --down             stop the cluster
#
# `make demo` has built programs and images before. Ctrl-C ends this script and leaves the cluster
# as it is; a later run goes on with it.
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=e2e/cluster/cluster
job=docs/examples/gpt-text.yaml
name=gpt-text
text=/usr/share/common-licenses
system=fleetjob-system
began=$SECONDS

say() {
    printf '\n== %s (%d s)\n' "$*" $((SECONDS - began))
}

shown() { # shown COMMAND…: tell it, then run it
    printf '$ %s\n' "$*"
    "$@"
}

finish() {
    local code=$?
    trap - EXIT INT TERM
    stop_following
    rm -rf "$work"
    if [ "$code" != 0 ] && [ -n "${KUBECONFIG:-}" ]; then
        printf '\nThe demo ended early; what it has started is still there.\n'
        what_next
    fi
    exit "$code"
}

what_next() {
    cat <<END

Try next:
  export KUBECONFIG=$KUBECONFIG PATH=$cache_bin:\$PATH
  kubectl get fj                               # how is my job
  kubectl describe fj $name                    # why: conditions, restarts, events
  kubectl logs $name-worker-0-0                # what a worker said
  kubectl delete fj $name
  kubectl apply -f docs/examples/resnet-cifar.yaml --dry-run=server
  make demo                                    # again, on the same cluster
Stop it:
  make demo-down
END
}

# ---- the cluster and what is installed in it -----------------------------------------------------

install_chart() {
    local state image
    state=$(helm status fleetjob -n "$system" -o json 2>/dev/null |
        grep -oE '"status":"[a-z-]+"' | head -n 1 || true)
    case $state in # an interrupted helm leaves its release locked
    *pending* | *uninstalling*) helm uninstall fleetjob -n "$system" --wait >/dev/null ;;
    esac
    image=$(sha256sum build/images/fleetjob-controller.tar | cut -c1-12)
    echo "\$ helm upgrade --install fleetjob charts/fleetjob -n $system --create-namespace --wait"
    helm upgrade --install fleetjob charts/fleetjob -n "$system" --create-namespace --wait \
        --timeout 300s \
        --set podAnnotations.image="$image" >"$work/helm" || { cat "$work/helm"; return 1; }
    kubectl get pods -n "$system"
}

# The same image twice need not be brought to the nodes.
load_images() {
    local digest
    digest=$(sha256sum build/images/fleetjob-{controller,runtime}.tar | sha256sum)
    if [ "$digest" != "$(cat "$loaded" 2>/dev/null || true)" ]; then
        "$cluster" load build/images/fleetjob-{controller,runtime}.tar
        printf '%s\n' "$digest" >"$loaded"
    fi
}

# ---- text and disk -------------------------------------------------------------------------------

# What `fleetjob run` reads of a folder: its files, without links to one another.
apply_text() {
    local file files=() bytes=0
    if [ -f "$text" ]; then
        files=("$text")
    else
        for file in "$text"/*; do
            [ ! -f "$file" ] || [ -L "$file" ] || files+=("$file")
        done
    fi
    [ ${#files[@]} -gt 0 ] || { echo "demo: $text holds no text" >&2; return 1; }
    for file in "${files[@]}"; do
        bytes=$((bytes + $(stat -c %s "$file")))
    done
    [ "$bytes" -lt 1000000 ] || { echo "demo: $text has $bytes bytes, a ConfigMap takes 1000000; make demo-local takes any" >&2; return 1; }
    echo "\$ kubectl create configmap $name --from-file=…    # ${#files[@]} files of $text"
    kubectl create configmap "$name" "${files[@]/#/--from-file=}" --dry-run=client -o yaml |
        kubectl apply --server-side --force-conflicts -f -
}

# A folder of this machine as a PersistentVolume; a claim of that name that is there is taken as it
# is.
apply_disk() {
    ! kubectl get pvc "$name" >/dev/null 2>&1 || return 0
    install -d -m 775 -o 65532 -g 65532 "$volume"
    kubectl apply -f - <<END
apiVersion: v1
kind: PersistentVolume
metadata: {name: $name}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  claimRef: {namespace: default, name: $name}
  hostPath: {path: $volume}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $name}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: $name
  resources: {requests: {storage: 1Gi}}
END
    kubectl wait "pvc/$name" --for=jsonpath='{.status.phase}'=Bound --timeout=60s >/dev/null
}

# ---- the job -------------------------------------------------------------------------------------

field() { # field PATH: of the job, empty if it has none
    kubectl get fj "$name" -o "jsonpath={.$1}"
}

until_job() { # until_job SECONDS WHAT TEST…: poll until the test holds; fail if the job is over
    local deadline=$((SECONDS + $1)) what=$2 state
    shift 2
    until "$@"; do
        state=$(field status.state)
        if [ "$state" = Failed ] || [ $SECONDS -ge "$deadline" ]; then
            printf '\ndemo: %s did not come; the job is %s\n' "$what" \
                "${state:-not seen by the controller}" >&2
            kubectl describe fj "$name" >&2
            kubectl logs -n "$system" deployment/fleetjob-controller --tail=20 >&2
            return 1
        fi
        sleep 0.2
    done
}

reached() { # reached STEP
    local step
    step=$(field status.progress.step)
    [ "${step:-0}" -ge "$1" ] || is_over
}
restarted() { # restarted COUNT
    local count
    count=$(field status.restarts.count)
    [ "${count:-0}" -ge "$1" ]
}
all_train() { # all_train POD: it has been replaced, and all work again
    ! kubectl get pod "$1" >/dev/null 2>&1 && field_is status.state Running &&
        field_is status.workers.ready "$(field status.workers.desired)"
}
field_is() { # field_is PATH VALUE
    [ "$(field "$1")" = "$2" ]
}
is_over() {
    field_is status.state Succeeded
}

# Status and log as they come, each line marked with where it is from.
follow() {
    kubectl get fj "$name" -w > >(sed -u 's/^/  fj   │ /') 2>/dev/null &
    followers+=($!)
    kubectl logs -f "$name-worker-0-0" > >(sed -u 's/^/  log  │ /') 2>/dev/null &
    followers+=($!)
}

stop_following() {
    [ ${#followers[@]} -gt 0 ] || return 0
    kill "${followers[@]}" 2>/dev/null || true
    wait "${followers[@]}" 2>/dev/null || true
    followers=()
}

kill_trainer() {
    local pod=$name-worker-3-0 pid
    pid=$("$cluster" pids "$pod" fleetjob-train | head -n 1)
    [ -n "$pid" ] || return 0
    printf '\n  demo │ kill -KILL %s, the trainer in %s\n' "$pid" "$pod"
    kill -KILL "$pid" 2>/dev/null || true
}

milliseconds() {
    date +%s%3N
}

delete_pod() {
    local pod=$name-worker-1-0
    printf '\n  demo │ kubectl delete pod %s --force\n' "$pod"
    deleted_at=$(milliseconds)
    kubectl delete pod "$pod" --force --grace-period=0 >/dev/null 2>&1
    until_job 90 "a replacement of $pod" all_train "$pod"
    replaced_ms=$(($(milliseconds) - deleted_at))
}

# The restarts as the status has them, a line each.
tell_restarts() {
    local generation cause member detect agree connect restore resume lost
    kubectl get fj "$name" -o jsonpath='{range .status.restarts.history[*]}{.generation} {.cause} {.member} {.detectMs} {.agreeMs} {.connectMs} {.restoreMs} {.resumeMs} {.lostSteps}{"\n"}{end}' |
        while read -r generation cause member detect agree connect restore resume lost; do
            printf '  generation %s, %s of member %s: detected after %.1f ms, agreed in %.0f ms, connected in %.0f ms, restored in %.0f ms;\n' \
                "$generation" "$cause" "$member" "$detect" "$agree" "$connect" "$restore"
            printf '    ready for the next step after %.0f ms, with %s steps lost\n' "$resume" \
                "$lost"
        done
    printf '  from the deletion of the pod until all four trained again, its replacement too: %d.%03d s\n' \
        $((replaced_ms / 1000)) $((replaced_ms % 1000))
}

tell_loss() {
    printf '  loss %s at step %s, %s at step %s\n' "$first_loss" "$first_step" \
        "$(field status.result.loss)" "$(field status.result.steps)"
}

# ---- the same job without Kubernetes -------------------------------------------------------------

# Its digest, from a run of this very program on this job and text: now, or earlier and noted down.
local_digest() {
    local noted
    noted=build/demo/$(cat build/bin/fleetjob{,-agent,-train} "$job" \
        <(find "$text" -type f -exec cat {} +) | sha256sum | cut -c1-16)
    if [ ! -s "$noted" ]; then
        build/bin/fleetjob run "$job" "${data[@]}" --json >"$work/local" || { cat "$work/local" >&2;
            return 1; }
        mkdir -p build/demo
        grep -oE '"weightsSha256":"[0-9a-f]{64}"' "$work/local" | tail -n 1 |
            cut -d'"' -f4 >"$noted"
    fi
    cat "$noted"
}

compare() {
    local ours theirs
    ours=$(field status.result.weightsSha256)
    printf '  weights after %s steps in the cluster          SHA-256 %s\n' \
        "$(field status.result.steps)" "$ours"
    theirs=$(local_digest)
    printf '  weights of fleetjob run, without Kubernetes     SHA-256 %s\n' "$theirs"
    if [ "$ours" = "$theirs" ]; then
        echo "  They are the same, to the last bit."
    else
        echo "  They differ: that must not be." >&2
        return 1
    fi
}

# ---- the demo ------------------------------------------------------------------------------------

data=()
case ${1:-} in
--down)
    shown "$cluster" down
    exit
    ;;
--data)
    text=$(realpath "${2:?tools/demo.sh --data PATH}")
    data=(--data "$text")
    ;;
esac

followers=()
work=$(mktemp -d)
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "A Kubernetes of two nodes"
shown "$cluster" up 2
eval "$("$cluster" env)"
cache_bin=${PATH%%:*}
state=$(dirname "$(dirname "$KUBECONFIG")")
volume=$state/volumes/$name loaded=$state/volumes/loaded-images
mkdir -p "$state/volumes"
kubectl get nodes

say "Images and chart"
load_images
install_chart

say "The job: its text in a ConfigMap, its checkpoints on a PersistentVolume"
kubectl delete fj "$name" --ignore-not-found --wait --timeout=60s
kubectl wait pods -l "fleetjob.dev/job-name=$name" --for=delete --timeout=60s >/dev/null
apply_text
apply_disk
shown kubectl apply -f "$job"
until_job 90 "the first worker" kubectl wait "pod/$name-worker-0-0" --for=condition=Ready \
    --timeout=1s >/dev/null 2>&1
echo "\$ kubectl get fj $name -w & kubectl logs -f $name-worker-0-0"
follow
until_job 120 "a step" reached 1
first_step=$(field status.progress.step) first_loss=$(field status.progress.loss)
until_job 300 "step 40" reached 40
kill_trainer
until_job 60 "a restart" restarted 1
until_job 60 "training after it" field_is status.state Running
sleep 3
delete_pod
until_job 600 "the end" is_over
sleep 1
stop_following

say "Succeeded"
kubectl get fj "$name" -o wide
echo
tell_loss
tell_restarts
compare
what_next
