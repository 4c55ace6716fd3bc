/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_DEVICE_CUH
#define CUDA_KERNELS_DEVICE_CUH

/*
 * What all kernels share: how they are launched, tensors of three types as fp32, functions whose
 * bits are those of the CPU back end, sums of fixed order.
 *
 * tests/cuda_emulator has headers of its own in the place of CUDA's, which define the macros below;
 * so a kernel uses CUDA_SHARED, CUDA_DYNAMIC_SHARED, CUDA_BARRIER and CUDA_LAUNCH and is otherwise
 * plain CUDA C++.
 *
 * Compiled with -fmad=false: multiplications and additions fuse only where fmaf() stands. Division
 * and square roots are IEEE's. So results on a device and on the emulator are the same bits.
 */

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/kernels_update.h"

#ifndef CUDA_LAUNCH
/* A shared array: CUDA_SHARED(float, tile, [64][65]); */
#define CUDA_SHARED(type, name, dimensions) __shared__ type name dimensions
/* char *name, of the bytes that the launch says */
#define CUDA_DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
/* Barrier `id` (1 to 15) of `count` threads, whole warps */
#define CUDA_BARRIER(id, count) asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory")
#define CUDA_LAUNCH(kernel, grid, block, bytes, stream, ...) \
    (kernel<<<grid, block, bytes, stream>>>(__VA_ARGS__), cudaGetLastError())
#endif

#define WARP  32
#define LANES 0xffffffffu

/* Blocks for `count` pieces of `size`. */
static inline unsigned blocks_for(int64_t count, int64_t size)
{
    return (unsigned)((count + size - 1) / size);
}

static inline size_t type_bytes(enum program_type type)
{
    return type == PROGRAM_UINT8 ? 1 : type == PROGRAM_BF16 || type == PROGRAM_FP16 ? 2 : 4;
}

static inline bool is_float(enum program_type type)
{
    return type == PROGRAM_FP32 || type == PROGRAM_BF16 || type == PROGRAM_FP16;
}

/* ---- elements -------------------------------------------------------------------------------- */

__device__ static __forceinline__ float widen(unsigned short bits, enum program_type type)
{
    return type == PROGRAM_BF16 ? __bfloat162float(__ushort_as_bfloat16(bits))
                                : __half2float(__ushort_as_half(bits));
}

__device__ static __forceinline__ unsigned short narrow(float x, enum program_type type)
{
    return type == PROGRAM_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                                : __half_as_ushort(__float2half_rn(x));
}

__device__ static __forceinline__ float load(const void *data, enum program_type type, int64_t i)
{
    if (type == PROGRAM_FP32)
        return static_cast<const float *>(data)[i];
    return widen(static_cast<const unsigned short *>(data)[i], type);
}

__device__ static __forceinline__ void store(void *data, enum program_type type, int64_t i, float x)
{
    if (type == PROGRAM_FP32)
        static_cast<float *>(data)[i] = x;
    else
        static_cast<unsigned short *>(data)[i] = narrow(x, type);
}

/* Four elements at once: one access of 16 or 8 bytes. i is a multiple of 4, the tensor is aligned
 * to 16 bytes. */
struct four {
    float at[4];
};

__device__ static __forceinline__ struct four load_four(const void *data, enum program_type type,
                                                        int64_t i)
{
    struct four r;

    if (type == PROGRAM_FP32) {
        float4 v = reinterpret_cast<const float4 *>(data)[i / 4];
        r.at[0] = v.x, r.at[1] = v.y, r.at[2] = v.z, r.at[3] = v.w;
    } else {
        uint2 v = reinterpret_cast<const uint2 *>(data)[i / 4];
        r.at[0] = widen((unsigned short)v.x, type);
        r.at[1] = widen((unsigned short)(v.x >> 16), type);
        r.at[2] = widen((unsigned short)v.y, type);
        r.at[3] = widen((unsigned short)(v.y >> 16), type);
    }
    return r;
}

