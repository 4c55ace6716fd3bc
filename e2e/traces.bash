# shellcheck shell=bash
# What a cluster could leave behind on the machine, a line each. Sourced by run.sh, which looks
# before its cluster comes up, and by 09-down.bats.

traces() {
    ls /run/netns 2>/dev/null | sed 's/^/netns /'
    ls /sys/class/net | sed 's/^/link /'
    awk '$2 ~ /fleetjob/ {print "mount", $2}' /proc/mounts
    find /sys/fs/cgroup -maxdepth 2 -name 'fleetjob-*' 2>/dev/null
    ip route | grep -E '10\.244|172\.31\.250' || true
    for process in /proc/[0-9]*; do
        tr '\0' ' ' <"$process/cmdline" | grep -oE '[^ ]*/fleetjob-cluster/[^ ]*' || true
    done 2>/dev/null # of those that have ended
}
