/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Mean of log Σ exp(logits - max) - (logits[target] - max) over the rows whose target counts; the
 * gradient is (exp(logits - max - log Σ) - [target]) · d_loss / rows, and may lie over the logits.
 *
 * Floor: rows reads the logits once from memory and once from the L2; grad reads and writes them
 * once. In chunks of rows that fit the L2, a classifier's logits never reach the memory.
 * Grid: a block of 256 threads a row. count and loss are one block: their arrays are a number a
 * row.
 * Determinism: a row's sum is 256 strided sums, a tree in each warp, warps in order; the loss is
 * summed in double the same way; the number of rows is an integer.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 256
#define WARPS   (THREADS / WARP)

__device__ static __forceinline__ bool counts(const struct fleet_cuda_cross_entropy &c, int64_t row)
{
    return c.targets[row] != c.ignore_index && c.targets[row] >= 0 && c.targets[row] < c.columns;
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy_count_kernel(const struct fleet_cuda_cross_entropy c)
{
    CUDA_SHARED(unsigned long long, partial, [WARPS]);
    CUDA_SHARED(unsigned long long, least, [1]);
    unsigned long long count = 0, fault = ~0ull;

    if (threadIdx.x == 0)
        least[0] = ~0ull;
    for (int64_t row = threadIdx.x; row < c.rows; row += THREADS) {
        if (c.targets[row] == c.ignore_index)
            continue;
        count++;
        if (!counts(c, row) && fault == ~0ull)
            fault = (unsigned long long)row + 1;
    }
    count = block_sum<THREADS>(count, partial);
    if (fault != ~0ull)
        atomicMin(&least[0], fault);
    __syncthreads();
    if (threadIdx.x == 0) {
        *c.counted = (int64_t)count;
        if (least[0] != ~0ull && c.fault && (*c.fault == 0 || least[0] < *c.fault))
            *c.fault = least[0];
    }
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy_rows_kernel(const struct fleet_cuda_cross_entropy c)
{
    CUDA_SHARED(float, partial, [WARPS]);
    int64_t row = blockIdx.x, at = row * c.columns;
    float most = -INFINITY, sum = 0, rest;

    for (int64_t j = threadIdx.x; j < c.columns; j += THREADS)
        most = greater(load(c.logits, c.type, at + j), most);
    most = block_max<THREADS>(most, partial);
    for (int64_t j = threadIdx.x; j < c.columns; j += THREADS)
        sum += exp_of(load(c.logits, c.type, at + j) - most);
    rest = log_of(block_sum<THREADS>(sum, partial));
    if (threadIdx.x != 0)
        return;
    c.lse[2 * row] = most;
    c.lse[2 * row + 1] = rest;
    c.row_loss[row] =
        counts(c, row) ? rest - (load(c.logits, c.type, at + c.targets[row]) - most) : 0.0f;
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy_loss_kernel(const struct fleet_cuda_cross_entropy c)
{
    CUDA_SHARED(double, partial, [WARPS]);
    double sum = 0;

    for (int64_t row = threadIdx.x; row < c.rows; row += THREADS)
        sum += (double)c.row_loss[row];
    sum = block_sum<THREADS>(sum, partial);
    if (threadIdx.x == 0)
        *c.loss = *c.counted > 0 ? (float)(sum / (double)*c.counted) : 0.0f;
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy_grad_kernel(const struct fleet_cuda_cross_entropy c)
{
    int64_t row = blockIdx.x, at = row * c.columns, target = counts(c, row) ? c.targets[row] : -1;
    float most = c.lse[2 * row], rest = c.lse[2 * row + 1], scale = 0;

    if (target >= 0)
        scale = (c.d_loss ? *c.d_loss : 1.0f) / (float)*c.counted;
    for (int64_t j = threadIdx.x; j < c.columns; j += THREADS) {
        float p = exp_of(load(c.logits, c.type, at + j) - most - rest);
        store(c.d_logits, c.d_type, at + j, (j == target ? p - 1.0f : p) * scale);
    }
}

static bool is_sound(const struct fleet_cuda_cross_entropy *c)
{
    return c->rows >= 0 && c->columns >= 1 && c->rows <= INT32_MAX;
}

cudaError_t fleet_cuda_cross_entropy_count(cudaStream_t stream,
                                           const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !c->counted)
        return cudaErrorInvalidValue;
    return CUDA_LAUNCH(cross_entropy_count_kernel, dim3(1), dim3(THREADS), 0, stream, *c);
}

cudaError_t fleet_cuda_cross_entropy_rows(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !is_float(c->type))
        return cudaErrorInvalidValue;
    if (c->rows == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(cross_entropy_rows_kernel, dim3((unsigned)c->rows), dim3(THREADS), 0, stream,
                       *c);
}

cudaError_t fleet_cuda_cross_entropy_loss(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !c->counted || !c->loss)
        return cudaErrorInvalidValue;
    return CUDA_LAUNCH(cross_entropy_loss_kernel, dim3(1), dim3(THREADS), 0, stream, *c);
}

cudaError_t fleet_cuda_cross_entropy_grad(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !is_float(c->type) || !is_float(c->d_type) || !c->counted)
        return cudaErrorInvalidValue;
    if (c->rows == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(cross_entropy_grad_kernel, dim3((unsigned)c->rows), dim3(THREADS), 0, stream,
                       *c);
}
