/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_CUDA_FP8_H
#define EMULATOR_CUDA_FP8_H

/*
 * fp8 as CUDA converts it with saturation: to the nearest, ties to even, what is too large becomes
 * the greatest finite number; NaN becomes 0x7f. e4m3 has no infinity and 448 as its greatest, e5m2
 * is fp16's upper byte with 57344.
 */

#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
enum __nv_fp8_interpretation_t {
    __NV_E4M3,
    __NV_E5M2,
};
enum __nv_saturation_t {
    __NV_NOSAT,
    __NV_SATFINITE,
};

/* Magnitude in units of the type's smallest number, by its number of mantissa bits and bias. */
static inline __nv_fp8_storage_t emulator_to_fp8(float x, int mantissa, int bias, int greatest)
{
    unsigned sign = __float_as_uint(x) >> 24 & 0x80;
    float size = fabsf(x), unit;
    int exponent, whole;

    if (x != x)
        return 0x7f;
    if (size == 0)
        return (__nv_fp8_storage_t)sign;
    if (size > 1e9f)
        return (__nv_fp8_storage_t)(sign | (unsigned)greatest);
    (void)frexpf(size, &exponent); /* size = m · 2^exponent, m in [½, 1) */
    exponent = exponent - 1 + bias < 1 ? 1 : exponent - 1 + bias;
    unit = ldexpf(1.0f, exponent - bias - mantissa);
    whole = (int)rintf(size / unit); /* up to 2^(mantissa + 1): carries into the exponent */
    whole += (exponent - 1) << mantissa;
    return (__nv_fp8_storage_t)(sign | (unsigned)(whole > greatest ? greatest : whole));
}

static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation,
                                                       __nv_fp8_interpretation_t type)
{
    if (saturation != __NV_SATFINITE)
        emulator_fail("fp8 without saturation");
    return type == __NV_E4M3 ? emulator_to_fp8(x, 3, 7, 0x7e) : emulator_to_fp8(x, 2, 15, 0x7b);
}

#endif
