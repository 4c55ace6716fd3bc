/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sums and means of rows; backward, the row's gradient to each of its elements.
 *
 * Floor: the whole moved once. Grid: forward a block of 256 threads a row; backward a thread an
 * element. Determinism: 256 strided sums a row, a tree in each warp, warps in order.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 256

__global__ void __launch_bounds__(THREADS)
    reduce_kernel(const struct fleet_cuda_reduce r, float factor)
{
    CUDA_SHARED(float, partial, [THREADS / WARP]);
    int64_t row = blockIdx.x;
    float sum = 0;

    for (int64_t j = threadIdx.x; j < r.columns; j += THREADS)
        sum += load(r.x, r.x_type, row * r.columns + j);
    sum = block_sum<THREADS>(sum, partial);
    if (threadIdx.x == 0)
        store(r.out, r.out_type, row, sum * factor);
}

__global__ void __launch_bounds__(THREADS)
    reduce_grad_kernel(const struct fleet_cuda_reduce r, float factor)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < r.rows * r.columns)
        store(r.out, r.out_type, i, load(r.x, r.x_type, i / r.columns) * factor);
}

static bool is_sound(const struct fleet_cuda_reduce *r)
{
    return r->rows >= 0 && r->rows <= INT32_MAX && r->columns >= 1 && is_float(r->x_type) &&
           is_float(r->out_type);
}

cudaError_t fleet_cuda_reduce(cudaStream_t stream, const struct fleet_cuda_reduce *r)
{
    float factor = r->mean ? 1.0f / (float)r->columns : 1.0f;

    if (!is_sound(r))
        return cudaErrorInvalidValue;
    if (r->rows == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(reduce_kernel, dim3((unsigned)r->rows), dim3(THREADS), 0, stream, *r,
                       factor);
}

cudaError_t fleet_cuda_reduce_grad(cudaStream_t stream, const struct fleet_cuda_reduce *r)
{
    float factor = r->mean ? 1.0f / (float)r->columns : 1.0f;

    if (!is_sound(r))
        return cudaErrorInvalidValue;
    if (r->rows == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(reduce_grad_kernel, dim3(blocks_for(r->rows * r->columns, THREADS)),
                       dim3(THREADS), 0, stream, *r, factor);
}
