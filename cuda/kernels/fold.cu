/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reduces the parts of all ranks to one, in the order of the ranks: the arithmetic of a collective.
 *
 * Floor: each input is read once, the result is written once.
 * Grid: a thread for each element, 256 threads a block.
 * Determinism: the inputs are added in their order. The bits are those of comm_fold()
 * (agent/runtime/comm/fold.c).
 */
#include "agent/runtime/comm/comm.h"
#include "cuda/kernels/device.cuh"

#define THREADS 256

/* An element in memory, the type in which it is reduced, and the one in which it is added. */
template <typename NARROW, typename WIDE, typename SUM> struct plain {
    typedef NARROW narrow_type;
    typedef WIDE wide_type;
    typedef SUM sum_type;
    __device__ static __forceinline__ WIDE read(NARROW x)
    {
        return x;
    }
    __device__ static __forceinline__ NARROW write(WIDE x)
    {
        return x;
    }
};

template <enum program_type TYPE> struct halves {
    typedef unsigned short narrow_type;
    typedef float wide_type;
    typedef float sum_type;
    __device__ static __forceinline__ float read(unsigned short bits)
    {
        return widen(bits, TYPE);
    }
    __device__ static __forceinline__ unsigned short write(float x)
    {
        return narrow(x, TYPE);
    }
};

template <typename T>
__device__ static __forceinline__ typename T::wide_type
combine(int reduction, typename T::wide_type a, typename T::wide_type b)
{
    typedef typename T::sum_type sum;
    typedef typename T::wide_type wide;

    if (reduction == COMM_MAX)
        return a > b || a != a ? a : b; /* a NaN wins */
    if (reduction == COMM_MIN)
        return a < b || a != a ? a : b;
    if (reduction == COMM_PROD)
        return (wide)((sum)a * (sum)b);
    return (wide)((sum)a + (sum)b);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) fold_kernel(const struct fleet_cuda_fold f)
{
    typedef typename T::narrow_type narrow;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    typename T::wide_type sum = 0;

    if (i >= f.count)
        return;
    for (int r = 0; r < f.input_count; r++) {
        const void *input =
            r == f.own ? f.own_input : (const char *)f.inputs + (size_t)r * f.stride;
        typename T::wide_type x = T::read(static_cast<const narrow *>(input)[i]);

        sum = r == 0 ? x : combine<T>(f.reduction, sum, x);
    }
    if (f.reduction == COMM_AVG && f.input_count > 1)
        sum = sum / (typename T::wide_type)f.input_count;
    static_cast<narrow *>(f.to)[i] = T::write(sum);
}

template <typename T>
static cudaError_t launch(cudaStream_t stream, const struct fleet_cuda_fold *f)
{
    return CUDA_LAUNCH(fold_kernel<T>, dim3(blocks_for(f->count, THREADS)), dim3(THREADS), 0,
                       stream, *f);
}

static bool is_defined(const struct fleet_cuda_fold *f)
{
    if (f->type == COMM_BOOL)
        return f->reduction == COMM_MAX || f->reduction == COMM_MIN;
    return f->reduction >= COMM_SUM && f->reduction <= COMM_AVG &&
           (f->reduction != COMM_AVG || f->type > COMM_INT64);
}

cudaError_t fleet_cuda_fold(cudaStream_t stream, const struct fleet_cuda_fold *f)
{
    if (f->count < 0 || f->input_count < 1 || !is_defined(f))
        return cudaErrorInvalidValue;
    if (f->count == 0)
        return cudaSuccess;
    switch (f->type) {
    case COMM_UINT8:
    case COMM_BOOL:
        return launch<plain<uint8_t, uint8_t, uint32_t>>(stream, f);
    case COMM_INT8:
        return launch<plain<int8_t, int8_t, uint32_t>>(stream, f);
    case COMM_INT32:
        return launch<plain<int32_t, int32_t, uint32_t>>(stream, f);
    case COMM_INT64:
        return launch<plain<int64_t, int64_t, uint64_t>>(stream, f);
    case COMM_FP16:
        return launch<halves<PROGRAM_FP16>>(stream, f);
    case COMM_BF16:
        return launch<halves<PROGRAM_BF16>>(stream, f);
    case COMM_FP32:
        return launch<plain<float, float, float>>(stream, f);
    case COMM_FP64:
        return launch<plain<double, double, double>>(stream, f);
    default:
        return cudaErrorInvalidValue;
    }
}
