/* SPDX-License-Identifier: Apache-2.0 */
/* Before the guard: it includes this file in its place. */
#include "agent/runtime/backend/cpu/kernels/gemm.h"

#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_GEMM_BF16_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_GEMM_BF16_H

/*
 * Products of two bf16 matrices with the processor's dot products of pairs (AVX512-BF16): twice the
 * arithmetic of fp32 an instruction, sums in fp32. The blocks, tiles and order over k are gemm.h's;
 * an element of a packed panel is a pair of neighbours along k, 32 bits, the last one padded with
 * 0.
 *
 * A part of gemm.h, empty where the level lacks the instruction.
 */

#if defined(__AVX512BF16__)
_Static_assert(GEMM_ROWS == 8, "gemm_pack_eights");

#define GEMM_PAIRS GEMM_K /* depth of a packed block, in pairs: as many bytes as in fp32 */

static inline bool gemm_is_bf16(const struct gemm *gemm)
{
    return gemm->a.type == PROGRAM_BF16 && gemm->b.type == PROGRAM_BF16 && !gemm->a.pack &&
           !gemm->b.pack;
}

/* Sixteen pairs of the rows `even` and `odd` (NULL: zeros); lanes from n on are 0. */
static inline __m512i gemm_pair_up(const uint16_t *even, const uint16_t *odd, int n)
{
    uint16_t few[V_LANES] = {0};
    __m256i low, high = _mm256_setzero_si256();

    if (n >= V_LANES) {
        low = _mm256_loadu_si256((const __m256i *)(const void *)even);
        if (odd)
            high = _mm256_loadu_si256((const __m256i *)(const void *)odd);
    } else {
        memcpy(few, even, (size_t)n * sizeof(few[0]));
        low = _mm256_loadu_si256((const __m256i *)(const void *)few);
        if (odd) {
            memcpy(few, odd, (size_t)n * sizeof(few[0]));
            high = _mm256_loadu_si256((const __m256i *)(const void *)few);
        }
    }
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

/* A whole panel of A with both rows of each pair. */
static inline void gemm_pack_eights(const uint16_t *data, int64_t step, int64_t pairs, float *out)
{
    for (int64_t p = 0; p < pairs; p++, data += 2 * step, out += GEMM_ROWS) {
        __m128i even = _mm_loadu_si128((const __m128i *)(const void *)data);
        __m128i odd = _mm_loadu_si128((const __m128i *)(const void *)(data + step));
        _mm_storeu_ps(out, _mm_castsi128_ps(_mm_unpacklo_epi16(even, odd)));
        _mm_storeu_ps(out + 4, _mm_castsi128_ps(_mm_unpackhi_epi16(even, odd)));
    }
}

/* As gemm_pack_along, for pairs: elements of one k lie side by side, `step` from k to k. */
static void gemm_pack_pairs_along(const uint16_t *data, int64_t step, int count, int width,
                                  int64_t k, float *out)
{
    if (width == GEMM_ROWS && count == width && k % 2 == 0) {
        gemm_pack_eights(data, step, k / 2, out);
        return;
    }
    for (int64_t p = 0; p < k; p += 2, data += 2 * step, out += width)
        for (int i = 0; i < width; i += V_LANES) {
            int n = count - i, room = width - i < V_LANES ? width - i : V_LANES;
            __m512i pairs = n > 0 ? gemm_pair_up(data + i, p + 1 < k ? data + step + i : NULL, n)
                                  : _mm512_setzero_si512();
            v_store_n(out + i, room, _mm512_castsi512_ps(pairs));
        }
}

/* As gemm_pack_across: elements of one row lie side by side, so pairs are words as they lie. */
static void gemm_pack_pairs_across(const uint16_t *data, int64_t step, int count, int width,
                                   int64_t k, float *out)
{
    int64_t words = k / 2;

    for (int i = 0; i < width; i++) {
        const uint16_t *row = data + i * step;
        for (int64_t p = 0; p < words && i < count; p++)
            memcpy(&out[p * width + i], row + 2 * p, sizeof(float));
        for (int64_t p = i < count ? words : 0; p < (k + 1) / 2; p++) {
            uint32_t last = i < count ? row[2 * p] : 0; /* an odd k: a pair with 0 */
            memcpy(&out[p * width + i], &last, sizeof(last));
        }
    }
}

static void gemm_pack_pairs(const struct gemm_operand *from, int64_t at, int64_t along,
                            int64_t across, int count, int width, int64_t k, float *out)
{
    const uint16_t *data = (const uint16_t *)from->data + at;

    if (across == 1) /* neighbours of one k */
        gemm_pack_pairs_along(data, along, count, width, k, out);
    else
        gemm_pack_pairs_across(data, across, count, width, k, out);
}

/* C[rows, columns] (+)= A · B over `pairs` packed pairs. */
static void gemm_tile_bf16(int64_t pairs, const float *a, const float *b, float *c, int64_t ldc,
                           int rows, int columns, bool accumulate)
{
    v16 sum[GEMM_ROWS][GEMM_VECTORS];

    GEMM_CLEAR();
    for (int64_t p = 0; p < pairs; p++, a += GEMM_ROWS, b += GEMM_COLUMNS) {
        v16 right[GEMM_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < GEMM_VECTORS; j++)
            right[j] = v_load(b + j * V_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < GEMM_ROWS; i++) {
            v16 left = v_set(a[i]);
#pragma GCC unroll 4
            for (int j = 0; j < GEMM_VECTORS; j++)
                sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)left, (__m512bh)right[j]);
        }
    }
    GEMM_STORE();
}

#endif
#endif