__device__ static __forceinline__ void store_four(void *data, enum program_type type, int64_t i,
                                                  struct four x)
{
    if (type == PROGRAM_FP32)
        reinterpret_cast<float4 *>(data)[i / 4] = make_float4(x.at[0], x.at[1], x.at[2], x.at[3]);
    else
        reinterpret_cast<uint2 *>(data)[i / 4] =
            make_uint2(narrow(x.at[0], type) | (unsigned)narrow(x.at[1], type) << 16,
                       narrow(x.at[2], type) | (unsigned)narrow(x.at[3], type) << 16);
}

/* WIDTH (1 or 4) elements from i, a multiple of WIDTH. */
template <int WIDTH> struct some {
    float at[WIDTH];
};

template <int WIDTH>
__device__ static __forceinline__ struct some<WIDTH> load_some(const void *data,
                                                               enum program_type type, int64_t i) {
    struct some<WIDTH> r;

    if (WIDTH == 4) {
        struct four v = load_four(data, type, i);
#pragma unroll
        for (int l = 0; l < WIDTH; l++)
            r.at[l] = v.at[l];
    } else {
        r.at[0] = load(data, type, i);
    }
    return r;
}

template <int WIDTH>
__device__ static __forceinline__ void store_some(void *data, enum program_type type, int64_t i,
                                                  struct some<WIDTH> x)
{
    if (WIDTH == 4) {
        struct four v;
#pragma unroll
        for (int l = 0; l < WIDTH; l++)
            v.at[l] = x.at[l];
        store_four(data, type, i, v);
    } else {
        store(data, type, i, x.at[0]);
    }
}

/* ---- functions, step by step those of agent/runtime/backend/cpu/vector_math.h ----------------- */

/* b if either is NaN, as the processor's */
__device__ static __forceinline__ float max_of(float a, float b)
{
    return a > b ? a : b;
}
__device__ static __forceinline__ float min_of(float a, float b)
{
    return a < b ? a : b;
}

/* exp(y) of a y from -87.336544 to below 88.72284, else some number. Its bits are those of the
 * CPU's steps: a multiplication by 2^n that stays normal is an addition to the exponent. */
__device__ static __forceinline__ float exp_within(float y)
{
    float whole = y * 1.44269504f + 0x1.8p23f; /* its lower bits are n, the nearest whole number */
    float n = whole - 0x1.8p23f, r = fmaf(n, -0.693359375f, y), p = 1.0f / 5040;

    r = fmaf(n, 2.12194440e-4f, r);
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(r * r, p, r);
    p = p + 1.0f;
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(whole) << 23));
}

__device__ static __forceinline__ float exp_of(float x)
{
    const float low = -87.336544f, high = 88.72284f;
    float p = exp_within(max_of(low, min_of(high, x)));

    p = x < low ? 0.0f : p;
    p = high <= x ? INFINITY : p; /* at `high` itself the exponent is full */
    return x == x ? p : x;
}

/* exp_of(x) of an x that is 0 or less; of a NaN some number. */
__device__ static __forceinline__ float exp_below(float x)
{
    const float low = -87.336544f;

    return x < low ? 0.0f : exp_within(fmaxf(low, x));
}

/* For positive normal x, inf and NaN. */
__device__ static __forceinline__ float log_of(float x)
{
    unsigned bits = __float_as_uint(x);
    float m = __uint_as_float((bits & 0x007fffff) | 0x3f800000),
          n = (float)((int)(bits >> 23) - 127);
    bool large = 1.41421356f < m;
    float s, z, p;

    m = large ? m * 0.5f : m;
    n = large ? n + 1.0f : n;
    m = m - 1.0f; /* exact */
    s = m / (m + 2.0f);
    z = s * s;
    p = 2.0f / 9;
    p = fmaf(p, z, 2.0f / 7);
    p = fmaf(p, z, 2.0f / 5);
    p = fmaf(p, z, 2.0f / 3);
    p = fmaf(n, -2.12194440e-4f, s * (z * p - m));
    p = p + m;
    p = fmaf(n, 0.693359375f, p);
    return x < INFINITY ? p : x;
}

