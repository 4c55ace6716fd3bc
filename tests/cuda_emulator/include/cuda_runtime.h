/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_CUDA_RUNTIME_H
#define EMULATOR_CUDA_RUNTIME_H

/*
 * CUDA C++ as our kernels use it, for a C++ compiler. What is missing does not compile: there are
 * no atomic functions on floating-point numbers, because their order would decide the bits, and
 * `__shared__` is only written by CUDA_SHARED.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/include/emulator_tensor.h"

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx emulator_thread_index
#define blockIdx  emulator_block_index
#define blockDim  emulator_block_size
#define gridDim   emulator_grid_size
#define warpSize  32

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

/* ---- launches and shared memory: the macros of cuda/kernels/device.cuh ----------------------- */

template <typename... P> struct emulator_arguments;
template <> struct emulator_arguments<> {
};
template <typename F, typename... R> struct emulator_arguments<F, R...> {
    F first;
    emulator_arguments<R...> rest;
};

/* Not instrumented: the arguments lie in the host's memory. */
template <typename... P> struct emulator_call {
    void (*kernel)(P...);
    emulator_arguments<P...> arguments;

    template <typename... Done>
    __attribute__((no_sanitize("thread"))) static void
    spread(void (*kernel)(P...), const emulator_arguments<> &, const Done &...done)
    {
        kernel(done...);
    }
    template <typename F, typename... R, typename... Done>
    __attribute__((no_sanitize("thread"))) static void
    spread(void (*kernel)(P...), const emulator_arguments<F, R...> &a, const Done &...done)
    {
        spread(kernel, a.rest, done..., a.first);
    }
    __attribute__((no_sanitize("thread"))) static void run(const void *data)
    {
        const emulator_call *call = static_cast<const emulator_call *>(data);
        spread(call->kernel, call->arguments);
    }
};

static inline emulator_arguments<> emulator_pack()
{
    return {};
}
template <typename F, typename... R>
static emulator_arguments<F, R...> emulator_pack(const F &first, const R &...rest)
{
    return {first, emulator_pack(rest...)};
}

template <typename T> struct emulator_same {
    typedef T type;
};

