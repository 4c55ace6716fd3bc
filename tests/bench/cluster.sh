#!/usr/bin/env bash
# What a thousand pods cost on a real API server: time and requests, beside a bare loop and other
# operators.
#
#   tests/bench/cluster.sh [PODS [ROUNDS]]    1000 pods, 3 rounds; needs root
#
# Kubernetes with KWOK's nodes (e2e/cluster) is brought up, measured and taken down. First without a
# scheduler, so that nothing but making pods takes time; then with it, until all run. The rivals
# have no limit on their requests:
#   loop         POSTs the same finished bodies, as many at once as the controller
#   job          an Indexed Job of Kubernetes' own controller manager; other operators use it
#   pytorchjob   Kubeflow's training operator, built from its Go module (minutes, the first time)
set -euo pipefail
cd "$(dirname "$0")/../.."
pods=${1:-1000} rounds=${2:-3}
cluster=e2e/cluster/cluster
cache=${FLEETJOB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fleetjob}
TRAINING_OPERATOR_VERSION=1.8.1
rival=$cache/bin/training-operator-$TRAINING_OPERATOR_VERSION
logs=build/bench-cluster
mkdir -p "$logs"

# shellcheck source=/dev/null
go=$(. e2e/cluster/common.sh && . e2e/cluster/prerequisites.sh && . e2e/cluster/build.sh &&
    { find_go || { install_go >&2 && find_go; }; })

build_rival() {
    [ ! -x "$rival" ] || return 0
    echo "Building the training operator $TRAINING_OPERATOR_VERSION into $rival (minutes, the first time)"
    CGO_ENABLED=0 nice -n 15 "$go" -C tests/bench/training-operator build -trimpath -o "$rival" .
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

# The audit log's lines of our controller since line $1, by what was asked; not watches, lease and
# progress.
requests() {
    tail -n "+$(($1 + 1))" "$audit" | grep '"userAgent":"fleetjob/' | grep -v '"verb":"watch"' |
        grep -v '"resource":"leases"' |
        sed -E 's/.*"verb":"([a-z]*)".*"objectRef":\{"resource":"([a-z]*)".*/\1 \2/; t; s/.*"verb":"([a-z]*)".*/\1 discovery/'
}

measure() { # measure WHO [UNTIL]
    build/release/bench/bench_pods "$1" "$pods" "${2:-created}"
}

build_rival || echo "without the training operator: it could not be built"
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
install_crd crds/*.yaml
start controller build/bin/fleetjob-controller --kubeconfig "$KUBECONFIG" --namespace default \
    --no-election \
    --runtime-image fleet.local/bench:1 --hub-address 127.0.0.1:17443 --hub-port 17443 \
    --probe-port 18080
whos=(loop fleetjob job)
if [ -x "$rival" ]; then
    "$go" -C tests/bench/training-operator mod download github.com/kubeflow/training-operator
    crds=$("$go" env GOMODCACHE)/github.com/kubeflow
    crds+=/training-operator@v$TRAINING_OPERATOR_VERSION/manifests/base/crds
    install_crd "$crds/kubeflow.org_pytorchjobs.yaml"
    start training-operator "$rival"
    whos+=(pytorchjob)
fi
eventually curl -sf http://127.0.0.1:18080/readyz

echo "== $pods pods made, nothing scheduled (load $(cut -d' ' -f1 /proc/loadavg))"
"$cluster" stop scheduler
for _ in $(seq "$rounds"); do
    for who in "${whos[@]}"; do measure "$who"; done
done
"$cluster" start scheduler

echo "== $pods pods until all run (load $(cut -d' ' -f1 /proc/loadavg))"
for who in "${whos[@]:1}"; do
    before=$(wc -l <"$audit")
    measure "$who" running
    [ "$who" != fleetjob ] || at=$before
done
echo "== requests of the controller for the job of $pods pods, to its end"
requests "$at" | sort | uniq -c | sort -rn
echo "== the controller afterwards"
grep -E 'VmHWM|VmRSS' "/proc/${started[0]}/status"
curl -sf http://127.0.0.1:18080/metrics |
    grep -E '^fleetjob_(reconcile_seconds|status_writes)' || true
