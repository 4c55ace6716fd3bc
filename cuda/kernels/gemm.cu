/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Matrix products with bias and activation, where cuBLASLt is not used.
 *
 * Floor: 2·m·n·k FLOP of fp32 FMA. Grid: a block of 256 threads a tile of 64 × 64 (product.cuh).
 * Determinism: every result is one sum over k in order.
 */
#include "cuda/kernels/product.cuh"

struct gemm_product {
    const struct fleet_cuda_gemm &g;
    int64_t number; /* of the batch */
    int64_t m, n, k;

    __device__ __forceinline__ float a(int64_t i, int64_t l) const
    {
        return load(g.a.data, g.a.type, number * g.a.batch + i * g.a.row + l * g.a.column);
    }
    __device__ __forceinline__ float b(int64_t l, int64_t j) const
    {
        return load(g.b.data, g.b.type, number * g.b.batch + l * g.b.row + j * g.b.column);
    }
    __device__ __forceinline__ void put(int64_t i, int64_t j, float sum) const
    {
        int64_t at = (number * m + i) * n + j;
        if (g.bias)
            sum += load(g.bias, g.bias_type, j);
        if (g.pre)
            store(g.pre, g.c_type, at, sum);
        if (g.activation == OP_ACTIVATION_GELU)
            sum = gelu(sum);
        if (g.activation == OP_ACTIVATION_RELU)
            sum = max_of(0.0f, sum);
        store(g.c, g.c_type, at, sum);
    }
};

__global__ void __launch_bounds__(PRODUCT_THREADS) gemm_kernel(const struct fleet_cuda_gemm g)
{
    struct gemm_product product = {g, (int64_t)blockIdx.z, g.m, g.n, g.k};

    product_tile(product, (int64_t)blockIdx.y * PRODUCT_TILE, (int64_t)blockIdx.x * PRODUCT_TILE);
}

cudaError_t fleet_cuda_gemm(cudaStream_t stream, const struct fleet_cuda_gemm *g)
{
    if (!product_fits(g->m, g->n, g->k, g->batch) || !is_float(g->a.type) || !is_float(g->b.type) ||
        !is_float(g->c_type) || (g->bias && !is_float(g->bias_type)))
        return cudaErrorInvalidValue;
    if (g->m == 0 || g->n == 0 || g->batch == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(gemm_kernel, product_grid(g->m, g->n, g->batch), dim3(PRODUCT_THREADS), 0,
                       stream, *g);
}
