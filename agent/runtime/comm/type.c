/* SPDX-License-Identifier: Apache-2.0 */

/* Types and reductions: sizes and names. */
#include "agent/runtime/comm/comm.h"

size_t comm_type_size(enum comm_type type)
{
    static const size_t sizes[COMM_TYPES] = {
        [COMM_UINT8] = 1, [COMM_INT8] = 1,      [COMM_INT32] = 4,      [COMM_INT64] = 8,
        [COMM_FP16] = 2,  [COMM_BF16] = 2,      [COMM_FP32] = 4,       [COMM_FP64] = 8,
        [COMM_BOOL] = 1,  [COMM_COMPLEX64] = 8, [COMM_COMPLEX128] = 16};

    return sizes[type];
}

const char *comm_type_name(enum comm_type type)
{
    static const char *const names[COMM_TYPES] = {[COMM_UINT8] = "uint8",
                                                  [COMM_INT8] = "int8",
                                                  [COMM_INT32] = "int32",
                                                  [COMM_INT64] = "int64",
                                                  [COMM_FP16] = "fp16",
                                                  [COMM_BF16] = "bf16",
                                                  [COMM_FP32] = "fp32",
                                                  [COMM_FP64] = "fp64",
                                                  [COMM_BOOL] = "bool",
                                                  [COMM_COMPLEX64] = "complex64",
                                                  [COMM_COMPLEX128] = "complex128"};

    return names[type];
}

const char *comm_reduction_name(enum comm_reduction reduction)
{
    static const char *const names[COMM_REDUCTIONS] = {"sum", "max", "min", "prod", "avg"};

    return names[reduction];
}
