#!/usr/bin/env bash
# image.sh FRAMEWORK PYTHON ARCHIVE: an image made from folders, fleet.local/FRAMEWORK:1: these
# scripts in /app, the interpreter PYTHON with its standard library, and what they load of this
# machine. Packages of more than FLEETJOB_FOREIGN_MB (0) are left out: the folder to mount beside
# the image is printed then. Two nodes need a minute for a gigabyte.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
framework=$1 python=$2 archive=$3
root=$(mktemp -d "$(dirname "$archive")/root.XXXXXX")
trap 'rm -rf "$root"' EXIT

# Of the interpreter: its own file, the standard library, and the folder with the packages.
{
    read -r program
    read -r standard
    read -r packages
} < <("$python" -c "
import importlib.util, os, sys, sysconfig
site = os.path.dirname(os.path.dirname(importlib.util.find_spec('$framework').origin))
print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'),
      site if sys.prefix == sys.base_prefix else sys.prefix, sep='\n')")

without=(--exclude=__pycache__ --exclude='*.a' --exclude="$packages/include"
    --exclude="$standard/site-packages" --exclude="$standard/dist-packages"
    --exclude="$standard/test" --exclude="$standard/config-*" --exclude="$standard/ensurepip")
# What processors do not need of packages: other devices, tests, headers, pip.
lean=(--exclude='*/include' --exclude='*/plugin/gpu*' --exclude='*/plugin/ascend*'
    --exclude='*_gpu.so*' --exclude='*_ascend.so*' --exclude='*/tests'
    --exclude='*/site-packages/pip')

copy() { # copy FILE…: into the image, where they lie here
    local file
    for file; do
        [ ! -e "$file" ] || install -D -m 755 "$(realpath "$file")" "$root$file"
    done
}

mkdir -p "$root/app"
install -d -m 1777 "$root/tmp"
cp "$here"/*.py "$root/app"
copy /lib64/ld-linux-x86-64.so.2 /bin/sh /sbin/ldconfig "$(dirname "$program")"/python3*
# What the interpreter and the packages load of this machine.
while read -r library; do
    copy "$library"
done < <({
    { find "$packages" -name '*.so*' -type f -exec readelf -dW {} + 2>/dev/null || true; } |
        sed -nE 's|.*\(NEEDED\).*\[(.*)\]|/lib/x86_64-linux-gnu/\1|p' | sort -u
    ldd "$program" "$standard"/lib-dynload/*.so |
        sed -nE 's/^\t.* => (\/[^ ]+) \(0x.*/\1/p' | sort -u
})

parts=("${standard#/}")
if [ "$(du -sm "${lean[@]}" "$packages" | cut -f1)" -gt "${FLEETJOB_FOREIGN_MB:-0}" ]; then
    echo "$packages"
else
    parts+=("${packages#/}")
    without+=("${lean[@]}")
fi
"$here/../../e2e/cluster/folder_image.sh" "$archive" "fleet.local/$framework:1" "$root" \
    "${without[@]/#--exclude=\//--exclude=}" "${parts[@]}"
