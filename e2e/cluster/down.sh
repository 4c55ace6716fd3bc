# shellcheck shell=bash disable=SC2154 # names of common.sh
# The end of the cluster. Works from what exists rather than from what `up` believed it did, so it
# also clears up after an interrupted `up`, a killed cluster and a reboot.

remove_networks() {
    local name
    for name in /run/netns/node-[1-9] /run/netns/fleetjob-probe-*; do
        ip netns pids "${name##*/}" 2>/dev/null | xargs -r kill -s KILL 2>/dev/null || true
        ip netns del "${name##*/}" 2>/dev/null || true
    done
    for name in /sys/class/net/ve[1-9] /sys/class/net/fjp{0,1,br}; do
        ip link del "${name##*/}" 2>/dev/null || true
    done
    ip link del fleetbr 2>/dev/null || true # takes its routes along
}

# Nothing below the state folder is mounted outside the nodes; if something is, do not delete it.
remove_mounts() {
    local point
    while read -r point; do
        umount -l "$point" 2>/dev/null || true
    done < <(awk -v prefix="$state/" 'index($2, prefix) == 1 {print $2}' /proc/mounts | sort -r)
    ! awk -v prefix="$state/" 'index($2, prefix) == 1 {found = 1} END {exit !found}' /proc/mounts
}

down_unlocked() {
    local i name
    for i in $(node_numbers); do
        kill_node "$i"
    done
    for i in 1 2 3 4 5 6 7 8 9; do
        remove_node_cgroups "$i" || true
    done
    for name in kwok scheduler manager apiserver etcd; do
        stop "$name" "$(stop_signal "$name")"
    done
    remove_networks
    remove_mounts ||
        die "something is still mounted below $state; unmount it and run 'cluster down' again"
    rm -rf "$state"/{run,etcd,pki,pki.new,audit.yaml,volumes} "$state"/node-*
    rm -f "$claim"
}

down() {
    local owner
    lock
    owner=$(cat "$claim" 2>/dev/null || true)
    if [ -n "$owner" ] && [ "$owner" != "$state" ]; then
        die "the cluster on this machine has its state in $owner; stop it with FLEETJOB_CLUSTER_DIR=$owner $0 down"
    fi
    down_unlocked
    say "The cluster is down (its logs are in $state/log)"
}
