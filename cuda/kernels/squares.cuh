/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_SQUARES_CUH
#define CUDA_KERNELS_SQUARES_CUH

/*
 * Sums of squares of blocks of FLEET_CUDA_BLOCK elements, as grad_norm.h of the CPU back end makes
 * them: in double, on sixteen lanes, lane l has elements l, l + 16, …; then lane i + lane i+8, +4,
 * +2, +1; a tensor's blocks by the summation tree. So a norm has the CPU's bits.
 *
 * A half warp has a block: SQUARES_OF_BLOCK of them share a block of threads.
 */

#include "cuda/kernels/device.cuh"

#define SQUARES_LANES    16
#define SQUARES_THREADS  128
#define SQUARES_OF_BLOCK (SQUARES_THREADS / SQUARES_LANES)

/* Blocks of a tensor. */
__host__ __device__ static __forceinline__ int64_t blocks_of(int64_t count)
{
    return (count + FLEET_CUDA_BLOCK - 1) / FLEET_CUDA_BLOCK;
}

/* Of this half warp, in its lane 0. All lanes of the warp call it. */
__device__ static __forceinline__ double squares_sum(double x)
{
    for (int by = SQUARES_LANES / 2; by > 0; by /= 2)
        x += __shfl_down_sync(LANES, x, by, SQUARES_LANES);
    return x;
}

/* The tensor that owns `block`: the last one that begins at it or before. Tensors have
 * `first_block`. */
template <typename Tensor>
__device__ static __forceinline__ int squares_owner(const Tensor *tensors, int count, int64_t block)
{
    int first = 0, last = count - 1;

    while (first < last) {
        int middle = (first + last + 1) / 2;
        if (tensors[middle].first_block <= block)
            first = middle;
        else
            last = middle - 1;
    }
    return first;
}

/* sums[0] = the tree over sums[0 … count), by all threads of the block; sums are written over. Left
 * parts of the tree are complete, so neighbours are added level by level. */
__device__ static __forceinline__ void squares_tree(double *sums, int64_t count)
{
    for (int64_t step = 1; step < count; step *= 2) {
        for (int64_t i = 2 * step * threadIdx.x; i + step < count; i += 2 * step * blockDim.x)
            sums[i] += sums[i + step];
        __syncthreads();
    }
}

#endif
