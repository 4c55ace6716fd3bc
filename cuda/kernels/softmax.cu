/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Softmax over the last dimension; backward d_x = y·(d_y - Σ d_y·y). Both may run in place.
 *
 * Floor: each operand moved once; the second and third look at a row hit the L1.
 * Grid: a warp a row, four rows a block. Determinism: 32 lanes, then one tree.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 128
#define ROWS    (THREADS / WARP)

__global__ void __launch_bounds__(THREADS) softmax_kernel(const struct fleet_cuda_softmax s)
{
    int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, at = row * s.columns;
    int lane = (int)threadIdx.x % WARP;
    float most = -INFINITY, sum = 0;

    if (row >= s.rows)
        return;
    for (int64_t j = lane; j < s.columns; j += WARP)
        most = greater(load(s.x, s.x_type, at + j), most);
    most = warp_max(most);
    for (int64_t j = lane; j < s.columns; j += WARP)
        sum += exp_of(load(s.x, s.x_type, at + j) - most);
    sum = warp_sum(sum);
    for (int64_t j = lane; j < s.columns; j += WARP)
        store(s.out, s.out_type, at + j, exp_of(load(s.x, s.x_type, at + j) - most) / sum);
}

__global__ void __launch_bounds__(THREADS) softmax_grad_kernel(const struct fleet_cuda_softmax s)
{
    int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, at = row * s.columns;
    int lane = (int)threadIdx.x % WARP;
    float dot = 0;

    if (row >= s.rows)
        return;
    for (int64_t j = lane; j < s.columns; j += WARP)
        dot = fmaf(load(s.x, s.x_type, at + j), load(s.d_y, s.d_type, at + j), dot);
    dot = warp_sum(dot);
    for (int64_t j = lane; j < s.columns; j += WARP) {
        float y = load(s.x, s.x_type, at + j), d = load(s.d_y, s.d_type, at + j);
        store(s.out, s.out_type, at + j, y * (d - dot));
    }
}

static cudaError_t run(cudaStream_t stream, const struct fleet_cuda_softmax *s,
                       void (*kernel)(struct fleet_cuda_softmax))
{
    if (s->rows < 0 || s->columns < 0 || !is_float(s->x_type) || !is_float(s->out_type))
        return cudaErrorInvalidValue;
    if (s->rows == 0 || s->columns == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(kernel, dim3(blocks_for(s->rows, ROWS)), dim3(THREADS), 0, stream, *s);
}

cudaError_t fleet_cuda_softmax(cudaStream_t stream, const struct fleet_cuda_softmax *s)
{
    return run(stream, s, softmax_kernel);
}

cudaError_t fleet_cuda_softmax_grad(cudaStream_t stream, const struct fleet_cuda_softmax *s)
{
    if (!s->d_y || !is_float(s->d_type))
        return cudaErrorInvalidValue;
    return run(stream, s, softmax_grad_kernel);
}
