#!/usr/bin/env bash
# What a thousand pods cost on a real API server: time and requests, beside a bare loop and other
# operators.
#
#   tests/bench/cluster.sh [PODS [ROUNDS]]    1000 pods, 3 rounds; needs root
#
# Kubernetes with KWOK's nodes (e2e/cluster) is brought up, measured and taken down. First without a
# scheduler, so that nothing but making pods takes time; then with it, until all run. The rivals
# have no limit on their requests. Before each measurement the servers clean up after the one before
# it (bench_pods waits until they are idle). All controllers have tokens of service accounts, as
# they have in pods, and ours has the rights of its chart:
#   loop         POSTs the same finished bodies, as many at once as the controller
#   job          an Indexed Job of Kubernetes' own controller manager; other operators use it
#   pytorchjob   Kubeflow's training operator, built from its Go module (minutes, the first time)
#   jobset       the controller of JobSets, built likewise
set -euo pipefail
cd "$(dirname "$0")/../.."
pods=${1:-1000} rounds=${2:-3}
cluster=e2e/cluster/cluster
cache=${FLEETJOB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fleetjob}
logs=build/bench-cluster
mkdir -p "$logs"

# shellcheck source=/dev/null
go=$(. e2e/cluster/common.sh && . e2e/cluster/prerequisites.sh && . e2e/cluster/build.sh &&
    { find_go || { install_go >&2 && find_go; }; })

# shellcheck source=/dev/null
kubernetes=$(. e2e/cluster/common.sh && echo "$KUBERNETES_VERSION")

# Rivals: name, WHO of bench_pods, Go module, version, its CRD within the module.
rivals=(
    'training-operator pytorchjob github.com/kubeflow/training-operator 1.8.1
        manifests/base/crds/kubeflow.org_pytorchjobs.yaml'
    'jobset jobset sigs.k8s.io/jobset 0.8.0
        config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml'
)

build_rival() { # build_rival NAME VERSION: its program is $program
    program=$cache/bin/$1-$2
    [ ! -x "$program" ] || return 0
    echo "Building $1 $2 into $program (minutes, the first time)"
    CGO_ENABLED=0 nice -n 15 "$go" -C "tests/bench/$1" build -trimpath -o "$program" .
}

start_rival() { # start_rival NAME WHO MODULE VERSION CRD
    build_rival "$1" "$4" || { echo "without $1: it could not be built"; return 0; }
    "$go" -C "tests/bench/$1" mod download "$3"
    install_crd "$("$go" env GOMODCACHE)/$3@v$4/$5"
    start "$1" env KUBECONFIG="$logs/rival.conf" "$program"
    whos+=("$2")
}

