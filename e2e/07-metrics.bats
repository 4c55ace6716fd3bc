#!/usr/bin/env bats
# /metrics with metrics.auth on a real API server: a ServiceAccount with and without the right, no
# token in clear text, the certificate of the installation's CA and of a Secret; JSON logs; and the
# documented change of the CA. Method: curl from this machine through `kubectl port-forward`.

load lib

setup_file() {
    start_installation
    cat >"$BATS_FILE_TMPDIR/values.yaml" <<'END'
log: {format: json}
metrics:
  auth:
    enabled: true
    readers: [{namespace: fleetjob-system, name: scraper}]
END
    for account in scraper stranger; do
        kubectl create serviceaccount "$account" -n "$system"
    done
    helm upgrade fleetjob "$repository/charts/fleetjob" -n "$system" -f "$BATS_FILE_TMPDIR/values.yaml" \
        --wait --timeout "${LIMIT}s"
    eventually "$LIMIT" one_of_them_leads
}

teardown_file() {
    kubectl delete serviceaccounts scraper stranger -n "$system"
    kubectl delete secret metrics-tls -n "$system" --ignore-not-found
    helm upgrade fleetjob "$repository/charts/fleetjob" -n "$system" --reset-values --wait \
        --timeout "${LIMIT}s"
    stop_installation
}

teardown() {
    stop_forwarding
    [ -n "${BATS_TEST_COMPLETED:-}" ] || diagnose 2>&1 | sed 's/^/| /'
}

stop_forwarding() {
    [ -z "${forwarder:-}" ] || kill "$forwarder" 2>/dev/null || true
    forwarder=
}

# Ports of the leader's pod on this machine: sets `https` and `http`. False if kubectl ends first.
# It ends with the first connection that the pod refuses, too: ask all by a forwarder of its own,
# `eventually`. The pod is asked for, and the old log emptied, before the child begins: killed while
# it still is a shell, it would report the test as failed.
forward() {
    local log=$BATS_TEST_TMPDIR/forward pod
    stop_forwarding
    pod=$(leader) || return 1
    : >"$log"
    kubectl port-forward -n "$system" "pod/$pod" :8443 :8080 >"$log" 2>&1 3>&- &
    forwarder=$!
    until grep -q '127.0.0.1:.* -> 8080' "$log"; do
        kill -0 "$forwarder" 2>/dev/null || { cat "$log"; return 1; }
        sleep 0.1
    done
    https=$(sed -n 's/.*127.0.0.1:\([0-9]*\) -> 8443/\1/p' "$log")
    http=$(sed -n 's/.*127.0.0.1:\([0-9]*\) -> 8080/\1/p' "$log")
}

ca_of() { # ca_of SECRET: into the file ca.crt
    kubectl get secret "$1" -n "$system" -o jsonpath='{.data.ca\.crt}' | base64 -d >"$BATS_TEST_TMPDIR/ca.crt"
}

scrape() { # scrape TOKEN: status, then body
    curl -sS --max-time 30 --cacert "$BATS_TEST_TMPDIR/ca.crt" -w '%{http_code}\n' -o "$BATS_TEST_TMPDIR/body" \
        --connect-to "::127.0.0.1:$https" ${1:+-H "Authorization: Bearer $1"} \
        https://fleetjob-metrics.fleetjob-system.svc:8443/metrics && cat "$BATS_TEST_TMPDIR/body"
}

token() {
    kubectl create token "$1" -n "$system"
}

answers() { # answers STATUS WORDS TOKEN
    local said
    said=$(scrape "$3") && [[ $said == "$1"* && $said == *"$2"* ]] || { echo "${said:0:500}"; return 1; }
}

answers_anew() {
    forward && answers "$@"
}

only_the_scraper_may() { # only_the_scraper_may TOKEN TOKEN-OF-A-STRANGER
    forward && answers 200 'fleetjob_leader 1' "$1" &&
        answers 403 'system:serviceaccount:fleetjob-system:stranger" may not get' "$2" &&
        answers 401 'does not know this bearer token' nonsense &&
        answers 401 'a bearer token is needed' '' &&
        answers 200 'fleetjob_metrics_requests_total{code="403"}' "$1" &&
        grep 'requests_total{code="403"} [1-9]' "$BATS_TEST_TMPDIR/body"
}

