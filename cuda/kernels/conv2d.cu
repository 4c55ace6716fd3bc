/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Convolutions as matrix products whose operands are made while they are loaded (implicit GEMM),
 * where cuDNN is not used:
 *
 *   y[o, (b,r,c)]        = Σ over (i,u,v)   weight[o, (i,u,v)] · x[b, i, r·s+u-p, c·s+v-p]
 *   d_weight[o, (i,u,v)] = Σ over (b,r,c)   d_y[b,o,r,c]       · the same element of x
 *   d_x[i, (b,h,w)]      = Σ over (o,u,v)   weight[o,i,u,v]    · d_y[b, o, (h+p-u)/s, (w+p-v)/s]
 *
 * Floor: 2·(results)·(terms) FLOP of fp32 FMA. Grid: product.cuh.
 * Determinism: every result is one sum, in the order written.
 */
#include "cuda/kernels/product.cuh"

/* x[b, i, row, column], 0 outside of the image. */
__device__ static __forceinline__ float pixel(const struct fleet_cuda_conv2d &c, int64_t image,
                                              int64_t channel, int64_t row, int64_t column)
{
    if (row < 0 || row >= c.h || column < 0 || column >= c.w)
        return 0.0f;
    return load(c.x, c.x_type, ((image * c.in + channel) * c.h + row) * c.w + column);
}

/* The element of x that tap (i,u,v) has under result (b,r,c). */
__device__ static __forceinline__ float tap_of(const struct fleet_cuda_conv2d &c, int64_t tap,
                                               int64_t result)
{
    int64_t plane = c.out_h * c.out_w, place = result % plane, u = tap / c.window[1] % c.window[0];

    return pixel(c, result / plane, tap / (c.window[0] * c.window[1]),
                 place / c.out_w * c.stride[0] + u - c.padding[0],
                 place % c.out_w * c.stride[1] + tap % c.window[1] - c.padding[1]);
}

struct forward_product {
    const struct fleet_cuda_conv2d &c;
    int64_t m, n, k; /* out, (b,r,c), (i,u,v) */

    __device__ __forceinline__ float a(int64_t o, int64_t tap) const
    {
        return load(c.weight, c.weight_type, o * k + tap);
    }
    __device__ __forceinline__ float b(int64_t tap, int64_t result) const
    {
        return tap_of(c, tap, result);
    }
    __device__ __forceinline__ float first(int64_t, int64_t) const
    {
        return 0.0f;
    }
    __device__ __forceinline__ void put(int64_t o, int64_t result, float sum) const
    {
        int64_t plane = c.out_h * c.out_w;
        store(c.y, c.y_type, (result / plane * c.out + o) * plane + result % plane, sum);
    }
};

struct weight_product {
    const struct fleet_cuda_conv2d &c;
    int64_t m, n, k; /* out, (i,u,v), (b,r,c) */

    __device__ __forceinline__ float a(int64_t o, int64_t result) const
    {
        int64_t plane = c.out_h * c.out_w;
        return load(c.d_y, c.y_type, (result / plane * c.out + o) * plane + result % plane);
    }
    __device__ __forceinline__ float b(int64_t result, int64_t tap) const
    {
        return tap_of(c, tap, result);
    }
    __device__ __forceinline__ float first(int64_t, int64_t) const
    {
        return 0.0f;
    }
    __device__ __forceinline__ void put(int64_t o, int64_t tap, float sum) const
    {
        store(c.d_weight, c.d_weight_type, o * n + tap, sum);
    }
};

struct back_product {
    const struct fleet_cuda_conv2d &c;
    int64_t m, n, k; /* in, (b,h,w), (o,u,v) */

    __device__ __forceinline__ float a(int64_t i, int64_t tap) const
    {
        int64_t taps = c.window[0] * c.window[1];
        return load(c.weight, c.weight_type, (tap / taps * c.in + i) * taps + tap % taps);
    }
    __device__ __forceinline__ float b(int64_t tap, int64_t place) const
    {
        int64_t plane = c.h * c.w, u = tap / c.window[1] % c.window[0], v = tap % c.window[1];
        int64_t row = place % plane / c.w + c.padding[0] - u;
        int64_t column = place % c.w + c.padding[1] - v;
        int64_t o = tap / (c.window[0] * c.window[1]);
        if (row < 0 || column < 0 || row % c.stride[0] != 0 || column % c.stride[1] != 0 ||
            row / c.stride[0] >= c.out_h || column / c.stride[1] >= c.out_w)
            return 0.0f;
        return load(c.d_y, c.y_type,
                    ((place / plane * c.out + o) * c.out_h + row / c.stride[0]) * c.out_w +
                        column / c.stride[1]);
    }
    __device__ __forceinline__ float first(int64_t, int64_t) const
    {
        return 0.0f;
    }
    __device__ __forceinline__ void put(int64_t i, int64_t place, float sum) const
    {
        int64_t plane = c.h * c.w;
        store(c.d_x, c.d_x_type, (place / plane * c.in + i) * plane + place % plane, sum);
    }
};

template <typename Product>
__global__ void __launch_bounds__(PRODUCT_THREADS)
    conv2d_kernel(const struct fleet_cuda_conv2d c, int64_t m, int64_t n, int64_t k)
{
    Product product = {c, m, n, k};

    product_tile(product, (int64_t)blockIdx.y * PRODUCT_TILE, (int64_t)blockIdx.x * PRODUCT_TILE);
}

static bool is_sound(const struct fleet_cuda_conv2d *c)
{
    return c->batch >= 0 && c->in >= 1 && c->out >= 1 && c->h >= 1 && c->w >= 1 && c->out_h >= 1 &&
           c->out_w >= 1 && c->window[0] >= 1 && c->window[1] >= 1 && c->stride[0] >= 1 &&
           c->stride[1] >= 1 && c->padding[0] >= 0 && c->padding[1] >= 0;
}

template <typename Product>
static cudaError_t run(cudaStream_t stream, const struct fleet_cuda_conv2d *c, int64_t m, int64_t n,
                       int64_t k)
{
    auto *kernel = conv2d_kernel<Product>;

    if (!is_sound(c) || !product_fits(m, n, k, 1))
        return cudaErrorInvalidValue;
    if (m == 0 || n == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(kernel, product_grid(m, n, 1), dim3(PRODUCT_THREADS), 0, stream, *c, m, n,
                       k);
}

cudaError_t fleet_cuda_conv2d(cudaStream_t stream, const struct fleet_cuda_conv2d *c)
{
    if (!is_float(c->x_type) || !is_float(c->weight_type) || !is_float(c->y_type))
        return cudaErrorInvalidValue;
    return run<forward_product>(stream, c, c->out, c->batch * c->out_h * c->out_w,
                                c->in * c->window[0] * c->window[1]);
}

cudaError_t fleet_cuda_conv2d_grad_weight(cudaStream_t stream, const struct fleet_cuda_conv2d *c)
{
    if (!is_float(c->x_type) || !is_float(c->d_weight_type) || !is_float(c->y_type))
        return cudaErrorInvalidValue;
    return run<weight_product>(stream, c, c->out, c->in * c->window[0] * c->window[1],
                               c->batch * c->out_h * c->out_w);
}

cudaError_t fleet_cuda_conv2d_grad_x(cudaStream_t stream, const struct fleet_cuda_conv2d *c)
{
    if (!is_float(c->d_x_type) || !is_float(c->weight_type) || !is_float(c->y_type))
        return cudaErrorInvalidValue;
    return run<back_product>(stream, c, c->in, c->batch * c->h * c->w,
                             c->out * c->window[0] * c->window[1]);
}
