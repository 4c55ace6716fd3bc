# shellcheck shell=bash disable=SC2154,SC2030,SC2031 # names of common.sh
# What a user asks for.

# One command at a time; the lock falls with this process, however it ends.
lock() {
    exec 9>/run/fleetjob-cluster.lock
    flock -w 30 9 || die "another 'cluster' command is at work; wait for it to end"
}

# One cluster a machine. The claim outlives an interrupted `up`; one without processes is taken
# over.
take_claim() {
    local owner
    owner=$(cat "$claim" 2>/dev/null || true)
    if [ -n "$owner" ] && [ "$owner" != "$state" ]; then
        if has_processes "$owner"; then
            die "a cluster already runs on this machine, with its state in $owner. There can be one:
  use it:   export KUBECONFIG=$owner/pki/admin.conf
  stop it:  FLEETJOB_CLUSTER_DIR=$owner $0 down"
        fi
        say "Clearing up a cluster that no longer runs ($owner)"
        (state=$owner && down_unlocked)
    fi
    printf '%s\n' "$state" >"$claim"
}

has_processes() { # has_processes STATE
    local file
    for file in "$1"/run/*.pid; do
        (state=$1 && recorded_pid "$(basename "$file" .pid)") >/dev/null && return 0
    done
    return 1
}

# What nodes of either kind need; sets `k8s`.
# shellcheck disable=SC2120 # kwok.sh gives flags
up_control_plane() { # up_control_plane [FLAG…]: of controller manager and scheduler
    prerequisites
    lock
    take_claim
    build
    k8s=$(kubernetes_binary)
    [ -e "$state/etcd" ] || rm -rf "$state/log" # of the cluster before this one
    mkdir -p "$state"/{log,run}
    check_ports
    make_pki
    export KUBECONFIG=$state/pki/admin.conf
    make_bridge
    start_control_plane "$k8s" "$@"
}

tell_up() { # tell_up NODES BEGAN
    say "Kubernetes $KUBERNETES_VERSION is up with $1 after $((SECONDS - $2)) s"
    say "  export KUBECONFIG=$state/pki/admin.conf"
}

up() {
    local nodes=$1 k8s i began=$SECONDS
    [[ $nodes =~ ^[1-9]$ ]] || die "NODES must be 1 to 9, not '$nodes'"
    [ ! -f "$state/run/kwok.cmd" ] ||
        die "the cluster that runs has KWOK's nodes; stop it first: $0 down"
    up_control_plane
    for i in $(seq "$nodes"); do
        mkdir -p "$state/node-$i" # so that each node finds its neighbours when it makes its routes
    done
    for i in $(node_numbers); do
        start_node "$i" "$k8s"
    done
    for i in $(node_numbers); do
        wait_for_node "$i" "$k8s"
    done
    wait_for_service_account "$k8s"
    tell_up "$(node_numbers | wc -l) nodes" "$began"
}

need_cluster() {
    [ -d "$state/run" ] || die "no cluster runs with its state in $state; bring one up with '$0 up'"
    export KUBECONFIG=$state/pki/admin.conf
}

status() {
    local file name
    need_cluster
    for file in "$state"/run/*.pid; do
        name=$(basename "$file" .pid)
        printf '%-14s %s\n' "$name" "$(component_pid "$name" || echo 'not running')"
    done
    "$(kubernetes_binary)" kubectl get nodes
}

print_env() {
    printf 'export KUBECONFIG=%q\nexport PATH=%q:%s\n' "$state/pki/admin.conf" "$cache/bin" "\$PATH"
}

load() {
    local archive i
    need_cluster
    [ $# -gt 0 ] || die "usage: cluster load ARCHIVE…"
    for archive in "$@"; do
        [ -f "$archive" ] || die "no image archive $archive"
        archive=$(realpath "$archive")
        for i in $(node_numbers); do
            in_node "$i" ctr -a "$state/node-$i/containerd.sock" -n k8s.io images import \
                "$archive" |
                sed "s/^/node-$i: /"
        done
    done
}

need_node() { # need_node I
    need_cluster
    [ -d "$state/node-$1" ] ||
        die "there is no node-$1; there are: $(node_numbers | sed 's/^/node-/' | xargs)"
}

lose_node() {
    need_node "$1"
    ip link set "ve$1" down
    say "node-$1 is cut off"
}

crash_node() {
    local init
    need_node "$1"
    init=$(node_init "$1") || die "node-$1 is not running"
    kill -s KILL "$init"
    kill_node "$1"
    say "node-$1 has lost power"
}

restore_node() {
    need_node "$1"
    lock
    ip link set "ve$1" up
    start_node "$1" "$(kubernetes_binary)"
    wait_for_node "$1" "$(kubernetes_binary)"
    say "node-$1 is back"
}

need_component() { # need_component NAME
    need_cluster
    [ -f "$state/run/$1.cmd" ] || die \
        "there is no component $1; there are: $(cd "$state/run" && printf '%s ' *.cmd | sed 's/\.cmd//g')"
}

command_pid() {
    need_component "$1"
    component_pid "$1" || die "$1 is not running"
}

# A pod's cgroup is named after its UID; a program's name has 15 letters.
pids() { # pids [NAMESPACE/]POD [NAME]
    local namespace=default pod=$1 name=${2:-} uid process
    [[ $pod != */* ]] || { namespace=${pod%%/*} pod=${pod#*/}; }
    need_cluster
    uid=$("$(kubernetes_binary)" kubectl get pod "$pod" -n "$namespace" -o 'jsonpath={.metadata.uid}') || exit
    for process in $(grep -slF "pod$uid" /proc/[0-9]*/cgroup); do
        process=${process%/cgroup}
        [ -n "$name" ] && [ "$(cat "$process/comm" 2>/dev/null)" != "${name:0:15}" ] ||
            printf '%s\n' "${process#/proc/}"
    done
}

command_stop() {
    need_component "$1"
    case $1 in
    node-*) die "use crash-node to stop a whole node" ;;
    *-[1-9]) stop_in_node "$1" ;;
    *) stop "$1" "$(stop_signal "$1")" ;;
    esac
}

# A component of a node is entered through the node's present process 1, not the recorded one.
command_start() {
    local command
    need_component "$1"
    recorded_pid "$1" >/dev/null && return 0
    case $1 in
    node-*) die "use restore-node to start a whole node" ;;
    *-[1-9]) start_node "${1##*-}" "$(kubernetes_binary)" ;;
    *)
        eval "command=($(cat "$state/run/$1.cmd"))"
        start "$1" "${command[@]}"
        ;;
    esac
}

command_restart() {
    command_stop "$1"
    command_start "$1"
    [ "$1" != apiserver ] || wait_until "API server ready" "$(kubernetes_binary)" kubectl get \
        --raw /readyz
}
