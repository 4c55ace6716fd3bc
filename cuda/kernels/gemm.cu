/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Matrix products with bias and activation, where cuBLASLt is not used.
 *
 * Floor: 2·m·n·k FLOP of fp32 FMA. Grid: a block of 256 threads a tile of 64 × 64 (product.cuh).
 * Determinism: every result is one sum over k in order, which may begin with what is there.
 */
#include "cuda/kernels/product.cuh"

/* e4m3 is fp16's upper bits with a smaller exponent, e5m2 its upper byte. */
__device__ static __forceinline__ float code_value(unsigned code, enum fp8_type type)
{
    unsigned bits = type == FP8_E5M2 ? code << 8 : (code & 0x80) << 8 | (code & 0x7f) << 7;
    float x = __half2float(__ushort_as_half((unsigned short)bits));

    if (type == FP8_E4M3)
        x = (code & 0x7f) == 0x7f ? NAN : x * 256.0f;
    return x;
}

template <bool FP8>
__device__ static __forceinline__ float element(const struct fleet_cuda_matrix &m, int64_t i)
{
    return FP8 ? code_value(static_cast<const uint8_t *>(m.data)[i], m.fp8)
               : load(m.data, m.type, i);
}

template <bool FP8> struct gemm_product {
    const struct fleet_cuda_gemm &g;
    int64_t number; /* of the batch */
    int64_t m, n, k;

    __device__ __forceinline__ float a(int64_t i, int64_t l) const
    {
        return element<FP8>(g.a, number * g.a.batch + i * g.a.row + l * g.a.column);
    }
    __device__ __forceinline__ float b(int64_t l, int64_t j) const
    {
        return element<FP8>(g.b, number * g.b.batch + l * g.b.row + j * g.b.column);
    }
    __device__ __forceinline__ float first(int64_t i, int64_t j) const
    {
        return g.accumulates ? static_cast<const float *>(g.c)[(number * m + i) * n + j] : 0.0f;
    }
    __device__ __forceinline__ void put(int64_t i, int64_t j, float sum) const
    {
        int64_t at = (number * m + i) * n + j;
        if (FP8)
            sum = sum * *g.a.scale * *g.b.scale;
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

template <bool FP8>
__global__ void __launch_bounds__(PRODUCT_THREADS) gemm_kernel(const struct fleet_cuda_gemm g)
{
    struct gemm_product<FP8> product = {
        g, (int64_t)blockIdx.z, g.m, g.n, g.k
    };

    product_tile(product, (int64_t)blockIdx.y * PRODUCT_TILE, (int64_t)blockIdx.x * PRODUCT_TILE);
}

static bool is_factor(const struct fleet_cuda_matrix *m)
{
    return m->fp8 == FP8_NONE ? is_float(m->type) : m->type == PROGRAM_UINT8 && m->scale != NULL;
}

cudaError_t fleet_cuda_gemm(cudaStream_t stream, const struct fleet_cuda_gemm *g)
{
    bool is_fp8 = g->a.fp8 != FP8_NONE;
    auto *kernel = is_fp8 ? gemm_kernel<true> : gemm_kernel<false>;

    if (!product_fits(g->m, g->n, g->k, g->batch) || !is_factor(&g->a) || !is_factor(&g->b) ||
        is_fp8 != (g->b.fp8 != FP8_NONE) || !is_float(g->c_type) ||
        (g->bias && !is_float(g->bias_type)) ||
        (g->accumulates && (is_fp8 || g->c_type != PROGRAM_FP32 || g->bias || g->pre ||
                            g->activation != OP_ACTIVATION_NONE)))
        return cudaErrorInvalidValue;
    if (g->m == 0 || g->n == 0 || g->batch == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(kernel, product_grid(g->m, g->n, g->batch), dim3(PRODUCT_THREADS), 0, stream,
                       *g);
}
