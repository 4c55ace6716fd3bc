/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Pools over image planes.
 *
 * Floor: both sides moved once; windows that overlap read again from the L1.
 * Grid: forward a thread an element of y; backward a thread an element of x, which collects from
 * the windows that cover it.
 * Determinism: a window is summed in row order; an element's gradient is summed over its windows in
 * row order, in fp32: the bits of the CPU back end where the gradient is fp32.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 256

/* Sides, windows, strides and paddings: products of two of them are far below 2^31. */
#define SIDE_MAX 32000

struct range {
    int from, to;
};

/* Windows of a kind along an axis (0: rows, 1: columns). */
struct windows {
    /* The part of window i inside the image. */
    __device__ static __forceinline__ struct range inside(const struct fleet_cuda_pool &p, int axis,
                                                          int i)
    {
        int size = (int)(axis ? p.w : p.h);
        int from = i * (int)p.stride[axis] - (int)p.padding[axis];
        int to = from + (int)p.window[axis];
        struct range r = {from < 0 ? 0 : from, to > size ? size : to};
        return r;
    }
    /* Elements that a mean is taken over: with the padding, which ends with it. */
    __device__ static __forceinline__ int count(const struct fleet_cuda_pool &p, int axis, int i)
    {
        int end = (int)(axis ? p.w : p.h) + (int)p.padding[axis];
        int from = i * (int)p.stride[axis] - (int)p.padding[axis];
        int to = from + (int)p.window[axis];
        struct range r = inside(p, axis, i);
        return p.exclude_padding ? r.to - r.from : (to > end ? end : to) - from;
    }
    /* Windows that may cover element x: a little more is fine, they are asked again. */
    __device__ static __forceinline__ struct range covering(const struct fleet_cuda_pool &p,
                                                            int axis, int x)
    {
        int out = (int)(axis ? p.out_w : p.out_h), s = (int)p.stride[axis];
        int at = x + (int)p.padding[axis];
        int from = at - (int)p.window[axis] + 1;
        struct range r = {from > 0 ? (from + s - 1) / s : 0, at / s + 1 < out ? at / s + 1 : out};
        return r;
    }
};

/* Of the adaptive pool: ⌊i·in/out⌋ … ⌈(i+1)·in/out⌉. */
struct adaptive_windows {
    __device__ static __forceinline__ struct range inside(const struct fleet_cuda_pool &p, int axis,
                                                          int i)
    {
        int in = (int)(axis ? p.w : p.h), out = (int)(axis ? p.out_w : p.out_h);
        struct range r = {i * in / out, ((i + 1) * in + out - 1) / out};
        return r;
    }
    __device__ static __forceinline__ int count(const struct fleet_cuda_pool &p, int axis, int i)
    {
        struct range r = inside(p, axis, i);
        return r.to - r.from;
    }
    __device__ static __forceinline__ struct range covering(const struct fleet_cuda_pool &p,
                                                            int axis, int x)
    {
        int in = (int)(axis ? p.w : p.h), out = (int)(axis ? p.out_w : p.out_h);
        int from = x * out / in - 1, to = (x + 1) * out / in + 2;
        struct range r = {from > 0 ? from : 0, to < out ? to : out};
        return r;
    }
};

__global__ void __launch_bounds__(THREADS) max_pool_kernel(const struct fleet_cuda_pool p)
{
    int64_t o = (int64_t)blockIdx.x * THREADS + threadIdx.x, plane = o / (p.out_h * p.out_w), place;
    int at = (int)(o - plane * (p.out_h * p.out_w));
    struct range rows, columns;
    float best = -INFINITY;

    if (o >= p.planes * p.out_h * p.out_w)
        return;
    rows = windows::inside(p, 0, at / (int)p.out_w);
    columns = windows::inside(p, 1, at % (int)p.out_w);
    place = rows.from * p.w + columns.from;
    for (int y = rows.from; y < rows.to; y++)
        for (int x = columns.from; x < columns.to; x++) {
            float value = load(p.from, p.from_type, (plane * p.h + y) * p.w + x);
            if (value > best || (value != value && best == best)) { /* the first NaN stays */
                best = value;
                place = y * p.w + x;
            }
        }
    store(p.to, p.to_type, o, best);
    if (p.indices)
        p.indices[o] = (int32_t)place;
}

