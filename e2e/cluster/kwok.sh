# shellcheck shell=bash disable=SC2154 # names of common.sh
# Nodes that are objects only: KWOK renews their leases and says that every pod bound to them runs.
# What a thousand pods cost everybody but the kubelets can be seen on one machine.

# No client limits its own requests, so that every operator that is compared runs at its best.
kwok_flags=(--kube-api-qps=5000 --kube-api-burst=5000)

make_kwok_nodes() { # make_kwok_nodes KUBERNETES COUNT
    local i
    for i in $(seq "$2"); do
        cat <<NODE
---
apiVersion: v1
kind: Node
metadata: {name: kwok-$i, labels: {kubernetes.io/hostname: kwok-$i, kubernetes.io/os: linux, type: kwok}}
status:
  capacity: {cpu: "1000", memory: 4Ti, pods: "1000"}
  allocatable: {cpu: "1000", memory: 4Ti, pods: "1000"}
NODE
    done | "$1" kubectl apply -f - >/dev/null
}

# A lease is renewed every quarter of its duration; a node may be silent for 10 s
# (control_plane.sh).
up_kwok() {
    local nodes=$1 k8s go began=$SECONDS
    [[ $nodes =~ ^[1-9][0-9]{0,2}$ ]] || die "NODES must be 1 to 999, not '$nodes'"
    [ -z "$(node_numbers)" ] || die \
        "the cluster that runs has nodes of its own; stop it first: $0 down"
    if [ ! -x "$(kwok_binary)" ]; then
        prerequisites
        find_go >/dev/null || install_go
        go=$(find_go)
        build_kwok "$go"
    fi
    up_control_plane "${kwok_flags[@]}"
    run kwok "$(kwok_binary)" --kubeconfig="$KUBECONFIG" --manage-all-nodes \
        --node-lease-duration-seconds=8 \
        --server-address=127.0.0.1:10247
    make_kwok_nodes "$k8s" "$nodes"
    wait_until "$nodes nodes of KWOK" kwok_nodes_are_ready "$k8s" "$nodes"
    wait_for_service_account "$k8s"
    tell_up "$nodes nodes of KWOK" "$began"
}

kwok_nodes_are_ready() { # kwok_nodes_are_ready KUBERNETES COUNT
    [ "$("$1" kubectl get nodes -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}' |
        grep -ow True | wc -l)" -ge "$2" ]
}
