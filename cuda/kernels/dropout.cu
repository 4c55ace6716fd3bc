/* SPDX-License-Identifier: Apache-2.0 */

/*
 * y = x/(1 - rate), or 0 with probability `rate`. Which elements is a function of (seed, stream,
 * step, sample, element): Philox4x32-10 as libfleet/base/random.h, so the bits are those of the CPU
 * back end, for any grid; backward is the same launch on d_y.
 *
 * Floor: x and y moved once. Grid: 256 threads a block, a thread makes the four elements of one
 * random block of one sample. Determinism: no sums.
 */
#include "cuda/kernels/random.cuh"

#define THREADS 256

struct arguments {
    struct fleet_cuda_dropout d;
    unsigned limit; /* a random word below it drops the element */
    float scale;
    int64_t blocks; /* random blocks of a sample */
};

__global__ void __launch_bounds__(THREADS) dropout_kernel(const struct arguments a)
{
    const struct fleet_cuda_dropout &d = a.d;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t sample = d.first / d.per_sample + i / a.blocks, block = i % a.blocks;
    int64_t at = sample * d.per_sample + block * 4 - d.first, left = d.per_sample - block * 4;
    struct words w;

    if (at >= d.count || at + 4 <= 0)
        return;
    left = left < d.count - at ? left : d.count - at;
    w = philox(d.key[0], d.key[1],
               (uint64_t)d.scalars->step << 24 ^ (uint64_t)(d.scalars->first_sample + sample),
               (uint64_t)block);
    if (left >= 4 && at >= 0 && at % 4 == 0) {
        struct four x = load_four(d.x, d.x_type, at);
#pragma unroll
        for (int l = 0; l < 4; l++)
            x.at[l] *= w.at[l] < a.limit ? 0.0f : a.scale;
        store_four(d.y, d.y_type, at, x);
        return;
    }
#pragma unroll
    for (int l = 0; l < 4; l++)
        if (at + l >= 0 && l < left)
            store(d.y, d.y_type, at + l,
                  load(d.x, d.x_type, at + l) * (w.at[l] < a.limit ? 0.0f : a.scale));
}

cudaError_t fleet_cuda_dropout(cudaStream_t stream, const struct fleet_cuda_dropout *d)
{
    struct arguments a = {*d, (unsigned)(d->rate * 4294967296.0), (float)(1 / (1 - d->rate)), 0};
    int64_t samples;

    if (d->count < 0 || d->first < 0 || d->per_sample < 1 || !is_float(d->x_type) ||
        !is_float(d->y_type) || !(d->rate >= 0 && d->rate < 1))
        return cudaErrorInvalidValue;
    if (d->count == 0)
        return cudaSuccess;
    a.blocks = (d->per_sample + 3) / 4;
    samples = (d->first + d->count + d->per_sample - 1) / d->per_sample - d->first / d->per_sample;
    return CUDA_LAUNCH(dropout_kernel, dim3(blocks_for(samples * a.blocks, THREADS)), dim3(THREADS),
                       0, stream, a);
}
