/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Norms of the complete gradient, all tensors in one launch (and two small ones).
 *
 * Floor: the gradient is read once; 16 bytes are written and read for each block of 4096 elements.
 * Grid: a half warp for each block of 4096 elements; then a block of threads for each tensor; then
 * one thread.
 * Determinism: squares.cuh. Tensors are added in the order of the table, which is the order of their
 * names. The bits are those of the CPU back end.
 */
#include "cuda/kernels/squares.cuh"

__global__ void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(const struct fleet_cuda_grad_norm n)
{
    int64_t block = (int64_t)blockIdx.x * SQUARES_OF_BLOCK + threadIdx.x / SQUARES_LANES;
    bool is_block = block < n.block_count;
    double sum = 0;

    if (is_block) {
        const struct fleet_cuda_gradient &t =
            n.tensors[squares_owner(n.tensors, n.tensor_count, block)];
        float scale = (float)n.scalars->gradient_scale;
        int64_t from = (block - t.first_block) * FLEET_CUDA_BLOCK;
        int64_t to = from + FLEET_CUDA_BLOCK < t.count ? from + FLEET_CUDA_BLOCK : t.count;
        for (int64_t i = from + threadIdx.x % SQUARES_LANES; i < to; i += SQUARES_LANES) {
            float x = t.data[i] * scale;
            sum += (double)x * (double)x;
        }
    }
    sum = squares_sum(sum);
    if (is_block && threadIdx.x % SQUARES_LANES == 0)
        n.scratch[block] = sum;
}

__global__ void __launch_bounds__(SQUARES_THREADS)
    squares_tree_kernel(const struct fleet_cuda_grad_norm n)
{
    const struct fleet_cuda_gradient &t = n.tensors[blockIdx.x];
    int64_t count = (t.count + FLEET_CUDA_BLOCK - 1) / FLEET_CUDA_BLOCK;
    double squares;

    squares_tree(n.scratch + t.first_block, count);
    if (threadIdx.x != 0)
        return;
    squares = count > 0 ? n.scratch[t.first_block] : 0.0;
    if (n.squares)
        n.squares[blockIdx.x] = squares;
    else
        n.norms[blockIdx.x] = (float)squares;
}

__global__ void global_norm_kernel(const struct fleet_cuda_grad_norm n)
{
    double total = 0;

    for (int i = 0; i < n.tensor_count; i++)
        total += (double)n.norms[i];
    n.norms[n.tensor_count] = (float)sqrt(total);
}

cudaError_t fleet_cuda_grad_norm(cudaStream_t stream, const struct fleet_cuda_grad_norm *n)
{
    cudaError_t status = cudaSuccess;

    if (n->tensor_count < 0 || n->block_count < 0 || !n->norms == !n->squares)
        return cudaErrorInvalidValue;
    if (n->block_count > 0)
        status = CUDA_LAUNCH(squares_kernel, dim3(blocks_for(n->block_count, SQUARES_OF_BLOCK)),
                             dim3(SQUARES_THREADS), 0, stream, *n);
    if (status == cudaSuccess && n->tensor_count > 0)
        status = CUDA_LAUNCH(squares_tree_kernel, dim3((unsigned)n->tensor_count),
                             dim3(SQUARES_THREADS), 0, stream, *n);
    if (status != cudaSuccess || n->squares)
        return status;
    return CUDA_LAUNCH(global_norm_kernel, dim3(1), dim3(1), 0, stream, *n);
}
