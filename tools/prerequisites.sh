#!/usr/bin/env bash
# See to it that the Debian packages are there which a goal needs: installed by apt-get when we are
# root, otherwise named, with exit 1.
#
#   tools/prerequisites.sh build|test …
set -euo pipefail

build='ca-certificates gcc libc6-dev pkg-config libcjson-dev libcurl4-openssl-dev libssl-dev
       libuv1-dev libwebsockets-dev libwebsockets-evlib-uv libyaml-dev
       libfreetype-dev libpng-dev fonts-dejavu-core'
test='clang libclang-rt-14-dev clang-format clang-tidy shellcheck yamllint codespell libcmocka-dev
      python3-yaml bats ccache musl-tools spin'

wanted=''
for goal in "$@"; do
    case $goal in
    build) wanted+=" $build" ;;
    test) wanted+=" $build $test" ;;
    *) echo "tools/prerequisites.sh: unknown goal $goal (build, test)" >&2; exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null; then
    echo "This is not Debian; please see to it that these are installed:" $wanted
    exit 0
fi
missing=''
for package in $wanted; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
        missing+=" $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "These Debian packages are missing. As root: apt-get install$missing" >&2
    exit 1
fi
echo "Installing Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086
if ! { apt-get update -qq && apt-get -o DPkg::Lock::Timeout=300 install -y -qq \
    --no-install-recommends $missing; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "apt-get could not install$missing (its words are above)" >&2
    exit 1
fi