template <typename... P>
static cudaError_t emulator_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                   size_t dynamic_bytes, cudaStream_t stream,
                                   typename emulator_same<P>::type... arguments)
{
    emulator_call<P...> call = {kernel, emulator_pack(arguments...)};

    if (emulator_submit)
        return static_cast<cudaError_t>(
            emulator_submit(stream, name, emulator_call<P...>::run, &call, sizeof(call),
                            {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, dynamic_bytes));
    return emulator_run(name, emulator_call<P...>::run, &call, {grid.x, grid.y, grid.z},
                        {block.x, block.y, block.z}, dynamic_bytes) < 0
               ? cudaErrorLaunchFailure
               : cudaSuccess;
}

#define CUDA_LAUNCH(kernel, grid, block, bytes, stream, ...) \
    emulator_launch(#kernel, kernel, grid, block, bytes, stream, __VA_ARGS__)

#define CUDA_SHARED(type, name, dimensions) \
    static const char name##_site = 0;      \
    typedef type name##_type dimensions;    \
    name##_type &name =                     \
        *static_cast<name##_type *>(emulator_shared(&name##_site, sizeof(name##_type), #name))

#define CUDA_DYNAMIC_SHARED(name) char *name = static_cast<char *>(emulator_dynamic_shared())

/* ---- barriers -------------------------------------------------------------------------------- */

#define __syncthreads()         emulator_barrier(0, 0, __FILE__, __LINE__)
#define CUDA_BARRIER(id, count) emulator_barrier(id, count, __FILE__, __LINE__)
#define __threadfence()         ((void)0) /* the emulator's memory is sequential */

#define EMULATOR_ALL_LANES 0xffffffffu

#define __syncwarp(...) emulator_syncwarp(__FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
static inline void emulator_syncwarp(const char *file, int line, unsigned mask = EMULATOR_ALL_LANES)
{
    emulator_warp(EMULATOR_SYNCWARP, mask, 0, nullptr, file, line);
}

/* ---- warp functions -------------------------------------------------------------------------- */

template <typename T> static inline uint64_t emulator_bits(T value)
{
    uint64_t bits = 0;

    static_assert(sizeof(T) <= 8, "a lane gives 8 bytes at most");
    memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <typename T> static inline T emulator_value(uint64_t bits)
{
    T value;

    memcpy(&value, &bits, sizeof(T));
    return value;
}

/* Lane `from` gives its value; one outside of the mask gives none. */
template <typename T>
static inline T emulator_shuffle(unsigned mask, T value, int from, const char *file, int line)
{
    uint64_t all[32];

    emulator_warp(EMULATOR_SHUFFLE, mask, emulator_bits(value), all, file, line);
    if (!(mask >> from & 1))
        emulator_fail("%s:%d: shuffle reads lane %d, which is not in its mask %08x", file, line,
                      from, mask);
    return emulator_value<T>(all[from]);
}

/* The lane that a shuffle of a segment of `width` lanes reads; its own where that is outside. */
static inline int emulator_segment(int lane, int target, int width)
{
    int first = lane / width * width;

    return target < first || target >= first + width ? lane : target;
}

template <typename T>
static inline T emulator_shfl(const char *file, int line, unsigned mask, T value, int from,
                              int width = 32)
{
    int lane = emulator_lane();
    return emulator_shuffle(mask, value, lane / width * width + (from & (width - 1)), file, line);
}
template <typename T>
static inline T emulator_shfl_xor(const char *file, int line, unsigned mask, T value, int bits,
                                  int width = 32)
{
    int lane = emulator_lane();
    return emulator_shuffle(mask, value, emulator_segment(lane, lane ^ bits, width), file, line);
}
template <typename T>
static inline T emulator_shfl_down(const char *file, int line, unsigned mask, T value, int by,
                                   int width = 32)
{
    int lane = emulator_lane();
    return emulator_shuffle(mask, value, emulator_segment(lane, lane + by, width), file, line);
}
template <typename T>
static inline T emulator_shfl_up(const char *file, int line, unsigned mask, T value, int by,
                                 int width = 32)
{
    int lane = emulator_lane();
    return emulator_shuffle(mask, value, emulator_segment(lane, lane - by, width), file, line);
}
#define __shfl_sync(...)      emulator_shfl(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...)  emulator_shfl_xor(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emulator_shfl_down(__FILE__, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...)   emulator_shfl_up(__FILE__, __LINE__, __VA_ARGS__)

static inline unsigned emulator_ballot(const char *file, int line, unsigned mask, int predicate)
{
    uint64_t all[32];
    unsigned votes = 0;

    emulator_warp(EMULATOR_VOTE, mask, predicate != 0, all, file, line);
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && all[i])
            votes |= 1u << i;
    return votes;
}
#define __ballot_sync(mask, p) emulator_ballot(__FILE__, __LINE__, mask, p)
#define __any_sync(mask, p)    (emulator_ballot(__FILE__, __LINE__, mask, p) != 0)
#define __all_sync(mask, p)    (emulator_ballot(__FILE__, __LINE__, mask, p) == (mask))

enum emulator_reduction {
    EMULATOR_ADD,
    EMULATOR_MIN,
    EMULATOR_MAX,
    EMULATOR_OR,
};
template <typename T>
static inline T emulator_reduce(const char *file, int line, enum emulator_reduction r,
                                unsigned mask, T value)
{
    uint64_t all[32];
    T result = value;

    emulator_warp(EMULATOR_REDUCE, mask, emulator_bits(value), all, file, line);
    for (int i = 0; i < 32; i++) {
        T other = emulator_value<T>(all[i]);
        if (!(mask >> i & 1) || i == emulator_lane())
            continue;
        result = r == EMULATOR_ADD   ? result + other
                 : r == EMULATOR_MIN ? (other < result ? other : result)
                 : r == EMULATOR_MAX ? (result < other ? other : result)
                                     : (T)((unsigned)result | (unsigned)other);
    }
    return result;
}
/* Of integers only, as on the device. */
#define __reduce_add_sync(mask, v) \
    emulator_reduce<unsigned>(__FILE__, __LINE__, EMULATOR_ADD, mask, (unsigned)(v))
#define __reduce_or_sync(mask, v) \
    emulator_reduce<unsigned>(__FILE__, __LINE__, EMULATOR_OR, mask, (unsigned)(v))
#define __reduce_min_sync(mask, v) emulator_reduce(__FILE__, __LINE__, EMULATOR_MIN, mask, v)
#define __reduce_max_sync(mask, v) emulator_reduce(__FILE__, __LINE__, EMULATOR_MAX, mask, v)

/* ---- atomic functions, of integers ----------------------------------------------------------- */

template <typename T> struct emulator_is_atomic;
template <> struct emulator_is_atomic<int> {
};
template <> struct emulator_is_atomic<unsigned> {
};
template <> struct emulator_is_atomic<unsigned long long> {
};

#define EMULATOR_ATOMIC(name, expression)                                       \
    template <typename T>                                                       \
    __attribute__((no_sanitize("thread"), noinline)) static T name(             \
        T *address, typename emulator_same<T>::type value)                      \
    {                                                                           \
        (void)sizeof(emulator_is_atomic<T>); /* no such type: not an integer */ \
        emulator_atomic(address, sizeof(T));                                    \
        T old = *address;                                                       \
        *address = (expression);                                                \
        return old;                                                             \
    }
EMULATOR_ATOMIC(atomicAdd, (T)(old + value))
EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicMax, old < value ? value : old)
EMULATOR_ATOMIC(atomicOr, (T)(old | value))
EMULATOR_ATOMIC(atomicExch, value)

template <typename T>
__attribute__((no_sanitize("thread"), noinline)) static T
atomicCAS(T *address, typename emulator_same<T>::type expected,
          typename emulator_same<T>::type value)
{
    (void)sizeof(emulator_is_atomic<T>);
    emulator_atomic(address, sizeof(T));
    T old = *address;
    if (old == expected)
        *address = value;
    return old;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static inline unsigned __float_as_uint(float x)
{
    return (unsigned)emulator_bits(x);
}
static inline int __float_as_int(float x)
{
    return (int)emulator_bits(x);
}
static inline float __uint_as_float(unsigned bits)
{
    return emulator_value<float>(bits);
}
static inline float __int_as_float(int bits)
{
    return emulator_value<float>((unsigned)bits);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
template <typename T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <typename T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

/* ---- vectors --------------------------------------------------------------------------------- */

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* ---- attributes of kernels ------------------------------------------------------------------- */

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
};
template <typename T> static inline cudaError_t cudaFuncSetAttribute(T *, cudaFuncAttribute, int)
{
    return cudaSuccess;
}

#endif
