/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fp32 to bf16, rounded at random: 16 random bits are added to those that are dropped. The random
 * numbers are those of the CPU back end.
 *
 * Floor: x and y moved once. Grid: 256 threads a block, a thread makes the eight elements of a
 * random block. Determinism: no sums.
 */
#include "cuda/kernels/eight.cuh"
#include "cuda/kernels/random.cuh"

#define THREADS 256

__device__ static __forceinline__ unsigned rounded(float x, unsigned random)
{
    unsigned bits = __float_as_uint(x);

    if ((bits & 0x7f800000) != 0x7f800000)
        return (bits + random) >> 16;
    return bits >> 16 | (bits & 0x007fffff ? 0x40 : 0); /* NaN stays NaN */
}

__global__ void __launch_bounds__(THREADS) round_kernel(const struct fleet_cuda_round r)
{
    int64_t block = (int64_t)blockIdx.x * THREADS + threadIdx.x, at = block * EIGHT;
    struct words w;

    if (at >= r.count)
        return;
    w = philox(r.key[0], r.key[1], (uint64_t)r.scalars->step, (uint64_t)block);
    if (at + EIGHT <= r.count) {
        struct eight x = widen_eight(load_eight(r.x, PROGRAM_FP32, at), PROGRAM_FP32);
        unsigned two[4];
#pragma unroll
        for (int p = 0; p < 4; p++)
            two[p] = rounded(x.at[2 * p], w.at[p] & 0xffff) |
                     rounded(x.at[2 * p + 1], w.at[p] >> 16) << 16;
        *reinterpret_cast<uint4 *>(r.y + at) = make_uint4(two[0], two[1], two[2], two[3]);
        return;
    }
#pragma unroll
    for (int l = 0; l < EIGHT; l++)
        if (at + l < r.count)
            r.y[at + l] = (uint16_t)rounded(r.x[at + l], w.at[l / 2] >> 16 * (l % 2) & 0xffff);
}

cudaError_t fleet_cuda_round(cudaStream_t stream, const struct fleet_cuda_round *r)
{
    if (r->count < 0)
        return cudaErrorInvalidValue;
    if (r->count == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(round_kernel, dim3(blocks_for(r->count, (int64_t)THREADS * EIGHT)),
                       dim3(THREADS), 0, stream, *r);
}
