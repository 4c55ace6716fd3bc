# shellcheck shell=bash disable=SC2154 # names of common.sh
# A node: a network, process and mount namespace of its own, with containerd, kubelet and
# kube-proxy.
#
#   host ── fleetbr 172.31.250.1 ──┬── ve1 ═ eth0 172.31.250.11  node-1  pods 10.244.1.0/24
#                                  └── ve2 ═ eth0 172.31.250.12  node-2  pods 10.244.2.0/24
#
# Process 1 of the node is the pause program, recorded as `node-I`. When it dies, the kernel kills
# every process of the node and drops every mount made there: pulling the plug. The machine's disk
# is shared, so a hostPath volume is the same folder on every node.

node_address() {
    printf '172.31.250.1%s\n' "$1"
}

# The host's number of the process 1 of node-I: the child of the `unshare` that `start` recorded.
node_init() { # node_init I
    local outer child
    outer=$(recorded_pid "node-$1") || return 1
    child=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null)
    child=${child%% *}
    [ -n "$child" ] && [ "$(cat "/proc/$child/comm" 2>/dev/null)" = pause ] &&
        printf '%s\n' "$child"
}

node_numbers() { # those of all nodes that exist, running or not
    local folder
    for folder in "$state"/node-*; do
        [ -d "$folder" ] && printf '%s\n' "${folder##*/node-}"
    done
    return 0
}

make_node_network() {
    local i=$1 node=node-$1 address other
    address=$(node_address "$i")
    [ -e "/run/netns/$node" ] || ip netns add "$node"
    if ! ip link show "ve$i" >/dev/null 2>&1; then
        ip link add "ve$i" type veth peer name eth0 netns "$node"
    fi
    ip link set "ve$i" master fleetbr up
    ip -n "$node" addr replace "$address/24" dev eth0
    ip -n "$node" link set eth0 up
    ip -n "$node" link set lo up
    ip -n "$node" route replace default via "$host"
    ip netns exec "$node" sysctl -qw net.ipv4.ip_forward=1
    ip route replace "10.244.$i.0/24" via "$address"
    for other in $(node_numbers); do
        [ "$other" = "$i" ] && continue
        ip -n "$node" route replace "10.244.$other.0/24" via "$(node_address "$other")"
        ip -n "node-$other" route replace "10.244.$i.0/24" via "$address" 2>/dev/null || true
    done
}

