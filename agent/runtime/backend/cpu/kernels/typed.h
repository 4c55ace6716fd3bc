/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_TYPED_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_TYPED_H

/*
 * Sixteen elements of a tensor in fp32, bf16 or fp16, as fp32 lanes. Arithmetic is always fp32;
 * a result is rounded once, to the nearest, ties to even, when it is stored.
 *
 * Kernels pass the type as a constant on their fp32 path, where the switch then vanishes.
 */

#include "agent/runtime/backend/cpu/vector.h"

V_INLINE float typed_float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

V_INLINE uint32_t typed_bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

V_INLINE uint16_t typed_to_bf16(float x)
{
    uint32_t bits = typed_bits_of_float(x);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

V_INLINE float typed_of_bf16(uint16_t bits)
{
    return typed_float_of_bits((uint32_t)bits << 16);
}

V_INLINE float typed_of_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    float magnitude;

    if (rest >= 0x7c00) /* inf, NaN */
        return typed_float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400) { /* 0 and subnormal */
        magnitude = (float)rest * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return typed_float_of_bits(sign | ((rest << 13) + (112u << 23)));
}

V_INLINE uint16_t typed_to_fp16(float x)
{
    uint32_t bits = typed_bits_of_float(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;

    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) { /* subnormal: the addition rounds to a multiple of 2^-24 */
        float sum = typed_float_of_bits(rest) + 0.5f;
        return (uint16_t)(sign | (typed_bits_of_float(sum) - 0x3f000000));
    }
    rest += 0xfff + (rest >> 13 & 1);
    return (uint16_t)(sign | ((rest - (112u << 23)) >> 13));
}

/* ---- sixteen at a time ----------------------------------------------------------------------- */

/* All sixteen lanes from memory, the two types apart. */
#if defined(__AVX512F__)

V_INLINE v16 typed_widen(__m256i halves, enum program_type type)
{
    if (type == PROGRAM_FP16)
        return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

V_INLINE __m256i typed_narrow(v16 a, enum program_type type)
{
    __m512i bits = _mm512_castps_si512(a), odd, rounded;
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);

    if (type == PROGRAM_FP16)
        return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

#elif defined(__AVX2__)

V_INLINE __m256 typed_widen_half(__m128i halves, enum program_type type)
{
    if (type == PROGRAM_FP16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

V_INLINE v16 typed_widen(__m256i halves, enum program_type type)
{
    return V_BOTH(typed_widen_half(_mm256_castsi256_si128(halves), type),
                  typed_widen_half(_mm256_extracti128_si256(halves, 1), type));
}

/* Eight bf16 in the low halves of eight lanes. */
V_INLINE __m256i typed_round_bf16(__m256 a)
{
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));

    bits = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, bits, nan), 16);
}

V_INLINE __m256i typed_narrow(v16 a, enum program_type type)
{
    if (type == PROGRAM_FP16)
        return _mm256_set_m128i(_mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT),
                                _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    return _mm256_permute4x64_epi64(
        _mm256_packus_epi32(typed_round_bf16(a.low), typed_round_bf16(a.high)), 0xd8);
}

#endif

/* The first n of 16 lanes from and to 16-bit elements. */
static inline v16 typed_load_halves(const uint16_t *halves, enum program_type type, int64_t n)
{
#if defined(__AVX2__)
    uint16_t few[V_LANES] = {0};

    if (n >= V_LANES)
        return typed_widen(_mm256_loadu_si256((const __m256i *)(const void *)halves), type);
    memcpy(few, halves, (size_t)n * sizeof(few[0]));
    return typed_widen(_mm256_loadu_si256((const __m256i *)(const void *)few), type);
#else
    float lanes[V_LANES] = {0};

    for (int i = 0; i < (n < V_LANES ? n : V_LANES); i++)
        lanes[i] = type == PROGRAM_BF16 ? typed_of_bf16(halves[i]) : typed_of_fp16(halves[i]);
    return v_load(lanes);
#endif
}

static inline void typed_store_halves(uint16_t *halves, enum program_type type, int64_t n, v16 a)
{
#if defined(__AVX2__)
    uint16_t few[V_LANES];

    if (n >= V_LANES) {
        _mm256_storeu_si256((__m256i *)(void *)halves, typed_narrow(a, type));
        return;
    }
    _mm256_storeu_si256((__m256i *)(void *)few, typed_narrow(a, type));
    memcpy(halves, few, (size_t)n * sizeof(few[0]));
#else
    float lanes[V_LANES];

    v_store(lanes, a);
    for (int i = 0; i < (n < V_LANES ? n : V_LANES); i++)
        halves[i] = type == PROGRAM_BF16 ? typed_to_bf16(lanes[i]) : typed_to_fp16(lanes[i]);
#endif
}

/* Elements first … first+15 of `data`; lanes from n on are 0. */
V_INLINE v16 typed_load_n(const void *data, enum program_type type, int64_t first, int64_t n)
{
    if (n <= 0)
        return v_zero();
    if (type == PROGRAM_FP32)
        return v_load_n((const float *)data + first, n);
    return typed_load_halves((const uint16_t *)data + first, type, n);
}

V_INLINE void typed_store_n(void *data, enum program_type type, int64_t first, int64_t n, v16 a)
{
    if (type == PROGRAM_FP32)
        v_store_n((float *)data + first, n, a);
    else
        typed_store_halves((uint16_t *)data + first, type, n, a);
}

#endif
