/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_EIGHT_CUH
#define CUDA_KERNELS_EIGHT_CUH

/*
 * Eight neighbours of a tensor at once: one access of 16 bytes, two for fp32. The load is apart from
 * the conversion, so a thread starts several loads before it waits for the first one.
 */
#include "cuda/kernels/tensor_core.cuh"

#define EIGHT 8

/* As they lie in memory; `high` of fp32 only. */
struct raw_eight {
    uint4 low, high;
};

struct eight {
    float at[EIGHT];
};

/* Elements i … i+7; they begin at a multiple of 16 bytes. */
__device__ static __forceinline__ struct raw_eight load_eight(const void *data,
                                                              enum program_type type, int64_t i)
{
    struct raw_eight r;

    if (type == PROGRAM_FP32) {
        const uint4 *at = reinterpret_cast<const uint4 *>(static_cast<const float *>(data) + i);
        r.low = at[0];
        r.high = at[1];
    } else {
        r.low = *reinterpret_cast<const uint4 *>(static_cast<const unsigned short *>(data) + i);
        r.high = make_uint4(0, 0, 0, 0);
    }
    return r;
}

__device__ static __forceinline__ struct eight widen_eight(const struct raw_eight &r,
                                                           enum program_type type)
{
    const unsigned low[4] = {r.low.x, r.low.y, r.low.z, r.low.w};
    const unsigned high[4] = {r.high.x, r.high.y, r.high.z, r.high.w};
    struct eight x;

#pragma unroll
    for (int p = 0; p < 4; p++) {
        if (type == PROGRAM_FP32) {
            x.at[p] = __uint_as_float(low[p]);
            x.at[p + 4] = __uint_as_float(high[p]);
        } else if (type == PROGRAM_BF16) {
            x.at[2 * p] = __uint_as_float(low[p] << 16);
            x.at[2 * p + 1] = __uint_as_float(low[p] & 0xffff0000);
        } else {
            x.at[2 * p] = widen((unsigned short)low[p], PROGRAM_FP16);
            x.at[2 * p + 1] = widen((unsigned short)(low[p] >> 16), PROGRAM_FP16);
        }
    }
    return x;
}

__device__ static __forceinline__ void store_eight(void *data, enum program_type type, int64_t i,
                                                   const struct eight &x)
{
    if (type == PROGRAM_FP32) {
        float4 *at = reinterpret_cast<float4 *>(static_cast<float *>(data) + i);
        at[0] = make_float4(x.at[0], x.at[1], x.at[2], x.at[3]);
        at[1] = make_float4(x.at[4], x.at[5], x.at[6], x.at[7]);
        return;
    }
    uint4 *at = reinterpret_cast<uint4 *>(static_cast<unsigned short *>(data) + i);
    if (type == PROGRAM_BF16)
        *at = make_uint4(pack_two<true>(x.at[0], x.at[1]), pack_two<true>(x.at[2], x.at[3]),
                         pack_two<true>(x.at[4], x.at[5]), pack_two<true>(x.at[6], x.at[7]));
    else
        *at = make_uint4(pack_two<false>(x.at[0], x.at[1]), pack_two<false>(x.at[2], x.at[3]),
                         pack_two<false>(x.at[4], x.at[5]), pack_two<false>(x.at[6], x.at[7]));
}

#endif
