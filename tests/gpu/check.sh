#!/usr/bin/env bash
# The whole suite on a GPU. It reads the device and its clocks, and changes no setting.
#
#   tests/gpu/check.sh [--build | --fake] [--package FOLDER] [--only PART] LOGS
#
#   --package   what to run: a folder that `make gpu-package` made (build/gpu)
#   --build     build that folder first, if this machine has a toolkit; without a GPU: "skipped"
#   --fake      over the fake CUDA runtime and the emulator, on any machine: to try this script
#   --only      one part: device, numerics, digests, jobs, cublaslt, nccl, comm, memory,
#               sanitizer
#
# Each part has a time limit, and goes on after a failure. Its output is in LOGS. The last line is
# "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/../.."

package=build/gpu build=0 fake=0 only=
while [ $# -gt 1 ]; do
    case $1 in
    --build) build=1 ;;
    --fake) fake=1 ;;
    --package) package=$2; shift ;;
    --only) only=$2; shift ;;
    *) sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2 ;;
    esac
    shift
done
logs=${1:?a folder for logs}
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)

if [ $fake = 0 ] && ! nvidia-smi -L >"$logs/gpus.txt" 2>&1; then
    echo "skipped: no GPU"
    exit 0
fi
if [ $build = 1 ] && [ ! -e "$package/bin/fleetjob" ]; then
    make --no-print-directory gpu-package
fi
package=$(cd "$package" && pwd)
library=$package/bin/libfleet_cuda.so
if [ $fake = 1 ]; then
    library=$PWD/build/cuda_fake/release/libfleet_cuda.so
fi

# The package's libwebsockets looks for its libuv plug-in in the folder that it runs in. So all run
# in a folder that has what the tree has, and the plug-in.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
ln -s "$PWD"/* "$place/"
ln -s "$package/lib/libwebsockets-evlib_uv.so" "$place/"

passed=0 failed=0

# part NAME SECONDS COMMAND…: run it, its output in LOGS/NAME.log; counts cmocka's tests, else 1.
part() {
    local name=$1 limit=$2 log=$logs/$1.log start rc=0 good bad
    shift 2
    start=$(date +%s%N)
    # the libraries of the package for its programs only: tools of this machine have their own
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null || rc=$?
    good=$(awk '/^\[  PASSED  \] [0-9]+ test/ { s += $4 } END { print s + 0 }' "$log")
    bad=$(awk '/^\[  FAILED  \] [0-9]+ test/ { s += $4 } END { print s + 0 }' "$log")
    if [ $rc = 0 ] && [ "$good" = 0 ]; then good=1; fi
    if [ $rc != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    passed=$((passed + good)) failed=$((failed + bad))
    printf '%s %-24s %2d passed, %2d failed, exit %d, %d ms\n' "$([ $rc = 0 ] && echo 'ok  ' ||
        echo FAIL)" "$name" "$good" "$bad" $rc $((($(date +%s%N) - start) / 1000000))
    if [ $rc != 0 ]; then
        { grep -aE '^\[  (ERROR|FAILED)|ERROR: |differ|results' "$log" || tail -n 25 "$log"; } |
            cut -c1-400 | head -n 40 | sed 's/^/    | /'
    fi
}

wanted() {
    [ -z "$only" ] || [ "$only" = "$1" ]
}

# Programs of the package, with its libraries.
run=(env -C "$place" "LD_LIBRARY_PATH=$package/lib" "FLEET_BIN=$package/bin"
    "FLEET_CUDA_LIBRARY=$library" "FLEET_TEST_GPU=$library" FLEET_NCCL_LIBRARY=none
    FLEET_CUBLASLT_LIBRARY=none
    FLEET_TEST_VARIANT=release)

# ---- the device ----------------------------------------------------------------------------------
if wanted device && [ $fake = 0 ]; then
    query=name,driver_version,compute_cap,memory.total,memory.used,clocks.sm,clocks.mem
    query=$query,clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current
    nvidia-smi --format=csv --query-gpu=$query |
        tee "$logs/device.txt"
    nvidia-smi | grep -oE 'CUDA Version: [0-9.]+' | tee -a "$logs/device.txt" || true
fi

# ---- operators, against the CPU's ----------------------------------------------------------------
for test in kernels kernels_sizes gradients attention parts dgc dgc_update fp8 rounding \
    trust_squares; do
    if wanted numerics; then
        rm -f "$logs/$test.digests"
        part "$test" 120 "${run[@]}" "FLEET_RIG_DIGEST=$logs/$test.digests" FLEET_TEST_VARIANT=race \
            "$package/tests/test_$test"
    fi
done

# ---- the emulator against the device -------------------------------------------------------------
# Without attention on tensor cores: their sums have other bits on the emulator.
for test in kernels kernels_sizes gradients parts; do
    if wanted digests && [ -e "$logs/$test.digests" ]; then
        part "$test-digests" 30 tests/gpu/compare.sh "$package/emulator/$test.txt" \
            "$logs/$test.digests"
    fi
done

# ---- whole jobs ----------------------------------------------------------------------------------
if wanted jobs; then
    part jobs 200 "${run[@]}" "$package/tests/test_cuda"
    part jobs-divided 100 "${run[@]}" "$package/tests/test_cuda_divided"
    part jobs-faults 100 "${run[@]}" "$package/tests/test_cuda_faults"
fi

# ---- the same with matrix products by cuBLASLt ---------------------------------------------------
# FLEET_CUBLASLT_LIBRARY, else what PyTorch brings.
find_cublaslt() {
    if [ $fake = 1 ]; then
        echo "$PWD/build/cublaslt_fake/libcublasLt.so.13"
        return
    fi
    echo "${FLEET_CUBLASLT_LIBRARY:-$(python3 -c '
import glob, importlib.util
for place in importlib.util.find_spec("nvidia").submodule_search_locations:
    for found in glob.glob(place + "/*/lib/libcublasLt.so.1[23]"):
        print(found)
        raise SystemExit' 2>/dev/null)}"
}
cublaslt=$(find_cublaslt)
if wanted cublaslt && [ -e "$cublaslt" ]; then
    echo "cuBLASLt: $cublaslt" | tee -a "$logs/device.txt"
    for test in kernels kernels_sizes gradients fp8; do
        part "cublaslt-$test" 120 "${run[@]}" "FLEET_CUBLASLT_LIBRARY=$cublaslt" \
            FLEET_TEST_VARIANT=race "$package/tests/test_$test"
    done
    for test in cuda cuda_divided cuda_faults; do
        part "cublaslt-jobs-$test" 200 "${run[@]}" "FLEET_CUBLASLT_LIBRARY=$cublaslt" \
            "$package/tests/test_$test"
    done
