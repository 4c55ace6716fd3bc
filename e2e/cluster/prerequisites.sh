# shellcheck shell=bash disable=SC2154 # names of common.sh
# What the machine must have before anything is started: named if it cannot be mended, installed if
# it can. All that is missing is reported at once.

debian_packages=(containerd runc containernetworking-plugins iptables iproute2 conntrack ethtool
    socat busybox-static umoci skopeo openssl procps util-linux gcc libc6-dev)

missing=()
lacks() {
    missing+=("$*")
}

has_filesystem() { # has_filesystem NAME: known to the kernel, or a module that can be loaded
    grep -qw "$1" /proc/filesystems || modprobe -q "$1" 2>/dev/null
}

check_kernel() {
    local probe=fleetjob-probe-$$
    has_filesystem overlay || lacks "the kernel's overlay file system (CONFIG_OVERLAY_FS)"
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        for controller in cpu cpuset memory pids; do
            grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers ||
                lacks "the cgroup v2 controller $controller in /sys/fs/cgroup/cgroup.controllers"
        done
    else
        for controller in cpu cpuset memory pids devices freezer; do
            [ -d "/sys/fs/cgroup/$controller" ] ||
                lacks "the cgroup controller $controller in /sys/fs/cgroup"
        done
    fi
    unshare --mount --pid --fork true 2>/dev/null || lacks "mount and process namespaces (unshare)"
    if ip netns add "$probe" 2>/dev/null; then
        ip link add fjp0 type veth peer name fjp1 netns "$probe" 2>/dev/null ||
            lacks "virtual Ethernet pairs (CONFIG_VETH)"
        ip netns exec "$probe" iptables -w -t nat -L -n >/dev/null 2>&1 ||
            lacks "iptables' nat table in a network namespace (CONFIG_IP_NF_NAT or nf_tables)"
        ip netns exec "$probe" iptables -w -A INPUT -m comment --comment x -m conntrack --ctstate \
            NEW -j ACCEPT \
            2>/dev/null || lacks "iptables' comment and conntrack matches"
        ip link add fjpbr type bridge 2>/dev/null || lacks "bridges (CONFIG_BRIDGE)"
        ip link del fjpbr 2>/dev/null || true
        ip netns del "$probe"
        ip link del fjp0 2>/dev/null || true
    else
        lacks "network namespaces (ip netns add)"
    fi
}

check_room() {
    local megabytes
    megabytes=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
    [ "$megabytes" -ge 1500 ] || lacks "1500 MiB of free memory ($megabytes MiB are)"
    megabytes=$(df -Pm "$(dirname "$state")" 2>/dev/null | awk 'NR == 2 {print $4}')
    [ "${megabytes:-0}" -ge 2000 ] ||
        lacks "2000 MB of free space for $state (${megabytes:-0} MB are)"
}

install_packages() { # install_packages PACKAGE…
    local package absent=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' ||
            absent+=("$package")
    done
    [ ${#absent[@]} = 0 ] && return 0
    command -v apt-get >/dev/null ||
        die "these packages are missing and there is no apt-get: ${absent[*]}"
    say "Installing Debian packages: ${absent[*]}"
    if ! DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -qq \
        -y --no-install-recommends "${absent[@]}" >/dev/null 2>&1; then
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -qq \
            -y --no-install-recommends "${absent[@]}" >/dev/null ||
            die "install Debian packages: ${absent[*]}"
    fi
}

prerequisites() {
    [ "$(id -u)" = 0 ] || die "must be root: it makes network namespaces, cgroups and mounts"
    [ "$(uname -s)" = Linux ] || die "needs Linux, this is $(uname -s)"
    install_packages "${debian_packages[@]}"
    check_kernel
    check_room
    if [ ${#missing[@]} -gt 0 ]; then
        printf 'cluster: this machine lacks:\n' >&2
        printf '  - %s\n' "${missing[@]}" >&2
        exit 1
    fi
}
