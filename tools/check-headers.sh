#!/usr/bin/env bash
# Every header compiles alone, so an include list can be read from the header that is used.
#   tools/check-headers.sh CC CFLAGS
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
while read -r header; do
    # shellcheck disable=SC2086
    if ! $1 $2 -fsyntax-only -x c "$header" 2>/dev/null; then
        echo "$header does not compile alone:"
        # shellcheck disable=SC2086
        $1 $2 -fsyntax-only -x c "$header" || true
        bad=1
    fi
# Those of the emulator take the place of CUDA's, for C++; the others left out include CUDA's.
done < <(git ls-files 'libfleet/*.h' 'controller/*.h' 'agent/*.h' 'cli/*.h' 'tests/*.h' \
    'distributed/*.h' 'include/*.h' \
    ':!tests/cuda_emulator/include' ':!tests/nccl_fake' ':!tests/cublaslt_fake' \
    ':!tests/bench/gpu' ':!tests/unit/cublaslt_fixture.h')
exit $bad
