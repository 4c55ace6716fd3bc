/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_VECTOR_H
#define AGENT_RUNTIME_BACKEND_CPU_VECTOR_H

/*
 * Sixteen fp32 lanes on every machine: one AVX-512 register, two of AVX2, or four of four lanes.
 * Kernels are written once with these and compiled once per level (kernels_avx2.c, …). So a sum
 * always has the same sixteen partial sums and the same tree over them.
 *
 * v_fma is fused at levels that have the instruction, and rounds twice at level plain. So levels
 * may differ in the last bits. For this reason a generation runs at one level.
 *
 * The functions here and in kernels/ are static on purpose: each level has its own copy. The
 * compiler drops those that a level does not use.
 */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "libfleet/program/program.h"

#define V_LANES 16

#if defined(__SANITIZE_ADDRESS__) && \
    !defined(__AVX2__) /* else the checks take minutes to compile */
#define V_INLINE static inline __attribute__((unused))
#else
#define V_INLINE static inline __attribute__((always_inline, unused))
#endif

#if defined(__AVX512F__)

typedef __m512 v16;
typedef __mmask16 v16_mask;

V_INLINE v16 v_zero(void)
{
    return _mm512_setzero_ps();
}
V_INLINE v16 v_set(float x)
{
    return _mm512_set1_ps(x);
}
V_INLINE v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
V_INLINE v16 v_load_part(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
V_INLINE void v_store_part(float *p, int n, v16 a)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}
V_INLINE v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
V_INLINE v16 v_sqrt(v16 a)
{
    return _mm512_sqrt_ps(a);
}
/* a · b + c */
V_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* b if either is NaN */
V_INLINE v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
V_INLINE v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
V_INLINE v16_mask v_less(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
/* Is the mask set in all lanes? */
V_INLINE bool v_all(v16_mask mask)
{
    return mask == 0xffff;
}
/* Lanes below n */
V_INLINE v16_mask v_first(int n)
{
    return (v16_mask)((1u << n) - 1);
}
/* yes where the mask is set, else no */
V_INLINE v16 v_select(v16_mask mask, v16 yes, v16 no)
{
    return _mm512_mask_blend_ps(mask, no, yes);
}
/* 2^n for whole n in [-126, 127] */
V_INLINE v16 v_power2(v16 n)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
/* Parts of a positive normal number: mantissa in [1, 2) and exponent. */
V_INLINE v16 v_mantissa(v16 a)
{
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x007fffff)),
                        _mm512_set1_epi32(0x3f800000)));
}
V_INLINE v16 v_exponent(v16 a)
{
    return _mm512_cvtepi32_ps(
        _mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(a), 23), _mm512_set1_epi32(127)));
}
/* Both halves: lanes 0 … 7 and 8 … 15 */
V_INLINE __m256 v_low(v16 a)
{
    return _mm512_castps512_ps256(a);
}
V_INLINE __m256 v_high(v16 a)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
}

#elif defined(__AVX2__)

typedef struct {
    __m256 low, high;
} v16;
typedef struct {
    __m256 low, high;
} v16_mask;

#define V_BOTH(low_part, high_part) ((v16){(low_part), (high_part)})

