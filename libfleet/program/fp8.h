/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_FP8_H
#define LIBFLEET_PROGRAM_FP8_H

/*
 * Numbers of 8 bits, for the factors of matrix products (LINEAR with `fp8`).
 *
 *   e4m3  x and the weight: 3 bits of mantissa, the greatest is 448, the least normal is 2^-6
 *   e5m2  gradients: 2 bits of mantissa, the greatest is 57344, the least normal is 2^-14
 *
 * (Micikevicius and others, FP8 Formats for Deep Learning, 2022, section 3.) A tensor x is stored
 * as the nearest code of x · 2^s, ties to even. The scale is that of the tensor itself, just in
 * time: s is the greatest for which no finite element becomes greater than the type's greatest
 * number. Powers of two cost no precision, so a product of codes times 2^-s of both factors is the
 * product of rounded factors. What is not finite becomes NaN.
 *
 * Included by CUDA sources, so it stays valid C++.
 */

#include <stddef.h>
#include <stdint.h>

enum fp8_type {
    FP8_NONE,
    FP8_E4M3,
    FP8_E5M2,
};

#ifdef __CUDACC__
#define FP8_FUNCTION __host__ __device__ static inline
#else
#define FP8_FUNCTION static inline
#endif

#define FP8_SCALE_MAX 126 /* of s: 2^s and 2^-s are normal numbers in fp32 */

/* The greatest numbers are 1.75 · 2^8 and 1.75 · 2^15. */
#define FP8_GREATEST_EXPONENT(type) ((type) == FP8_E4M3 ? 8 : 15)

/* s of a tensor whose greatest finite magnitude has these bits in fp32. */
FP8_FUNCTION int fp8_scale(uint32_t greatest_bits, enum fp8_type type)
{
    int exponent = (int)(greatest_bits >> 23) - 127;
    int s = FP8_GREATEST_EXPONENT(type) - exponent;

    if (greatest_bits == 0)
        return 0;
    if ((greatest_bits & 0x007fffff) > 0x00600000) /* more than 1.75 */
        s--;
    return s > FP8_SCALE_MAX ? FP8_SCALE_MAX : s;
}

/* 2^s in fp32, as its bits. */
FP8_FUNCTION uint32_t fp8_power(int s)
{
    return (uint32_t)(127 + s) << 23;
}

/* The CPU keeps the rounded elements of a tensor in bf16. */
static inline size_t fp8_rounded_bytes(int64_t count)
{
    return ((size_t)count * sizeof(uint16_t) + 63) / 64 * 64;
}

#endif