started=()
end() {
    [ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || true
    "$cluster" down >/dev/null
}

start() { # start NAME COMMAND…
    "${@:2}" >"$logs/$1.log" 2>&1 &
    started+=($!)
}

# What our controller asked in lines $1 to $2 of the audit log, counted; not watches, lease and
# progress.
requests() {
    sed -n "$(($1 + 1)),$2p" "$audit" | grep '"userAgent":"fleetjob/' | grep -v '"verb":"watch"' |
        grep -v '"resource":"leases"' |
        sed -E 's/.*"verb":"([a-z]*)".*"objectRef":\{"resource":"([a-z]*)".*/\1 \2/; t; s/.*"verb":"([a-z]*)".*/\1 discovery/'
}

measure() { # measure WHO [UNTIL [PODS [JOBS]]]
    build/release/bench/bench_pods "$1" "${3:-$pods}" "${2:-created}" "${4:-1}"
}

for rival in "${rivals[@]}"; do
    read -r name _ _ version _ <<<"${rival//$'\n'/ }"
    build_rival "$name" "$version" || true # before the cluster is up
done
if "$cluster" status >/dev/null 2>&1; then
    echo "a cluster runs already: it is left alone and nothing is measured; stop it first: $cluster down" >&2
    exit 1
fi
"$cluster" up-kwok 10
trap end EXIT
eval "$("$cluster" env)"
export FLEETJOB_BENCH_KUBECONFIG=$KUBECONFIG
audit=$(dirname "$(dirname "$KUBECONFIG")")/log/audit.log
patience=180 # seconds for what takes a few
eventually() { # eventually COMMAND…: until it succeeds
    local end=$((SECONDS + patience))
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not within $patience s: $*" >&2; exit 1; }
        sleep 0.2
    done
}
# install_crd FILE…: and wait until it can be used; one that is new has no conditions at first
install_crd() {
    kubectl apply --server-side "${@/#/--filename=}" >/dev/null
    eventually kubectl wait --for=condition=Established crd --all --timeout=1s
}
# identify NAMESPACE NAME FILE: a kubeconfig with a token of this service account
identify() {
    kubectl config view --raw --minify --flatten >"$3"
    KUBECONFIG=$3 kubectl config unset users >/dev/null
    KUBECONFIG=$3 kubectl config set-credentials "$(KUBECONFIG=$3 kubectl config view \
        -o 'jsonpath={.contexts[0].context.user}')" \
        --token "$(kubectl create token --namespace "$1" "$2" --duration 10h)" >/dev/null
}
install_crd crds/*.yaml
kubectl create namespace fleetjob-system >/dev/null
helm template fleetjob charts/fleetjob --namespace fleetjob-system \
    --kube-version "$kubernetes" \
    --show-only templates/serviceaccount.yaml --show-only templates/rbac-jobs.yaml \
    --show-only templates/rbac-installation.yaml | kubectl apply --filename=- >/dev/null
kubectl create serviceaccount rival >/dev/null
kubectl create clusterrolebinding rival --clusterrole=cluster-admin \
    --serviceaccount=default:rival >/dev/null
identify fleetjob-system fleetjob-controller "$logs/controller.conf"
identify default rival "$logs/rival.conf"
start controller build/bin/fleetjob-controller --kubeconfig "$logs/controller.conf" \
    --namespace fleetjob-system --no-election \
    --runtime-image fleet.local/bench:1 --hub-address 127.0.0.1:17443 --hub-port 17443 \
    --probe-port 18080
whos=(loop fleetjob job)
for rival in "${rivals[@]}"; do
    # shellcheck disable=SC2086 # words
    start_rival ${rival}
done
eventually curl -sf http://127.0.0.1:18080/readyz
name_servers() { # for bench_pods: the processes whose processor time it counts
    FLEETJOB_BENCH_SERVERS="controller=${started[0]}"
    local server
    for server in apiserver etcd scheduler manager kwok; do
        FLEETJOB_BENCH_SERVERS+=" $server=$("$cluster" pid "$server")"
    done
    export FLEETJOB_BENCH_SERVERS
}
name_servers

echo "== $pods pods made, nothing scheduled (load $(cut -d' ' -f1 /proc/loadavg))"
"$cluster" stop scheduler
for _ in $(seq "$rounds"); do
    for who in "${whos[@]}"; do measure "$who"; done
done
"$cluster" start scheduler
name_servers # the scheduler is another process now

echo "== $pods pods until all run (load $(cut -d' ' -f1 /proc/loadavg))"
for _ in $(seq "$rounds"); do
    for who in "${whos[@]:1}"; do
        before=$(wc -l <"$audit")
        measure "$who" running
        [ "$who" != fleetjob ] || at=$before last=$(wc -l <"$audit")
    done
done
echo "== 200 jobs of one pod until all run (load $(cut -d' ' -f1 /proc/loadavg))"
for _ in $(seq "$rounds"); do
    for who in "${whos[@]:1}"; do measure "$who" running 200 200; done
done
echo "== requests of the controller for the job of $pods pods, to its end"
requests "$at" "$last" | sort | uniq -c | sort -rn
echo "== the controller afterwards"
grep -E 'VmHWM|VmRSS' "/proc/${started[0]}/status"
curl -sf http://127.0.0.1:18080/metrics |
    grep -E '^fleetjob_(reconcile_seconds|status_writes)' || true
