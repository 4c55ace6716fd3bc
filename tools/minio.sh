#!/usr/bin/env bash
# The path of a MinIO for the tests of S3, on standard output. It is built from its Go module once,
# into the cache of e2e/cluster, if a Go of 1.24 or newer is there.
#
#   tools/minio.sh          build it if need be
#   tools/minio.sh --built  only look; code 1: it is not built
set -euo pipefail

version=v0.0.0-20260212201848-7aac2a2c5b7c
cache=${FLEETJOB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetjob}
target=$cache/bin/minio-${version:7:14}

if [ -x "$target" ]; then
    echo "$target"
    exit 0
fi
if [ "${1:-}" = --built ]; then
    echo "MinIO is not built: tools/minio.sh builds it" >&2
    exit 1
fi

for go in "${GO:-go}" /usr/local/go/bin/go "$cache"/go/bin/go; do
    command -v "$go" >/dev/null && break
done
command -v "$go" >/dev/null || {
    echo "MinIO cannot be built: there is no Go" >&2
    exit 1
}
mkdir -p "$cache/bin"
exec 9>"$cache/minio.lock"
flock 9
[ ! -x "$target" ] || { echo "$target" && exit 0; }
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
echo "Building MinIO into $target (a few minutes the first time)" >&2
CGO_ENABLED=0 GOBIN=$temporary nice -n 15 timeout 1800 "$go" install -p 2 -trimpath \
    -ldflags '-s -w' "github.com/minio/minio@$version" >"$cache/minio-build.log" 2>&1 || {
    tail -n 5 "$cache/minio-build.log" >&2
    echo "MinIO cannot be built (log: $cache/minio-build.log)" >&2
    exit 1
}
mv "$temporary/minio" "$target"
echo "$target"
