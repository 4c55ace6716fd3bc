/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_CUDA_BF16_H
#define EMULATOR_CUDA_BF16_H

/* bf16 as CUDA converts it: to the nearest, ties to even; NaN becomes 0x7fff. */

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    unsigned short bits;
};

static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return {bits};
}
static inline float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    unsigned bits = __float_as_uint(x);

    if (x != x)
        return {0x7fff};
    return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

#endif
