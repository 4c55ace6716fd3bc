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
cp build/device/{test_kernels,test_gradients,test_attention} \
    build/release/tests/integration/test_cuda \
    build/release/tests/integration/test_comm_{conformance,loss,nccl,renewal} "$folder/tests/"
cp build/device/bench_gpu "$folder/bin/"
strip "$folder"/bin/* "$folder"/tests/*

# LC_ALL: the words "not found" are looked for.
for program in "$folder"/bin/* "$folder"/tests/*; do
    LC_ALL=C ldd "$program"
done | awk '/not found/ { print "missing: " $1 > "/dev/stderr"; exit 1 } $2 == "=>" { print $3 }' |
    sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+)\.so' |
    while read -r library; do
        cp -L "$library" "$folder/lib/"
    done
cp -L "$(ldd build/bin/fleetjob | awk '/libwebsockets/ { sub(/[^\/]*$/, "", $3); print $3 }'
)libwebsockets-evlib_uv.so" "$folder/lib/"
strip --strip-unneeded "$folder"/lib/*

for test in kernels gradients; do
    FLEET_RIG_DIGEST=$folder/emulator/$test.txt FLEET_TEST_VARIANT=race \
        build/emulator/race/test_$test >"$folder/emulator/$test.log" 2>&1 ||
        { tail -n 20 "$folder/emulator/$test.log"; exit 1; }
    rm "$folder/emulator/$test.log"
done
du -sh "$folder"