V_INLINE v16 v_zero(void)
{
    return V_BOTH(_mm256_setzero_ps(), _mm256_setzero_ps());
}
V_INLINE v16 v_set(float x)
{
    return V_BOTH(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
V_INLINE v16 v_load(const float *p)
{
    return V_BOTH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
V_INLINE void v_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
V_INLINE v16_mask v_first(int n)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), eight = _mm256_set1_epi32(8);
    __m256i count = _mm256_set1_epi32(n);

    return (v16_mask){
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, eight)))};
}
V_INLINE v16 v_load_part(const float *p, int n)
{
    v16_mask mask = v_first(n);

    return V_BOTH(_mm256_maskload_ps(p, _mm256_castps_si256(mask.low)),
                  _mm256_maskload_ps(p + 8, _mm256_castps_si256(mask.high)));
}
V_INLINE void v_store_part(float *p, int n, v16 a)
{
    v16_mask mask = v_first(n);

    _mm256_maskstore_ps(p, _mm256_castps_si256(mask.low), a.low);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(mask.high), a.high);
}
V_INLINE v16 v_add(v16 a, v16 b)
{
    return V_BOTH(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high));
}
V_INLINE v16 v_sub(v16 a, v16 b)
{
    return V_BOTH(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high));
}
V_INLINE v16 v_mul(v16 a, v16 b)
{
    return V_BOTH(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high));
}
V_INLINE v16 v_div(v16 a, v16 b)
{
    return V_BOTH(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high));
}
V_INLINE v16 v_sqrt(v16 a)
{
    return V_BOTH(_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high));
}
V_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return V_BOTH(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
V_INLINE v16 v_max(v16 a, v16 b)
{
    return V_BOTH(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high));
}
V_INLINE v16 v_min(v16 a, v16 b)
{
    return V_BOTH(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high));
}
V_INLINE v16_mask v_less(v16 a, v16 b)
{
    return (v16_mask){_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ),
                      _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
}
V_INLINE bool v_all(v16_mask mask)
{
    return _mm256_movemask_ps(_mm256_and_ps(mask.low, mask.high)) == 0xff;
}
V_INLINE v16 v_select(v16_mask mask, v16 yes, v16 no)
{
    return V_BOTH(_mm256_blendv_ps(no.low, yes.low, mask.low),
                  _mm256_blendv_ps(no.high, yes.high, mask.high));
}
V_INLINE __m256 v_power2_half(__m256 n)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
V_INLINE v16 v_power2(v16 n)
{
    return V_BOTH(v_power2_half(n.low), v_power2_half(n.high));
}
V_INLINE __m256 v_mantissa_half(__m256 a)
{
    return _mm256_or_ps(_mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x007fffff))),
                        _mm256_set1_ps(1.0f));
}
V_INLINE v16 v_mantissa(v16 a)
{
    return V_BOTH(v_mantissa_half(a.low), v_mantissa_half(a.high));
}
V_INLINE __m256 v_exponent_half(__m256 a)
{
    return _mm256_cvtepi32_ps(
        _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(a), 23), _mm256_set1_epi32(127)));
}
V_INLINE v16 v_exponent(v16 a)
{
    return V_BOTH(v_exponent_half(a.low), v_exponent_half(a.high));
}
V_INLINE __m256 v_low(v16 a)
{
    return a.low;
}
V_INLINE __m256 v_high(v16 a)
{
    return a.high;
}

#else

/* Four groups of four lanes, which GCC has on any machine. */
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4_mask __attribute__((vector_size(16))); /* a lane is all ones or all zeros */
typedef struct {
    v4 part[4];
} v16;
typedef struct {
    v4_mask part[4];
} v16_mask;

#define V_EACH(expression)                                                            \
    do {                                                                              \
        v16 r;                                                                        \
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) r.part[i] = (expression); \
        return r;                                                                     \
    } while (0)

