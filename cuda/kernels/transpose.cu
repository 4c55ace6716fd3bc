/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any order of up to four dimensions, of elements of 1, 2 or 4 bytes.
 *
 * Floor: x and y moved once; where the last dimension changes, reads are strided and a sector may
 * be fetched more than once. Grid: a thread an element of y. Determinism: no sums.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 256

template <typename Element>
__global__ void __launch_bounds__(THREADS)
    transpose_kernel(const struct fleet_cuda_transpose t, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, left = i, at = 0;

    if (i >= count)
        return;
#pragma unroll
    for (int d = 3; d >= 0; d--) {
        at += left % t.shape[d] * t.stride[d];
        left /= t.shape[d];
    }
    static_cast<Element *>(t.y)[i] = static_cast<const Element *>(t.x)[at];
}

cudaError_t fleet_cuda_transpose(cudaStream_t stream, const struct fleet_cuda_transpose *t)
{
    int64_t count = 1;
    auto *kernel = transpose_kernel<uint32_t>;

    for (int i = 0; i < 4; i++) {
        if (t->shape[i] < 0)
            return cudaErrorInvalidValue;
        count *= t->shape[i];
    }
    if (count == 0)
        return cudaSuccess;
    if (type_bytes(t->type) == 2)
        kernel = transpose_kernel<uint16_t>;
    if (type_bytes(t->type) == 1)
        kernel = transpose_kernel<uint8_t>;
    return CUDA_LAUNCH(kernel, dim3(blocks_for(count, THREADS)), dim3(THREADS), 0, stream, *t,
                       count);
}