template <typename Windows>
__global__ void __launch_bounds__(THREADS) average_pool_kernel(const struct fleet_cuda_pool p)
{
    int64_t o = (int64_t)blockIdx.x * THREADS + threadIdx.x, plane = o / (p.out_h * p.out_w);
    int at = (int)(o - plane * (p.out_h * p.out_w)), i = at / (int)p.out_w, j = at % (int)p.out_w;
    struct range rows, columns;
    float sum = 0;

    if (o >= p.planes * p.out_h * p.out_w)
        return;
    rows = Windows::inside(p, 0, i);
    columns = Windows::inside(p, 1, j);
    for (int y = rows.from; y < rows.to; y++)
        for (int x = columns.from; x < columns.to; x++)
            sum += load(p.from, p.from_type, (plane * p.h + y) * p.w + x);
    store(p.to, p.to_type, o, sum / (float)(Windows::count(p, 0, i) * Windows::count(p, 1, j)));
}

/* ---- backward -------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) max_pool_grad_kernel(const struct fleet_cuda_pool p)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, plane = i / (p.h * p.w);
    int place = (int)(i - plane * (p.h * p.w));
    struct range rows, columns;
    float sum = 0;

    if (i >= p.planes * p.h * p.w)
        return;
    rows = windows::covering(p, 0, place / (int)p.w);
    columns = windows::covering(p, 1, place % (int)p.w);
    for (int y = rows.from; y < rows.to; y++)
        for (int x = columns.from; x < columns.to; x++) {
            int64_t o = (plane * p.out_h + y) * p.out_w + x;
            if (p.indices[o] == place)
                sum += load(p.from, p.from_type, o);
        }
    store(p.to, p.to_type, i, sum);
}

template <typename Windows>
__global__ void __launch_bounds__(THREADS) average_pool_grad_kernel(const struct fleet_cuda_pool p)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, plane = i / (p.h * p.w);
    int place = (int)(i - plane * (p.h * p.w)), row = place / (int)p.w, column = place % (int)p.w;
    struct range rows, columns;
    float sum = 0;

    if (i >= p.planes * p.h * p.w)
        return;
    rows = Windows::covering(p, 0, row);
    columns = Windows::covering(p, 1, column);
    for (int y = rows.from; y < rows.to; y++)
        for (int x = columns.from; x < columns.to; x++) {
            struct range v = Windows::inside(p, 0, y), h = Windows::inside(p, 1, x);
            if (row >= v.from && row < v.to && column >= h.from && column < h.to)
                sum += load(p.from, p.from_type, (plane * p.out_h + y) * p.out_w + x) /
                       (float)(Windows::count(p, 0, y) * Windows::count(p, 1, x));
        }
    store(p.to, p.to_type, i, sum);
}

static cudaError_t run(cudaStream_t stream, const struct fleet_cuda_pool *p, int64_t count,
                       void (*kernel)(struct fleet_cuda_pool))
{
    if (p->planes < 0 || p->h < 1 || p->w < 1 || p->out_h < 1 || p->out_w < 1 || p->h > SIDE_MAX ||
        p->w > SIDE_MAX || p->out_h > SIDE_MAX || p->out_w > SIDE_MAX || !is_float(p->from_type) ||
        !is_float(p->to_type))
        return cudaErrorInvalidValue;
    if (count == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(kernel, dim3(blocks_for(count, THREADS)), dim3(THREADS), 0, stream, *p);
}

static bool has_windows(const struct fleet_cuda_pool *p)
{
    return p->window[0] >= 1 && p->window[1] >= 1 && p->stride[0] >= 1 && p->stride[1] >= 1 &&
           p->padding[0] >= 0 && p->padding[1] >= 0 && p->window[0] <= SIDE_MAX &&
           p->window[1] <= SIDE_MAX && p->stride[0] <= SIDE_MAX && p->stride[1] <= SIDE_MAX &&
           p->padding[0] <= SIDE_MAX && p->padding[1] <= SIDE_MAX;
}

/* `sides` are those of the elements that have a thread; `needs` is what the kind cannot be without.
 */
#define POOL(name, kernel, needs, sides)                                                \
    cudaError_t fleet_cuda_##name(cudaStream_t stream, const struct fleet_cuda_pool *p) \
    {                                                                                   \
        if (!(needs))                                                                   \
            return cudaErrorInvalidValue;                                               \
        return run(stream, p, p->planes * sides, kernel);                               \
    }
POOL(max_pool2d, max_pool_kernel, has_windows(p), p->out_h * p->out_w)
POOL(max_pool2d_grad, max_pool_grad_kernel, has_windows(p) && p->indices, p->h * p->w)
POOL(avg_pool2d, average_pool_kernel<windows>, has_windows(p), p->out_h * p->out_w)
POOL(avg_pool2d_grad, average_pool_grad_kernel<windows>, has_windows(p), p->h * p->w)
POOL(adaptive_avg_pool2d, average_pool_kernel<adaptive_windows>, true, p->out_h * p->out_w)
POOL(adaptive_avg_pool2d_grad, average_pool_grad_kernel<adaptive_windows>, true, p->h * p->w)