make_node_cgroups() {
    local node=$1 controller file
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        for controller in cpu cpuset memory pids; do
            echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
        done
        mkdir -p "/sys/fs/cgroup/fleetjob-$node"
        return
    fi
    for controller in /sys/fs/cgroup/*/; do
        mkdir -p "$controller/fleetjob-$node" 2>/dev/null || true
    done
    for file in cpus mems; do # empty in a new cpuset, and nothing starts in an empty one
        cat "/sys/fs/cgroup/cpuset/cpuset.$file" \
            >"/sys/fs/cgroup/cpuset/fleetjob-$node/cpuset.$file"
    done
}

write_node_files() {
    local i=$1 node=node-$1 folder=$state/node-$1
    mkdir -p "$folder"/{cni,kubelet,pods}
    cat >"$folder/cni/10-fleet.conflist" <<CONFIG
{"cniVersion": "0.4.0", "name": "fleet", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$folder/ipam", "ranges": [[{"subnet": "10.244.$i.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
    # restrict_oom_score_adj: root in a container may lack CAP_SYS_RESOURCE, and no sandbox would
    # start.
    cat >"$folder/containerd.toml" <<CONFIG
version = 2
root = "$folder/containerd"
state = "$folder/state"
[grpc]
  address = "$folder/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "fleet.local/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$folder/cni"
CONFIG
    cat >"$folder/kubelet.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $state/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $state/pki/$node.crt
tlsPrivateKeyFile: $state/pki/$node.key
containerRuntimeEndpoint: unix://$folder/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /fleetjob-$node
podLogsDir: $folder/pods
failSwapOn: false
failCgroupV1: false
resolvConf: /etc/resolv.conf
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, imagefs.available: 0%}
enforceNodeAllocatable: []
cgroupsPerQOS: true
localStorageCapacityIsolation: false
nodeStatusUpdateFrequency: 2s
CONFIG
}

# in_node I COMMAND…: run it inside the node.
in_node() {
    local init
    init=$(node_init "$1") || die "node-$1 is not running"
    shift
    nsenter --target "$init" --mount --pid --net -- "$@"
}

# Folders that the container parts hard-code get a file system of the node's own.
start_node_init() {
    local i=$1
    node_init "$i" >/dev/null && return 0
    stop "node-$i" KILL
    # shellcheck disable=SC2016
    start "node-$i" nsenter --net="/run/netns/node-$i" unshare --mount --pid --fork --kill-child \
        --mount-proc --propagation slave bash -euc '
        mount --make-rshared /
        for folder in /run/netns /run/containerd /var/lib/cni /var/log/containers; do
            mkdir -p "$folder"
            mount -t tmpfs -o mode=755 fleetjob "$folder"
        done
        exec "$1"' node "$cache/bin/pause"
    wait_until "process 1 of node-$i" node_init "$i"
}

run_in_node() { # run_in_node NAME I COMMAND…: as `run`, inside the node
    local name=$1 init
    recorded_pid "$name" >/dev/null && return 0
    init=$(node_init "$2")
    shift 2
    start "$name" nsenter --target "$init" --mount --pid --net -- "$@"
}

start_node() {
    local i=$1 node=node-$1 folder=$state/node-$1 k8s=$2
    write_node_files "$i"
    make_node_network "$i"
    make_node_cgroups "$node"
    start_node_init "$i"
    run_in_node "containerd-$i" "$i" containerd -c "$folder/containerd.toml"
    wait_until "containerd of $node" ctr -a "$folder/containerd.sock" version
    ctr -a "$folder/containerd.sock" -n k8s.io images ls -q | grep -qx fleet.local/pause:1 ||
        in_node "$i" ctr -a "$folder/containerd.sock" -n k8s.io images import "$(pause_archive)" \
        >/dev/null
    run_in_node "kubelet-$i" "$i" "$k8s" kubelet --kubeconfig="$state/pki/$node.conf" \
        --config="$folder/kubelet.yaml" --hostname-override="$node" --root-dir="$folder/kubelet" \
        --node-ip="$(node_address "$i")"
    # A namespace may not write the conntrack sysctls: 0 leaves them alone.
    run_in_node "proxy-$i" "$i" "$k8s" proxy --kubeconfig="$state/pki/proxy.conf" \
        --hostname-override="$node" \
        --cluster-cidr=10.244.0.0/16 --proxy-mode=iptables --conntrack-max-per-core=0 \
        --conntrack-tcp-timeout-established=0s --conntrack-tcp-timeout-close-wait=0s \
        --healthz-bind-address=127.0.0.1:10256 --metrics-bind-address=127.0.0.1:10249
}

# The end of a node: everything in it dies with its process 1.
kill_node() {
    local i=$1 name init controller
    init=$(node_init "$i") || init=
    for name in "kubelet-$i" "proxy-$i" "containerd-$i"; do
        stop_in_node "$name"
    done
    [ -z "$init" ] || kill -s KILL "$init" 2>/dev/null || true
    stop "node-$i" KILL
    for _ in $(seq 300); do
        remove_node_cgroups "$i" && break
        sleep 0.1
    done
}

remove_node_cgroups() { # fails while a process is still on its way out
    local folder left=0
    for folder in /sys/fs/cgroup/fleetjob-node-"$1" /sys/fs/cgroup/*/fleetjob-node-"$1"; do
        [ -d "$folder" ] || continue
        find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
    done
    return $left
}

# What `start` recorded is the nsenter that waits; the component is its child.
component_pid() { # component_pid NAME
    local pid child
    pid=$(recorded_pid "$1") || return 1
    while [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = nsenter ]; do
        child=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null)
        [ -n "$child" ] || return 1
        pid=${child%% *}
    done
    printf '%s\n' "$pid"
}

stop_in_node() {
    local pid
    if pid=$(component_pid "$1"); then
        kill -s CONT "$pid" 2>/dev/null || true
        kill -s TERM "$pid" 2>/dev/null || true
        ended "$pid" 30 || kill -s KILL "$pid" 2>/dev/null || true
    fi
    stop "$1" KILL
}

wait_for_node() {
    wait_until "node-$1 Ready" "$2" kubectl wait --for=condition=Ready "node/node-$1" --timeout=2s
}