@test "a ServiceAccount with the right gets the metrics, others do not" {
    ca_of fleetjob-identity
    eventually "$LIMIT" only_the_scraper_may "$(token scraper)" "$(token stranger)"
}

get() { # get PORT PATH [OPTION…]: in clear text
    curl -s --max-time 30 "${@:3}" "http://127.0.0.1:$1$2"
}

clear_text_is_refused() {
    forward && [ "$(get "$http" /metrics -o "$BATS_TEST_TMPDIR/body" -w '%{http_code}')" = 404 ] &&
        grep 'use https:// and port 8443' "$BATS_TEST_TMPDIR/body" &&
        [ "$(get "$http" /readyz)" = ok ] && get "$https" /metrics | grep 'this port speaks HTTPS'
}

@test "no token travels in clear text" {
    eventually "$LIMIT" clear_text_is_refused
}

@test "the certificate may be a Secret's, made after the controller and renewed" {
    helm upgrade fleetjob "$repository/charts/fleetjob" -n "$system" -f "$BATS_FILE_TMPDIR/values.yaml" \
        --set metrics.auth.certificateSecret=metrics-tls --wait --timeout "${LIMIT}s"
    eventually "$LIMIT" one_of_them_leads
    for _ in 1 2; do
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
            -subj /CN=metrics \
            -addext 'subjectAltName=DNS:fleetjob-metrics.fleetjob-system.svc' \
            -keyout "$BATS_TEST_TMPDIR/tls.key" -out "$BATS_TEST_TMPDIR/ca.crt"
        kubectl create secret tls metrics-tls -n "$system" --cert="$BATS_TEST_TMPDIR/ca.crt" \
            --key="$BATS_TEST_TMPDIR/tls.key" --dry-run=client -o yaml | kubectl apply -f -
        # the kubelet brings a changed Secret into the volume after a minute or two
        eventually $((3 * LIMIT)) answers_anew 200 'fleetjob_leader 1' "$(token scraper)"
    done
    helm upgrade fleetjob "$repository/charts/fleetjob" -n "$system" -f "$BATS_FILE_TMPDIR/values.yaml" \
        --wait --timeout "${LIMIT}s"
    eventually "$LIMIT" one_of_them_leads
}

# The lines of the agent of worker 0, and of the controller about the job, are JSON with their keys.
lines_are_json() { # lines_are_json JOB
    kubectl logs -n "$namespace" "$(pods_of "$1" | head -n 1 | cut -d' ' -f1)" >"$BATS_TEST_TMPDIR/log"
    python3 - "$BATS_TEST_TMPDIR/log" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
joined = [i for i, line in enumerate(lines) if line["msg"] == "Joined a generation"]
assert joined, lines
for line in lines:
    assert line["pod"], line
for line in lines[joined[0]:]:
    assert "rank" in line and "generation" in line, line
END
}

# docs/install.md, "Certificates".
change_the_identity() {
    local before uid step
    start_job rotated replicas=2 steps=1000000 || return
    eventually "$LIMIT" lines_are_json rotated || return
    before=$(pods_of rotated)
    uid=$(kubectl get secret fleetjob-identity -n "$system" -o jsonpath='{.metadata.uid}')
    kubectl -n "$system" scale deployment/fleetjob-controller --replicas=0 || return
    eventually "$LIMIT" controllers_are_gone || return
    step=$(field rotated progress.step)
    kubectl -n "$system" delete secret fleetjob-identity || return
    kubectl -n "$system" scale deployment/fleetjob-controller --replicas=1 || return
    eventually "$LIMIT" one_of_them_leads || return
    eventually "$LIMIT" has_another_identity "$uid" || return
    # the new controller learns of steps: the workers have found it
    eventually "$LIMIT" field_at_least rotated progress.step $((${step:-0} + 1)) || return
    eventually "$LIMIT" field_is rotated workers.ready 2 || return
    [ "$(pods_of rotated)" = "$before" ] || return
    unless_missed rotated field_is rotated restarts.count 0
}

@test "another CA and key: jobs train on, their workers find the new hub" {
    none_missed rotated change_the_identity
    kubectl delete fj rotated -n "$namespace" --timeout="${LIMIT}s"
}

has_another_identity() { # has_another_identity UID
    local now
    now=$(kubectl get secret fleetjob-identity -n "$system" -o jsonpath='{.metadata.uid}') &&
        [ -n "$now" ] && [ "$now" != "$1" ]
}
