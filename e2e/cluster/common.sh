# shellcheck shell=bash disable=SC2034 # used by the other parts
# What the parts of `cluster` share: places, versions, words to the user. Sourced, never run.

KUBERNETES_VERSION=1.34.4 # the version of k8s.io/kubernetes in kubernetes/go.mod
HELM_VERSION=3.19.0
KWOK_VERSION=0.7.0

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FLEETJOB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetjob}
state=${FLEETJOB_CLUSTER_DIR:-/var/lib/fleetjob-cluster}

# One cluster a machine: addresses, ports and namespace names are fixed, so that a pod's address
# says its node. The claim holds the state folder of the cluster that owns them.
claim=/run/fleetjob-cluster.claim
host=172.31.250.1 # the bridge: API server, and the nodes' way out

say() {
    printf '%s\n' "$*"
}

die() {
    printf 'cluster: %s\n' "$*" >&2
    exit 1
}

# The multi-call binary: its name changes with what it is built from, so an old one is never used.
kubernetes_binary() {
    local digest
    digest=$(cat "$here"/kubernetes/{main.go,go.mod,go.sum} | sha256sum | cut -c1-12)
    printf '%s/bin/kubernetes-%s-%s\n' "$cache" "$KUBERNETES_VERSION" "$digest"
}

helm_binary() {
    printf '%s/bin/helm-%s\n' "$cache" "$HELM_VERSION"
}

kwok_binary() {
    printf '%s/bin/kwok-%s\n' "$cache" "$KWOK_VERSION"
}

pause_archive() {
    printf '%s/pause-%s.tar\n' "$cache" "$(sha256sum <"$here"/pause.c | cut -c1-12)"
}

# seconds for what takes a few: no machine is that slow, and one that waits so long has failed
patience=180

# wait_until WHAT COMMAND…: run COMMAND every 0.2 s until it succeeds.
wait_until() {
    local what=$1 deadline
    shift
    deadline=$(($(date +%s) + patience))
    until "$@" >/dev/null 2>&1; do
        if [ "$(date +%s)" -ge "$deadline" ]; then
            "$@" >&2 || true
            die "$what: not within $patience s (logs in $state/log)"
        fi
        sleep 0.2
    done
}

# again COMMAND…: run what asks a registry, up to three times: one of its answers may fail.
again() {
    local try
    for try in 1 2 3; do
        "$@" && return 0
        [ "$try" = 3 ] || sleep $((try * 5))
    done
    return 1
}

# is_alive PID: running, and not a zombie. One whose first thread is a zombie lives while others
# end: they still hold its ports.
is_alive() {
    local stat threads
    stat=$(sed -E 's/^[0-9]+ \(.*\) ([A-Z]).*/\1/' "/proc/$1/stat" 2>/dev/null) || return 1
    [ "$stat" != Z ] || { threads=("/proc/$1/task"/*) && [ ${#threads[@]} -gt 1 ]; }
}

# The process that `start` recorded under NAME, if it is still that process: the start time
# tells it from a later one that got the same number.
recorded_pid() { # recorded_pid NAME
    local pid born
    [ -f "$state/run/$1.pid" ] && read -r pid born <"$state/run/$1.pid" || return 1
    is_alive "$pid" && [ "$(start_time "$pid")" = "$born" ] && printf '%s\n' "$pid"
}

start_time() { # start_time PID: in ticks since boot
    sed -E 's/^[0-9]+ \(.*\) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20
}

# start NAME COMMAND…: in the background and in a session of its own. Output goes to log/NAME.log,
# the process to run/NAME.pid, the command to run/NAME.cmd; `restart` starts it again from there.
# Recorded before it leaves our process group: if we are killed at any moment, `down` finds
# everything.
start() {
    local name=$1 pid
    shift
    rm -f "$state/run/$name.pid"
    printf '%q ' "$@" >"$state/run/$name.cmd"
    {
        pid=$BASHPID # in $( ) it would be another one
        printf '%s %s\n' "$pid" "$(start_time "$pid")" >"$state/run/$name.new"
        mv "$state/run/$name.new" "$state/run/$name.pid"
        exec setsid "$@"
    } >>"$state/log/$name.log" 2>&1 </dev/null 9>&- & # 9: the lock of `cluster`
    while [ ! -e "$state/run/$name.pid" ] && is_alive $!; do
        sleep 0.01
    done
}

# An API server that is asked to end refuses connections for ten seconds while it waits for watches.
stop_signal() { # stop_signal NAME
    [ "$1" = apiserver ] && echo KILL || echo TERM
}

# ended PID TENTHS: wait until it is gone, at most so long.
ended() {
    for _ in $(seq "$2"); do
        is_alive "$1" || return 0
        sleep 0.1
    done
    return 1
}

# stop NAME [SIGNAL]: signal it, wait, and kill it after 10 s. Not running is fine.
stop() {
    local name=$1 signal=${2:-TERM} pid
    if pid=$(recorded_pid "$name"); then
        kill -s CONT "$pid" 2>/dev/null || true
        kill -s "$signal" "$pid" 2>/dev/null || true
        ended "$pid" 100 || { kill -s KILL "$pid" 2>/dev/null && ended "$pid" 300; } || true
    fi
    rm -f "$state/run/$name.pid"
}
