#!/usr/bin/env bats
# Jobs for GPUs among nodes with and without them, which are objects of KWOK: there is a real
# scheduler, and no kubelet, image or GPU. Method: where pods are bound, and what `kubectl get fj`
# says. The scenario has a cluster of its own, with the controller as a process beside it.

LIMIT=600
repository=$(cd "$BATS_TEST_DIRNAME/.." && pwd)
cluster=$BATS_TEST_DIRNAME/cluster/cluster

eventually() { # eventually COMMAND…: until it succeeds
    local end=$((SECONDS + LIMIT))
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "not within $LIMIT s: $*"; return 1; }
        sleep 0.2
    done >"${BATS_TEST_TMPDIR:-$BATS_FILE_TMPDIR}/eventually" 2>&1
}

# Nodes kwok-1 and kwok-2 have four GPUs each, and the taint that many clusters set on such nodes.
add_gpus() {
    local node
    for node in kwok-1 kwok-2; do
        kubectl patch node "$node" --subresource=status --type=merge -p \
            '{"status": {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"nvidia.com/gpu": "4"}}}'
        kubectl label node "$node" nvidia.com/gpu.present=true
        kubectl taint node "$node" nvidia.com/gpu=present:NoSchedule
    done
}

# A kubeconfig with the rights that the chart gives the controller.
identify() { # identify FILE
    kubectl create namespace fleetjob-system
    helm template fleetjob "$repository/charts/fleetjob" --namespace fleetjob-system \
        --kube-version "$(kubectl get --raw /version | sed -n 's/.*"gitVersion": "\(.*\)",/\1/p')" \
        --show-only templates/serviceaccount.yaml --show-only templates/rbac-jobs.yaml \
        --show-only templates/rbac-installation.yaml | kubectl apply --filename=-
    kubectl config view --raw --minify --flatten >"$1"
    KUBECONFIG=$1 kubectl config unset users
    KUBECONFIG=$1 kubectl config set-credentials "$(KUBECONFIG=$1 kubectl config view \
        -o 'jsonpath={.contexts[0].context.user}')" \
        --token "$(kubectl create token --namespace fleetjob-system fleetjob-controller)"
}

setup_file() {
    if "$cluster" status >/dev/null 2>&1; then
        echo "a cluster is in use; this scenario makes its own"
        return 1
    fi
    "$cluster" up-kwok 4
    eval "$("$cluster" env)"
    add_gpus
    kubectl apply --server-side --filename="$repository/crds"
    eventually kubectl wait --for=condition=Established crd --all --timeout=1s
    identify "$BATS_FILE_TMPDIR/controller.conf"
    "$repository/build/bin/fleetjob-controller" --kubeconfig "$BATS_FILE_TMPDIR/controller.conf" \
        --namespace fleetjob-system --no-election --runtime-image fleet.local/runtime:1 \
        --hub-address 127.0.0.1:17443 --hub-port 17443 --probe-port 18080 \
        >"$BATS_FILE_TMPDIR/controller.log" 2>&1 3>&- &
    echo $! >"$BATS_FILE_TMPDIR/controller.pid"
}

teardown_file() {
    [ ! -e "$BATS_FILE_TMPDIR/controller.pid" ] || kill "$(cat "$BATS_FILE_TMPDIR/controller.pid")"
    "$cluster" down
}

setup() {
    eval "$("$cluster" env)"
}

teardown() {
    [ -n "${BATS_TEST_COMPLETED:-}" ] || {
        kubectl get fj,pods -o wide
        kubectl get fj -o yaml
        tail -n 40 "$BATS_FILE_TMPDIR/controller.log"
    } 2>&1 | sed 's/^/| /'
    kubectl delete fj --all --wait=false
}

# submit NAME GPUS [MORE OF THE POD]: two workers with that many GPUs each
submit() {
    kubectl apply -f - <<JOB
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker:
    replicas: 2
    template:
      spec:
        ${3:-}
        containers:
          - name: trainer
            image: registry.example/fleetjob-runtime-cuda:0.1.0
            env: [{name: FLEET_BACKEND, value: cuda}]
            resources: {limits: {nvidia.com/gpu: $2}}
  training:
    model: {name: gpt, layers: 1, heads: 2, width: 16, context: 8, vocabulary: 256}
    optimizer: {name: adamw, learningRate: 0.001}
    data: {path: /data/text.txt, tokenizer: bytes}
    globalBatchSize: 64
    microBatchSize: 2
    steps: 10
JOB
}

tolerates='tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]'

nodes_of() { # nodes_of JOB: those of its pods, each once
    kubectl get pods -l "fleetjob.dev/job-name=$1" -o jsonpath='{.items[*].spec.nodeName}' |
        tr ' ' '\n' | sort -u | xargs
}

are_bound() { # are_bound JOB COUNT
    [ "$(kubectl get pods -l "fleetjob.dev/job-name=$1" \
        -o jsonpath='{range .items[*]}{.spec.nodeName}{"\n"}{end}' | grep -c kwok)" = "$2" ]
}

listing_has() { # listing_has JOB TEXT
    kubectl get fj "$1" | grep -F -- "$2"
}

scheduled_says() { # scheduled_says JOB TEXT
    kubectl get fj "$1" -o \
        jsonpath='{.status.conditions[?(@.type=="Scheduled")].message}' | grep -F -- "$2"
}

@test "pods that request GPUs go to nodes that have them" {
    submit fits 3 "$tolerates"
    eventually are_bound fits 2
    [ "$(nodes_of fits)" = "kwok-1 kwok-2" ]
    [ "$(kubectl get pods -l fleetjob.dev/job-name=fits -o \
        jsonpath='{.items[0].spec.containers[0].resources.limits.nvidia\.com/gpu}')" = 3 ]
}

@test "more GPUs than a node has: kubectl get fj says that pods find no node, the condition why" {
    submit large 8 "$tolerates"
    eventually listing_has large Unschedulable
    eventually scheduled_says large "Insufficient nvidia.com/gpu"
    are_bound large 0
}

@test "a job that does not tolerate the taint of GPU nodes says so" {
    submit shy 1
    eventually listing_has shy Unschedulable
    eventually scheduled_says shy "untolerated taint"
    are_bound shy 0
}
