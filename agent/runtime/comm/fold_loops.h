/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_FOLD_LOOPS_H
#define AGENT_RUNTIME_COMM_FOLD_LOOPS_H

/*
 * The table of one instruction-set level. A source defines COMM_FOLDINGS, its name, and includes
 * this. The compiler makes vectors of the loops; fp16 and bf16 are converted sixteen at a time.
 */

#ifndef COMM_FOLDINGS
#define COMM_FOLDINGS comm_foldings_plain /* for those that read this file alone */
#endif

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "agent/runtime/comm/fold.h"

#define GREATER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b)) /* a NaN wins */
#define LESS(a, b)    ((a) < (b) || (a) != (a) ? (a) : (b))
#define EACH(expression)            \
    for (int64_t i = 0; i < n; i++) \
    acc[i] = (expression)

/* Integers are added unsigned, so they wrap around. */
/* NOLINTBEGIN(bugprone-macro-parentheses): types cannot be in parentheses */
#define DEFINE_FOLD(name, type, sum_type)                                                        \
    static void start_##name(void *accumulator, const void *input, int64_t n)                    \
    {                                                                                            \
        type *restrict acc = accumulator;                                                        \
        const type *restrict from = input;                                                       \
        EACH(from[i]);                                                                           \
    }                                                                                            \
    static void fold_##name(enum comm_reduction reduction, void *accumulator, const void *input, \
                            int64_t n)                                                           \
    {                                                                                            \
        type *restrict acc = accumulator;                                                        \
        const type *restrict from = input;                                                       \
        if (reduction == COMM_MAX)                                                               \
            EACH(GREATER(acc[i], from[i]));                                                      \
        else if (reduction == COMM_MIN)                                                          \
            EACH(LESS(acc[i], from[i]));                                                         \
        else if (reduction == COMM_PROD)                                                         \
            EACH((type)((sum_type)acc[i] * (sum_type)from[i]));                                  \
        else                                                                                     \
            EACH((type)((sum_type)acc[i] + (sum_type)from[i]));                                  \
    }                                                                                            \
    static void finish_##name(const void *accumulator, int64_t n, int divisor, void *output)     \
    {                                                                                            \
        const type *restrict from = accumulator;                                                 \
        type *restrict acc = output;                                                             \
        if (divisor > 1)                                                                         \
            EACH((type)(from[i] / (type)divisor));                                               \
        else                                                                                     \
            EACH(from[i]);                                                                       \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

DEFINE_FOLD(uint8, uint8_t, uint32_t)
DEFINE_FOLD(int8, int8_t, uint32_t)
DEFINE_FOLD(int32, int32_t, uint32_t)
DEFINE_FOLD(int64, int64_t, uint64_t)
DEFINE_FOLD(fp32, float, float)
DEFINE_FOLD(fp64, double, double)

/* ---- halves ---------------------------------------------------------------------------------- */

/* At narrowing to fp16 a processor keeps some bits of a NaN. Here only its sign stays, as in
 * typed_to_fp16(). */
V_INLINE v16 same_nan(v16 a)
{
#if defined(__AVX512F__)
    __m512i quiet = _mm512_set1_epi32(0x7fc00000), sign = _mm512_set1_epi32(INT32_MIN);
    __m512i bits = _mm512_castps_si512(a);
    __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);

    return _mm512_castsi512_ps(
        _mm512_mask_or_epi32(bits, is_nan, _mm512_and_si512(bits, sign), quiet));
#elif defined(__AVX2__)
    __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN));
    v16 nan = V_BOTH(_mm256_or_ps(_mm256_and_ps(a.low, sign), quiet),
                     _mm256_or_ps(_mm256_and_ps(a.high, sign), quiet));

    return V_BOTH(_mm256_blendv_ps(a.low, nan.low, _mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q)),
                  _mm256_blendv_ps(a.high, nan.high, _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q)));
#else
    return a;
#endif
}

V_INLINE void widen(float *to, const void *halves, enum program_type type, int64_t n)
{
    for (int64_t i = 0; i < n; i += V_LANES)
        v_store_n(to + i, n - i, typed_load_n(halves, type, i, n - i));
}

V_INLINE void narrow(void *halves, const float *from, enum program_type type, int64_t n,
                     float divisor)
{
    for (int64_t i = 0; i < n; i += V_LANES) {
        v16 a = v_load_n(from + i, n - i);
        if (divisor > 1)
            a = v_div(a, v_set(divisor));
        typed_store_n(halves, type, i, n - i, type == PROGRAM_FP16 ? same_nan(a) : a);
    }
}

#define DEFINE_FOLD_OF_HALVES(name, type)                                                \
    static void start_##name(void *acc, const void *input, int64_t n)                    \
    {                                                                                    \
        widen(acc, input, type, n);                                                      \
    }                                                                                    \
    static void fold_##name(enum comm_reduction reduction, void *acc, const void *input, \
                            int64_t n)                                                   \
    {                                                                                    \
        float wide[FOLD_BLOCK];                                                          \
        widen(wide, input, type, n);                                                     \
        fold_fp32(reduction, acc, wide, n);                                              \
    }                                                                                    \
    static void finish_##name(const void *acc, int64_t n, int divisor, void *to)         \
    {                                                                                    \
        narrow(to, acc, type, n, (float)divisor);                                        \
    }

DEFINE_FOLD_OF_HALVES(fp16, PROGRAM_FP16)
DEFINE_FOLD_OF_HALVES(bf16, PROGRAM_BF16)

const struct comm_folding COMM_FOLDINGS[COMM_TYPES] = {
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

#endif
