/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_EMULATOR_PLANTED_H
#define TESTS_CUDA_EMULATOR_PLANTED_H

/* Tiny kernels with a bug each (planted.cu), and what finds it. */

#include <stdbool.h>

#include "tests/cuda_emulator/include/cuda_runtime_api.h"

enum planted {
    PLANTED_REVERSE,
    PLANTED_TREE,
    PLANTED_TWICE,
    PLANTED_NEIGHBOUR,
    PLANTED_HALF_SHUFFLE,
    PLANTED_MASK,
    PLANTED_EARLY_RETURN,
    PLANTED_BRANCHES,
    PLANTED_UNWRITTEN,
    PLANTED_COUNT,
    PLANTED_NAMED,
    PLANTED_SWAPPED_SCALE,
    PLANTED_LATE_COPY,
    PLANTED_BLOCKS,
    PLANTED_PIPELINE,
    PLANTED_REUSE,
    PLANTED_FRAGMENT,
    PLANTED_HALF_FRAGMENT,
    PLANTED_MISALIGNED,
    PLANTED_BUGS,
};

#ifdef __cplusplus
extern "C" {
#endif

/* x[64] to y[64] (50 elements for TWICE), total[1] for COUNT: all in device memory. */
cudaError_t planted_run(enum planted bug, const float *x, float *y, int *total, bool is_wrong);

#ifdef __cplusplus
}
#endif

#endif
