#!/usr/bin/env bash
# Put what tests/gpu/check.sh and tests/bench/gpu.py need into one folder, to carry to a machine
# with a GPU:
#
#   tests/gpu/package.sh FOLDER
#
#   bin/       programs and libfleet_cuda.so, bench_gpu, without debug information
#   tests/     test programs
#   lib/       the libraries that they need, but those of glibc and of the compiler, and the one
#              that libwebsockets opens by itself
#   emulator/  digests of the rig's runs on the emulator
#
# `make gpu-package` builds everything first.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:?folder}

rm -rf "$folder"
mkdir -p "$folder"/{bin,tests,lib,emulator}
cp build/bin/{fleetjob,fleetjob-agent,fleetjob-train,fleetjob-preload.so,libfleet_cuda.so} \
    "$folder/bin/"
cp build/device/{test_kernels,test_kernels_sizes,test_gradients,test_attention,test_parts} \
    build/device/test_{shared_statistics,dgc,dgc_update,fp8,rounding,trust_squares} \
    build/release/tests/integration/test_cuda{,_divided,_faults} \
    build/release/tests/integration/test_comm_{conformance,divided,ipc,loss,nccl,renewal} \
    "$folder/tests/"
cp build/device/bench_{gpu,nccl} "$folder/bin/"
strip "$folder"/bin/* "$folder"/tests/*

# LC_ALL: the words "not found" are looked for.
for program in "$folder"/bin/* "$folder"/tests/*; do
    LC_ALL=C ldd "$program"
done | awk '/not found/ { print "missing: " $1 > "/dev/stderr"; exit 1 } $2 == "=>" { print $3 }' |
    sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+)\.so' |
    while read -r library; do
        cp -L "$library" "$folder/lib/"
    done
# libwebsockets opens its libuv plug-in by the path where it is installed. In the package's copy
# this is the folder that a program runs in.
websockets=$(ldd build/bin/fleetjob | awk '/libwebsockets/ { print $3 }')
installed=$(dirname "$(realpath "$websockets")")
cp -L "$(dirname "$websockets")/libwebsockets-evlib_uv.so" "$folder/lib/"
strip --strip-unneeded "$folder"/lib/*
python3 - "$folder/lib/$(basename "$websockets")" "$installed" <<'PYTHON'
import sys
name, installed = sys.argv[1], sys.argv[2].encode() + b"\0"
with open(name, "rb") as file:
    content = file.read()
if installed not in content:
    sys.exit(f"{name} does not name the folder of its plug-ins, {installed.decode()}")
with open(name, "wb") as file:
    file.write(content.replace(installed, b".".ljust(len(installed), b"\0")))
PYTHON

for test in kernels kernels_sizes gradients parts; do
    FLEET_RIG_DIGEST=$folder/emulator/$test.txt FLEET_TEST_VARIANT=race \
        build/emulator/race/test_$test >"$folder/emulator/$test.log" 2>&1 ||
        { tail -n 20 "$folder/emulator/$test.log"; exit 1; }
    rm "$folder/emulator/$test.log"
done
du -sh "$folder"