V_INLINE v4 v4_load(const float *p)
{
    v4 a;

    memcpy(&a, p, sizeof(a));
    return a;
}
V_INLINE v4 v4_select(v4_mask mask, v4 yes, v4 no)
{
    return (v4)(((v4_mask)yes & mask) | ((v4_mask)no & ~mask));
}
V_INLINE v16 v_zero(void)
{
    V_EACH(((v4){0, 0, 0, 0}));
}
V_INLINE v16 v_set(float x)
{
    V_EACH(((v4){x, x, x, x}));
}
V_INLINE v16 v_load(const float *p)
{
    V_EACH(v4_load(p + 4 * i));
}
V_INLINE void v_store(float *p, v16 a)
{
    memcpy(p, &a, sizeof(a));
}
static inline v16 v_load_part(const float *p, int n)
{
    float lane[V_LANES] = {0};

    for (int i = 0; i < n && i < V_LANES; i++)
        lane[i] = p[i];
    return v_load(lane);
}
static inline void v_store_part(float *p, int n, v16 a)
{
    float lane[V_LANES];

    v_store(lane, a);
    for (int i = 0; i < n && i < V_LANES; i++)
        p[i] = lane[i];
}
V_INLINE v16 v_add(v16 a, v16 b)
{
    V_EACH(a.part[i] + b.part[i]);
}
V_INLINE v16 v_sub(v16 a, v16 b)
{
    V_EACH(a.part[i] - b.part[i]);
}
V_INLINE v16 v_mul(v16 a, v16 b)
{
    V_EACH(a.part[i] * b.part[i]);
}
V_INLINE v16 v_div(v16 a, v16 b)
{
    V_EACH(a.part[i] / b.part[i]);
}
static inline v16 v_sqrt(v16 a)
{
    V_EACH(
        ((v4){sqrtf(a.part[i][0]), sqrtf(a.part[i][1]), sqrtf(a.part[i][2]), sqrtf(a.part[i][3])}));
}
V_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    V_EACH(a.part[i] * b.part[i] + c.part[i]);
}
V_INLINE v16 v_max(v16 a, v16 b)
{
    V_EACH(v4_select(a.part[i] > b.part[i], a.part[i], b.part[i]));
}
V_INLINE v16 v_min(v16 a, v16 b)
{
    V_EACH(v4_select(a.part[i] < b.part[i], a.part[i], b.part[i]));
}
V_INLINE v16_mask v_less(v16 a, v16 b)
{
    v16_mask r;

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        r.part[i] = a.part[i] < b.part[i];
    return r;
}
V_INLINE bool v_all(v16_mask mask)
{
    v4_mask all = mask.part[0] & mask.part[1] & mask.part[2] & mask.part[3];

    return (all[0] & all[1] & all[2] & all[3]) != 0;
}
V_INLINE v16_mask v_first(int n)
{
    v16_mask r;

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        r.part[i] = (v4_mask){0, 1, 2, 3} + 4 * i < n;
    return r;
}
V_INLINE v16 v_select(v16_mask mask, v16 yes, v16 no)
{
    V_EACH(v4_select(mask.part[i], yes.part[i], no.part[i]));
}
/* For NaN the result is some number; the caller multiplies it with a value that is NaN already. */
V_INLINE v16 v_power2(v16 n)
{
    V_EACH((v4)((__builtin_convertvector(
                     v4_select(n.part[i] == n.part[i], n.part[i], (v4){0, 0, 0, 0}), v4_mask) +
                 127)
                << 23));
}
V_INLINE v16 v_mantissa(v16 a)
{
    V_EACH((v4)(((v4_mask)a.part[i] & 0x007fffff) | 0x3f800000));
}
V_INLINE v16 v_exponent(v16 a)
{
    V_EACH(__builtin_convertvector(((v4_mask)a.part[i] >> 23) - 127, v4));
}

#endif

/* ---- the same at all levels ------------------------------------------------------------------ */

/* Lane i + lane i+8, then +4, +2, +1: the tree of every sum over lanes. */
V_INLINE float v_sum(v16 a)
{
#if defined(__AVX2__)
    __m256 eight = _mm256_add_ps(v_low(a), v_high(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    v4 four = (a.part[0] + a.part[2]) + (a.part[1] + a.part[3]);

    return (four[0] + four[2]) + (four[1] + four[3]);
#endif
}

/* The greatest lane. If a lane is NaN, the result may be any lane. */
V_INLINE float v_greatest(v16 a)
{
#if defined(__AVX2__)
    __m256 eight = _mm256_max_ps(v_low(a), v_high(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    v4 greatest = a.part[0];

    for (int i = 1; i < 4; i++)
        greatest = v4_select(a.part[i] > greatest, a.part[i], greatest);
    for (int i = 1; i < 4; i++)
        greatest[0] = greatest[i] > greatest[0] ? greatest[i] : greatest[0];
    return greatest[0];
#endif
}

/* n of the 16 lanes: 16 inside an array, fewer at its end. */
V_INLINE v16 v_load_n(const float *p, int64_t n)
{
    return n >= V_LANES ? v_load(p) : v_load_part(p, (int)n);
}
V_INLINE void v_store_n(float *p, int64_t n, v16 a)
{
    if (n >= V_LANES)
        v_store(p, a);
    else
        v_store_part(p, (int)n, a);
}

/* The nearest whole number, ties to even; |a| < 2^22. */
V_INLINE v16 v_round(v16 a)
{
    v16 magic = v_set(0x1.8p23f);

    return v_sub(v_add(a, magic), magic);
}

#endif
