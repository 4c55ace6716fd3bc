/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_CUDA_FP16_H
#define EMULATOR_CUDA_FP16_H

/* fp16 as CUDA converts it: to the nearest, ties to even; NaN becomes 0x7fff. */

#include "cuda_runtime.h"

struct __half {
    unsigned short bits;
};

static inline unsigned short __half_as_ushort(__half x)
{
    return x.bits;
}
static inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}
static inline float __half2float(__half x)
{
    unsigned sign = (unsigned)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;

    if (rest >= 0x7c00) /* inf, NaN */
        return __uint_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400) /* 0 and subnormal */
        return sign ? -((float)rest * 0x1p-24f) : (float)rest * 0x1p-24f;
    return __uint_as_float(sign | ((rest << 13) + (112u << 23)));
}
static inline __half __float2half_rn(float x)
{
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;

    if (x != x)
        return {0x7fff};
    if (rest >= 0x477ff000) /* rounds to 65536 or more */
        return {(unsigned short)(sign | 0x7c00)};
    if (rest < 0x38800000) /* subnormal: the addition rounds to a multiple of 2^-24 */
        return {
            (unsigned short)(sign | (__float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000))};
    rest += 0xfff + (rest >> 13 & 1);
    return {(unsigned short)(sign | ((rest - (112u << 23)) >> 13))};
}

#endif
