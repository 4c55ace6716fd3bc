#!/usr/bin/env bash
# The CUDA toolkit: that of the system, else the wheels of cuda/toolkit.txt in the cache.
#
#   tools/cuda-toolkit.sh find     print the folder that has bin/nvcc; nothing if there is none
#   tools/cuda-toolkit.sh fetch    the same; get the wheels from PyPI first if there is none
#   tools/cuda-toolkit.sh libraries
#                                  print the folder with the libraries of the CUDA image; get the
#                                  wheels of cuda/libraries.txt first if they are not in the cache
#
# CUDA_HOME names a toolkit; "none" means that there is none to be found. The cache is
# FLEETJOB_CACHE (~/.cache/fleetjob). A toolkit of the system counts from 12.8 on, the first that
# knows sm_100.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${FLEETJOB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fleetjob}
wheels=$cache/cuda-$(sha256sum <cuda/toolkit.txt | cut -c1-12)
libraries=$cache/cuda-libraries-$(sha256sum <cuda/libraries.txt | cut -c1-12)

is_new_enough() { # is_new_enough FOLDER
    local version major minor
    version=$("$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    IFS=. read -r major minor _ <<<"${version:-0.0}"
    [ "$major" -gt 12 ] || { [ "$major" = 12 ] && [ "${minor:-0}" -ge 8 ]; }
}

find_toolkit() {
    local nvcc folder
    [ "${CUDA_HOME:-}" != none ] || return 1
    nvcc=$(command -v nvcc || true)
    for folder in "${CUDA_HOME:-}" "${nvcc:+$(dirname "$(dirname "$(readlink -f "$nvcc")")")}" \
        /usr/local/cuda; do
        if [ -n "$folder" ] && [ -x "$folder/bin/nvcc" ] && is_new_enough "$folder"; then
            printf '%s\n' "$folder"
            return 0
        fi
    done
    [ -x "$wheels/nvidia/cu13/bin/nvcc" ] || return 1
    printf '%s\n' "$wheels/nvidia/cu13"
}

# Into a folder beside, renamed when it is complete: FOLDER is never half a toolkit.
fetch_wheels() { # fetch_wheels LIST FOLDER WHAT
    local half list=$1 folder=$2
    mkdir -p "$cache"
    half=$(mktemp -d "$cache/cuda-new.XXXXXX")
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$half'" EXIT
    echo "$3 from PyPI into $folder" >&2
    python3 -c 'import ensurepip, venv' 2>/dev/null || {
        echo "cuda-toolkit: Python has no venv. As root: apt-get install python3-venv" >&2
        return 1
    }
    python3 -m venv "$half/venv"
    "$half/venv/bin/pip" --disable-pip-version-check install --quiet --no-deps --require-hashes \
        --only-binary :all: --target "$half/wheels" -r "$list" || {
        echo "cuda-toolkit: pip could not install $list (its words are above)" >&2
        return 1
    }
    [ -e "$folder" ] || mv "$half/wheels" "$folder"
}

case ${1:-} in
find) find_toolkit || true ;;
fetch)
    find_toolkit || {
        fetch_wheels cuda/toolkit.txt "$wheels" \
            "The CUDA toolkit comes (100 MB, 280 MB unpacked)" && find_toolkit
    }
    ;;
libraries)
    [ -e "$libraries" ] || fetch_wheels cuda/libraries.txt "$libraries" \
        "cuBLASLt and NCCL come (hundreds of MB)"
    printf '%s\n' "$libraries"
    ;;
*) echo "tools/cuda-toolkit.sh: find, fetch or libraries, not ${1:-nothing}" >&2; exit 2 ;;
esac