__device__ static __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + exp_of(0.0f - x));
}

#define GELU_A 1.5957691216f    /* 2·√(2/π) */
#define GELU_B 0.0713548162726f /* that · 0.044715 */

__device__ static __forceinline__ float gelu(float x)
{
    return x * sigmoid(x * fmaf(GELU_B, x * x, GELU_A));
}

__device__ static __forceinline__ float gelu_slope(float x)
{
    float square = x * x, s = sigmoid(x * fmaf(GELU_B, square, GELU_A));
    float slope = fmaf(3 * GELU_B, square, GELU_A);

    return fmaf(x * (s * (1.0f - s)), slope, s);
}

/* erf, and GELU by it. */
__device__ static __forceinline__ float erf_of(float x)
{
    const float p[] = {1.12837917f,    -0.376126269f,    0.112835975f,   -0.0268543288f,
                       0.00518931194f, -0.000801885499f, 7.88249711e-05f};
    const float q[] = {-0.000303212967f, 1.13016668f,     0.631937094f,
                       0.109978245f,     -0.0263647174f,  0.00474022234f,
                       -0.000592769537f, 4.55906223e-05f, -1.6140616e-06f};
    float size = max_of(x, 0.0f - x), square = x * x, t = min_of(4.0f, size);
    float near = p[6], far = q[8];

    for (int i = 5; i >= 0; i--)
        near = fmaf(near, square, p[i]);
    for (int i = 7; i >= 0; i--)
        far = fmaf(far, t, q[i]);
    far = 1.0f - exp_of(0.0f - far);
    far = 4.0f < size ? 1.0f : far;
    far = x < 0.0f ? 0.0f - far : far;
    return 1.0f < size ? far : x * near; /* NaN is in near */
}

__device__ static __forceinline__ float normal_below(float x)
{
    return fmaf(0.5f, erf_of(x * 0.707106781f), 0.5f);
}

__device__ static __forceinline__ float gelu_exact_slope(float x)
{
    return fmaf(x, 0.398942280f * exp_of(-0.5f * (x * x)), normal_below(x));
}

__device__ static __forceinline__ float silu_slope(float x)
{
    float s = sigmoid(x);

    return s * fmaf(x, 1.0f - s, 1.0f);
}

/* ---- sums and maxima of a warp ---------------------------------------------------------------- */

/* Lane i + lane i+16, then +8, +4, +2, +1: in all lanes. */
__device__ static __forceinline__ float warp_sum(float x)
{
    for (int by = WARP / 2; by > 0; by /= 2)
        x += __shfl_xor_sync(LANES, x, by);
    return x;
}

/* The greatest, NaN if one is NaN. */
__device__ static __forceinline__ float greater(float a, float b)
{
    return a > b || a != a ? a : b;
}

__device__ static __forceinline__ float warp_max(float x)
{
    for (int by = WARP / 2; by > 0; by /= 2)
        x = greater(x, __shfl_xor_sync(LANES, x, by));
    return x;
}

/* The sum over a block of THREADS threads, in all of them: warps first, then their sums in order.
 * `partial` is a shared array of THREADS / WARP, free to be used again. */
template <int THREADS, typename T> __device__ static __forceinline__ T block_sum(T x, T *partial)
{
    T sum = 0;

    for (int by = WARP / 2; by > 0; by /= 2)
        x += __shfl_xor_sync(LANES, x, by);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++)
        sum += partial[w];
    return sum;
}

template <int THREADS> __device__ static __forceinline__ float block_max(float x, float *partial)
{
    float most = -INFINITY;

    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++)
        most = greater(partial[w], most);
    return most;
}

#endif
