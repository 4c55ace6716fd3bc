/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Types and reductions. A reduction goes over the inputs in their order, a block of elements at a
 * time: integers wrap around; fp16 and bf16 are summed in fp32 and rounded once; the average is the
 * sum divided by the number of inputs.
 */
#include <string.h>

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "agent/runtime/comm/engine.h"
#include "libfleet/base/assert.h"

#define BLOCK 1024 /* elements */

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

/* ---- one block, in the type in which it is added --------------------------------------------- */

#define SAME(x)       (x)
#define GREATER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b)) /* a NaN wins */
#define LESS(a, b)    ((a) < (b) || (a) != (a) ? (a) : (b))
#define EACH(expression)            \
    for (int64_t i = 0; i < n; i++) \
    acc[i] = (expression)

/*
 * fold_NAME(): acc[0 … n) op= the elements of `from`; start_NAME(): acc = them; finish_NAME(): to =
 * acc. `acc` has type `wide`, elements have type `narrow`. Integers are added unsigned, so they
 * wrap.
 */
/* NOLINTBEGIN(bugprone-macro-parentheses): types cannot be in parentheses */
#define DEFINE_FOLD(name, narrow, wide, sum_type, load, store)                                   \
    static void start_##name(void *accumulator, const void *input, int64_t n)                    \
    {                                                                                            \
        wide *restrict acc = accumulator;                                                        \
        const narrow *restrict from = input;                                                     \
        EACH((wide)load(from[i]));                                                               \
    }                                                                                            \
    static void fold_##name(enum comm_reduction reduction, void *accumulator, const void *input, \
                            int64_t n)                                                           \
    {                                                                                            \
        wide *restrict acc = accumulator;                                                        \
        const narrow *restrict from = input;                                                     \
        if (reduction == COMM_MAX)                                                               \
            EACH(GREATER(acc[i], (wide)load(from[i])));                                          \
        else if (reduction == COMM_MIN)                                                          \
            EACH(LESS(acc[i], (wide)load(from[i])));                                             \
        else if (reduction == COMM_PROD)                                                         \
            EACH((wide)((sum_type)acc[i] * (sum_type)load(from[i])));                            \
        else                                                                                     \
            EACH((wide)((sum_type)acc[i] + (sum_type)load(from[i])));                            \
    }                                                                                            \
    static void finish_##name(const void *accumulator, int64_t n, int divisor, void *output)     \
    {                                                                                            \
        const wide *restrict acc = accumulator;                                                  \
        narrow *restrict to = output;                                                            \
        for (int64_t i = 0; i < n; i++)                                                          \
            to[i] = (narrow)store(divisor > 1 ? (wide)(acc[i] / (wide)divisor) : acc[i]);        \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

DEFINE_FOLD(uint8, uint8_t, uint8_t, uint32_t, SAME, SAME)
DEFINE_FOLD(int8, int8_t, int8_t, uint32_t, SAME, SAME)
DEFINE_FOLD(int32, int32_t, int32_t, uint32_t, SAME, SAME)
DEFINE_FOLD(int64, int64_t, int64_t, uint64_t, SAME, SAME)
DEFINE_FOLD(fp16, uint16_t, float, float, typed_of_fp16, typed_to_fp16)
DEFINE_FOLD(bf16, uint16_t, float, float, typed_of_bf16, typed_to_bf16)
DEFINE_FOLD(fp32, float, float, float, SAME, SAME)
DEFINE_FOLD(fp64, double, double, double, SAME, SAME)

static const struct folding {
    void (*start)(void *acc, const void *input, int64_t n);
    void (*fold)(enum comm_reduction reduction, void *acc, const void *input, int64_t n);
    void (*finish)(const void *acc, int64_t n, int divisor, void *to);
} foldings[COMM_TYPES] = {
    [COMM_UINT8] = {start_uint8, fold_uint8, finish_uint8},
    [COMM_INT8] = {start_int8, fold_int8, finish_int8},
    [COMM_INT32] = {start_int32, fold_int32, finish_int32},
    [COMM_INT64] = {start_int64, fold_int64, finish_int64},
    [COMM_FP16] = {start_fp16, fold_fp16, finish_fp16},
    [COMM_BF16] = {start_bf16, fold_bf16, finish_bf16},
    [COMM_FP32] = {start_fp32, fold_fp32, finish_fp32},
    [COMM_FP64] = {start_fp64, fold_fp64, finish_fp64},
    [COMM_BOOL] = {start_uint8, fold_uint8, finish_uint8},
};

void comm_fold(enum comm_type type, enum comm_reduction reduction, const void *const *inputs, int n,
               int64_t count, void *to)
{
    const struct folding *folding = &foldings[type];
    size_t size = comm_type_size(type);
    _Alignas(16) unsigned char acc[BLOCK * sizeof(double)];

    fleet_assert(folding->fold != NULL);
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t block = count - at < BLOCK ? count - at : BLOCK;
        size_t offset = (size_t)at * size;
        folding->start(acc, (const char *)inputs[0] + offset, block);
        for (int r = 1; r < n; r++)
            folding->fold(reduction, acc, (const char *)inputs[r] + offset, block);
        folding->finish(acc, block, reduction == COMM_AVG ? n : 1, (char *)to + offset);
    }
}