elif wanted cublaslt; then
    echo "skipped: no cuBLASLt, and FLEET_CUBLASLT_LIBRARY names none"
fi

# ---- the same by NCCL ----------------------------------------------------------------------------
# From 2.30 on two ranks can share a GPU. FLEET_NCCL_LIBRARY, else what PyTorch brings.
find_nccl() {
    echo "${FLEET_NCCL_LIBRARY:-$(python3 -c '
import importlib.util
for place in importlib.util.find_spec("nvidia.nccl").submodule_search_locations:
    print(place + "/lib/libnccl.so.2")
    break' 2>/dev/null)}"
}
nccl='' version=0
if { wanted nccl || wanted comm; } && [ $fake = 0 ]; then
    nccl=$(find_nccl)
    version=$(python3 -c '
import ctypes, sys
v = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v))
print(v.value)' "$nccl" 2>/dev/null || echo 0)
    echo "NCCL $version: ${nccl:-none}" | tee -a "$logs/device.txt"
    if [ "$version" -lt 23000 ]; then
        echo "skipped: two ranks on one GPU need NCCL 2.30"
    fi
fi
shared=("${run[@]}" "FLEET_NCCL_LIBRARY=$nccl" NCCL_MULTI_RANK_GPU_ENABLE=1)
if wanted nccl && [ "$version" -ge 23000 ]; then
    part nccl-jobs 200 "${shared[@]}" "$package/tests/test_cuda"
    part nccl-jobs-divided 150 "${shared[@]}" "$package/tests/test_cuda_divided"
    part nccl-jobs-faults 100 "${shared[@]}" "$package/tests/test_cuda_faults"
fi

# ---- communicators -------------------------------------------------------------------------------
# NCCL says of each communicator that it makes that it is complete: without that it was not in use.
if wanted comm && [ $fake = 1 ]; then
    for test in nccl renewal; do
        part comm-$test 200 "${run[@]}" FLEET_TEST_GPU= "$package/tests/test_comm_$test"
    done
elif wanted comm && [ "$version" -ge 23000 ]; then
    rm -f "$logs"/nccl.*
    for test in nccl renewal divided conformance loss; do
        part comm-$test 150 "${shared[@]}" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT \
            "NCCL_DEBUG_FILE=$logs/nccl.%p" "$package/tests/test_comm_$test"
        grep -aE '^NCCL |ms since' "$logs/comm-$test.log" | sed 's/^/    | /' || true
    done
    cat "$logs"/nccl.[0-9]* >"$logs/nccl.log" && rm -f "$logs"/nccl.[0-9]*
    echo "NCCL made communicators for $(grep -c 'Init COMPLETE' "$logs/nccl.log" || true) ranks"
    part comm-nccl-log 5 grep -c 'Init COMPLETE' "$logs/nccl.log"
fi

if wanted comm; then # without NCCL
    part comm-ipc 100 "${run[@]}" "$package/tests/test_comm_ipc"
fi

# ---- planned memory, and what a trainer takes ----------------------------------------------------
if wanted memory && [ $fake = 0 ]; then
    part memory 90 "${run[@]}" FLEET_BACKEND=cuda tests/gpu/memory.sh "$package/bin/fleetjob"
    tail -n 1 "$logs/memory.log"
fi

# ---- the sanitizer of the toolkit ----------------------------------------------------------------
if wanted sanitizer && [ $fake = 0 ]; then
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck; do
            for test in kernels kernels_sizes gradients attention; do
                part "$tool-$test" 60 "${run[@]}" FLEET_TEST_VARIANT=race compute-sanitizer \
                    --tool $tool --error-exitcode 9 --print-limit 20 "$package/tests/test_$test"
            done
        done
    else
        echo "skipped: compute-sanitizer is not on the PATH"
    fi
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
