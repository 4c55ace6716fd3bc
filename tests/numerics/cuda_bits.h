/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_CUDA_BITS_H
#define TESTS_NUMERICS_CUDA_BITS_H

/* The list of docs/cuda-kernels.md: kernels with the CPU's bits. */

#include <stdbool.h>

#include "libfleet/program/program.h"

/* Do the results of the CUDA kernel have the CPU's bits, at levels with fused multiply-add? */
static inline bool cuda_has_cpu_bits(enum op_kind kind)
{
    static const bool same[OP_KIND_COUNT] = {
        [OP_EMBEDDING] = true,   [OP_EMBEDDING_GRAD] = true, [OP_ADD] = true,
        [OP_ADD_GRAD_B] = true,  [OP_SCALE] = true,          [OP_GELU] = true,
        [OP_GELU_GRAD] = true,   [OP_RELU] = true,           [OP_RELU_GRAD] = true,
        [OP_SILU] = true,        [OP_SILU_GRAD] = true,      [OP_SWIGLU] = true,
        [OP_SWIGLU_GRAD] = true, [OP_ROPE] = true,           [OP_DROPOUT] = true,
        [OP_CAST] = true,        [OP_RESHAPE] = true,        [OP_TRANSPOSE] = true,
        [OP_REDUCE_GRAD] = true, [OP_CONCAT] = true,         [OP_SPLIT] = true,
        [OP_MAX_POOL2D] = true,  [OP_AVG_POOL2D] = true,     [OP_ADAPTIVE_AVG_POOL2D] = true,
        [OP_FILL] = true,        [OP_GRAD_NORM] = true,      [OP_CHECK_FINITE] = true,
        [OP_SGD] = true,         [OP_MOMENTUM] = true,       [OP_ADAM] = true,
        [OP_ADAMW] = true,       [OP_LAMB] = true,           [OP_LARS] = true,
        [OP_JOIN_NORMS] = true,  [OP_SPREAD_NORMS] = true,   [OP_TOTAL_NORM] = true,
        [OP_SUBTRACT] = true,    [OP_TRUST_SQUARES] = true,  [OP_DGC_SELECT] = true,
        [OP_DGC] = true,
    };

    return same[kind];
}

#endif
