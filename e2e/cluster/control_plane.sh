# shellcheck shell=bash disable=SC2154 # names of common.sh
# etcd, API server, controller manager and scheduler, on the host's own network.

# run NAME COMMAND…: start it unless it runs already.
run() {
    recorded_pid "$1" >/dev/null || start "$@"
}

make_bridge() {
    ip link show fleetbr >/dev/null 2>&1 || ip link add fleetbr type bridge
    ip addr replace "$host/24" dev fleetbr
    ip link set fleetbr up
    sysctl -qw net.ipv4.ip_forward=1
}

# A port that someone else holds would show up as an API server that never becomes ready.
check_ports() {
    local port holder
    for port in 6443:apiserver 2379:etcd 2380:etcd 10257:manager 10259:scheduler; do
        recorded_pid "${port#*:}" >/dev/null && continue
        holder=$(ss -Hltnp "sport = :${port%:*}" | sed -E 's/.*users:\(\("([^"]*)",pid=([0-9]+).*/\1, process \2/' | head -n 1)
        [ -z "$holder" ] || die "port ${port%:*}, which ${port#*:} needs, is in use by $holder"
    done
}

# start_control_plane KUBERNETES [FLAG…]: flags of controller manager and scheduler
start_control_plane() {
    local k8s=$1
    shift
    cat >"$state/audit.yaml" <<CONFIG
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
CONFIG
    run etcd "$k8s" etcd --data-dir "$state/etcd" --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
        --unsafe-no-fsync
    run apiserver "$k8s" apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 \
        --advertise-address="$host" --secure-port=6443 \
        --tls-cert-file="$state/pki/apiserver.crt" \
        --tls-private-key-file="$state/pki/apiserver.key" \
        --client-ca-file="$state/pki/ca.crt" --service-account-key-file="$state/pki/sa.pub" \
        --service-account-signing-key-file="$state/pki/sa.key" \
        --service-account-issuer=https://kubernetes.default.svc \
        --service-cluster-ip-range=10.96.0.0/16 \
        --authorization-mode=Node,RBAC --allow-privileged \
        --enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement \
        --kubelet-client-certificate="$state/pki/admin.crt" \
        --kubelet-client-key="$state/pki/admin.key" \
        --kubelet-preferred-address-types=InternalIP --audit-policy-file="$state/audit.yaml" \
        --audit-log-path="$state/log/audit.log" --audit-log-maxsize=1000000 \
        --shutdown-delay-duration=0s
    wait_until "API server ready" "$k8s" kubectl get --raw /readyz
    run manager "$k8s" manager --kubeconfig="$state/pki/manager.conf" \
        --authentication-kubeconfig="$state/pki/manager.conf" \
        --authorization-kubeconfig="$state/pki/manager.conf" \
        --service-account-private-key-file="$state/pki/sa.key" --root-ca-file="$state/pki/ca.crt" \
        --use-service-account-credentials --leader-elect=false \
        --node-monitor-grace-period=10s --node-monitor-period=1s \
        --horizontal-pod-autoscaler-sync-period=2s "$@"
    run scheduler "$k8s" scheduler --kubeconfig="$state/pki/scheduler.conf" \
        --authentication-kubeconfig="$state/pki/scheduler.conf" \
        --authorization-kubeconfig="$state/pki/scheduler.conf" --leader-elect=false "$@"
    "$k8s" kubectl get clusterrolebinding proxy >/dev/null 2>&1 ||
        "$k8s" kubectl create clusterrolebinding proxy --clusterrole=system:node-proxier \
            --user=system:kube-proxy >/dev/null
}

# Pods are refused with 403 until the controller manager has made a namespace's service account.
wait_for_service_account() {
    wait_until "service account default" "$1" kubectl get serviceaccount default
}
