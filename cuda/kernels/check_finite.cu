/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Is every element finite? With `unscale` each is multiplied first, in the same pass.
 *
 * Floor: x read once, and written once with `unscale`.
 * Grid: a launch of one thread clears the flag; then 256 threads a block, 16 elements a thread.
 * Determinism: the flag is set by an atomic function on its bits, and there is only one value to
 * set.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 256
#define EACH    16

__global__ void clear_flag_kernel(float *flag)
{
    *flag = 0.0f;
}

__global__ void __launch_bounds__(THREADS)
    check_finite_kernel(const struct fleet_cuda_check_finite c)
{
    int64_t block = (int64_t)blockIdx.x * THREADS * EACH;
    float factor = c.unscale ? *c.unscale : 1.0f;
    bool found = false;

    for (int e = 0; e < EACH; e++) {
        int64_t i = block + (int64_t)e * THREADS + threadIdx.x;
        if (i >= c.count)
            break;
        float x = c.unscale ? c.x[i] * factor : c.x[i];
        if (c.unscale)
            c.x[i] = x;
        found = found || !(fabsf(x) < INFINITY);
    }
    if (__any_sync(LANES, found) && threadIdx.x % WARP == 0)
        atomicOr(reinterpret_cast<unsigned *>(c.flag), __float_as_uint(1.0f));
}

cudaError_t fleet_cuda_check_finite(cudaStream_t stream, const struct fleet_cuda_check_finite *c)
{
    cudaError_t status;

    if (c->count < 0 || !c->flag)
        return cudaErrorInvalidValue;
    status = CUDA_LAUNCH(clear_flag_kernel, dim3(1), dim3(1), 0, stream, c->flag);
    if (status != cudaSuccess || c->count == 0)
        return status;
    return CUDA_LAUNCH(check_finite_kernel, dim3(blocks_for(c->count, THREADS * EACH)),
                       dim3(THREADS), 0, stream, *c);
}
