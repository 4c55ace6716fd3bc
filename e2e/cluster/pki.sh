# shellcheck shell=bash disable=SC2154 # names of common.sh
# Certificates and kubeconfig files. A folder is filled beside its place and renamed, so an
# interrupted run leaves none or a whole one.

# certificate FOLDER NAME SUBJECT [SUBJECT_ALT_NAME]: NAME.key, NAME.crt and NAME.conf (a
# kubeconfig)
certificate() {
    local pki=$1 name=$2 subject=$3 alternative=${4:-DNS:$2}
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$pki/$name.key" \
        -out "$pki/$name.csr" -subj "$subject" 2>/dev/null
    openssl x509 -req -in "$pki/$name.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial \
        -days 3650 -out "$pki/$name.crt" 2>/dev/null \
        -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth' "$alternative")
    rm "$pki/$name.csr"
    cat >"$pki/$name.conf" <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: fleet, cluster: {server: "https://$host:6443", certificate-authority: $state/pki/ca.crt}}]
users: [{name: $name, user: {client-certificate: $state/pki/$name.crt, client-key: $state/pki/$name.key}}]
contexts: [{name: fleet, context: {cluster: fleet, user: $name}}]
current-context: fleet
CONFIG
}

make_pki() {
    local new=$state/pki.new i
    [ -d "$state/pki" ] && return 0
    rm -rf "$new"
    mkdir -m 700 "$new"
    openssl genrsa -out "$new/sa.key" 2048 2>/dev/null
    openssl rsa -in "$new/sa.key" -pubout -out "$new/sa.pub" 2>/dev/null
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$new/ca.key" \
        -out "$new/ca.crt" -days 3650 -subj /CN=fleetjob-cluster-ca 2>/dev/null
    certificate "$new" apiserver /CN=kube-apiserver \
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:$host,IP:10.96.0.1"
    certificate "$new" manager /CN=system:kube-controller-manager
    certificate "$new" scheduler /CN=system:kube-scheduler
    certificate "$new" proxy /CN=system:kube-proxy
    certificate "$new" admin /O=system:masters/CN=admin
    for i in $(seq 9); do
        certificate "$new" "node-$i" "/O=system:nodes/CN=system:node:node-$i" \
            "DNS:node-$i,IP:$(node_address "$i")"
    done
    mv "$new" "$state/pki"
}
