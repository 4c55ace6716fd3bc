/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The additions of the summation tree (libfleet/plan/tree.h), and fp16 as gradients travel in.
 *
 * Floor: accumulate reads two operands and writes one; tree_sum reads each node once and writes the
 * result once, at any depth.
 * Grid: a thread an element, 128 a block. Sums under way lie in shared memory, a stack a thread.
 * Determinism: the order of additions is the walk's: the bits of the CPU's tree.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 128
#define DEPTH   FLEET_CUDA_TREE_DEPTH

__global__ void __launch_bounds__(THREADS)
    accumulate_kernel(float *accumulator, const float *addend, int64_t count)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;

    if (i + 4 <= count) {
        struct four a = load_four(accumulator, PROGRAM_FP32, i);
        struct four b = load_four(addend, PROGRAM_FP32, i);
#pragma unroll
        for (int l = 0; l < 4; l++)
            a.at[l] += b.at[l];
        store_four(accumulator, PROGRAM_FP32, i, a);
        return;
    }
    for (; i < count; i++)
        accumulator[i] += addend[i];
}

cudaError_t fleet_cuda_accumulate(cudaStream_t stream, float *accumulator, const float *addend,
                                  int64_t count)
{
    if (count < 0)
        return cudaErrorInvalidValue;
    if (count == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(accumulate_kernel, dim3(blocks_for(count, 4 * THREADS)), dim3(THREADS), 0,
                       stream, accumulator, addend, count);
}

__global__ void __launch_bounds__(THREADS) tree_sum_kernel(const struct fleet_cuda_tree_sum t)
{
    CUDA_SHARED(float, stack, [DEPTH][THREADS]);
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int depth = 0;

    if (i >= t.count)
        return;
    for (int w = 0; w < t.walk_count; w++) {
        if (t.walk[w] >= 0) {
            stack[depth++][threadIdx.x] = t.nodes[t.walk[w]][i];
        } else {
            depth--;
            stack[depth - 1][threadIdx.x] += stack[depth][threadIdx.x];
        }
    }
    t.to[i] = stack[0][threadIdx.x];
}

/* Does the walk end with one sum, within the stack? */
static bool is_walk(const struct fleet_cuda_tree_sum *t)
{
    int depth = 0;

    if (t->walk_count < 1 || t->walk_count > 2 * FLEET_CUDA_TREE_NODES)
        return false;
    for (int w = 0; w < t->walk_count; w++) {
        if (t->walk[w] < -1 || t->walk[w] >= FLEET_CUDA_TREE_NODES)
            return false;
        depth += t->walk[w] >= 0 ? 1 : -1;
        if (depth < 1 || depth > DEPTH)
            return false;
    }
    return depth == 1;
}

cudaError_t fleet_cuda_tree_sum(cudaStream_t stream, const struct fleet_cuda_tree_sum *t)
{
    if (t->count < 0 || !is_walk(t))
        return cudaErrorInvalidValue;
    if (t->count == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(tree_sum_kernel, dim3(blocks_for(t->count, THREADS)), dim3(THREADS), 0,
                       stream, *t);
}

__global__ void __launch_bounds__(THREADS)
    scale_kernel(void *to, enum program_type to_type, const void *from, enum program_type from_type,
                 float scale, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < count)
        store(to, to_type, i, scale * load(from, from_type, i));
}

cudaError_t fleet_cuda_convert(cudaStream_t stream, void *to, enum program_type to_type,
                               const void *from, enum program_type from_type, float scale,
                               int64_t count)
{
    if (count < 0)
        return cudaErrorInvalidValue;
    if (count == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(scale_kernel, dim3(blocks_for(count, THREADS)), dim3(THREADS), 0, stream, to,
                       to_type, from, from_type, scale, count);
}
