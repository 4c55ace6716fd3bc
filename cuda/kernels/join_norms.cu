/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Squares of tensors that several ranks computed: JOIN_NORMS, SPREAD_NORMS, TOTAL_NORM.
 *
 * Floor: one number for each tensor, and one for each rank that has a part of the tensor. A launch
 * handles NORMS tensors. Its arguments have the number of each tensor, and whether ranks divide it.
 * Grid: a thread for each tensor. The total has one block: all its threads read, one of them adds.
 * Determinism: the parts of a tensor are added in the order of the ranks, and the tensors in the
 * order of their numbers, both in double. The bits are those of the CPU back end.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 256
#define NORMS   512 /* so that the numbers fit into the 4 KiB of a launch's arguments */

struct norm_numbers {
    int32_t of[NORMS];
};

/* ---- SPREAD_NORMS ---------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) norms_zero_kernel(float *norms, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < count)
        norms[i] = 0.0f;
}

__global__ void __launch_bounds__(THREADS)
    norms_place_kernel(float *whole, const float *own, const struct norm_numbers places, int count)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);

    if (i < count && places.of[i] >= 0)
        whole[places.of[i]] = own[i];
}

static bool places_are_within(const struct fleet_cuda_spread_norms *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->places[i] < -1 || s->places[i] >= s->whole_count)
            return false;
    return s->count >= 0 && s->whole_count >= 0;
}

cudaError_t fleet_cuda_spread_norms(cudaStream_t stream, const struct fleet_cuda_spread_norms *s)
{
    cudaError_t status = cudaSuccess;

    if (!places_are_within(s))
        return cudaErrorInvalidValue;
    if (s->whole_count > 0)
        status = CUDA_LAUNCH(norms_zero_kernel, dim3(blocks_for(s->whole_count, THREADS)),
                             dim3(THREADS), 0, stream, s->whole, s->whole_count);
    for (int at = 0; at < s->count && status == cudaSuccess; at += NORMS) {
        int part = s->count - at < NORMS ? s->count - at : NORMS;
        struct norm_numbers places = {};

        for (int i = 0; i < part; i++)
            places.of[i] = s->places[at + i];
        status = CUDA_LAUNCH(norms_place_kernel, dim3(blocks_for(part, THREADS)), dim3(THREADS), 0,
                             stream, s->whole, s->own + at, places, part);
    }
    return status;
}

/* ---- JOIN_NORMS ------------------------------------------------------------------------------ */

/* `ranks.of` is the number of ranks whose squares of a tensor are added. */
__global__ void __launch_bounds__(THREADS)
    norms_add_kernel(float *norms, const float *all, int64_t stride,
                     const struct norm_numbers ranks, int count)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    double squares = 0;

    if (i >= count)
        return;
    for (int r = 0; r < ranks.of[i]; r++)
        squares += (double)all[r * stride + i];
    norms[i] = (float)squares;
}

__global__ void __launch_bounds__(THREADS)
    norms_round_kernel(float *norms, const double *squares, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < count)
        norms[i] = (float)squares[i];
}

static cudaError_t add_ranks(cudaStream_t stream, const struct fleet_cuda_join_norms *j)
{
    cudaError_t status = cudaSuccess;

    for (int at = 0; at < j->count && status == cudaSuccess; at += NORMS) {
        int part = j->count - at < NORMS ? j->count - at : NORMS;
        struct norm_numbers ranks = {};

        for (int i = 0; i < part; i++)
            ranks.of[i] = j->divided[at + i] ? j->ranks : 1;
        status =
            CUDA_LAUNCH(norms_add_kernel, dim3(blocks_for(part, THREADS)), dim3(THREADS), 0, stream,
                        j->norms + at, j->all + at, (int64_t)j->count + 1, ranks, part);
    }
    return status;
}

cudaError_t fleet_cuda_join_norms(cudaStream_t stream, const struct fleet_cuda_join_norms *j)
{
    cudaError_t status = cudaSuccess;

    if (j->count < 0 || (!j->squares && (!j->all || j->ranks < 1)))
        return cudaErrorInvalidValue;
    if (!j->squares)
        status = add_ranks(stream, j);
    else if (j->count > 0)
        status = CUDA_LAUNCH(norms_round_kernel, dim3(blocks_for(j->count, THREADS)), dim3(THREADS),
                             0, stream, j->norms, j->squares, (int64_t)j->count);
    return status == cudaSuccess ? fleet_cuda_total_norm(stream, j->norms, j->norms, j->count)
                                 : status;
}

/* ---- TOTAL_NORM ------------------------------------------------------------------------------ */

__global__ void __launch_bounds__(THREADS)
    norms_total_kernel(const float *x, float *y, int64_t count)
{
    CUDA_SHARED(float, part, [THREADS]);
    double total = 0;

    for (int64_t from = 0; from < count; from += THREADS) {
        int64_t i = from + threadIdx.x;

        part[threadIdx.x] = i < count ? x[i] : 0.0f;
        if (i < count)
            y[i] = part[threadIdx.x];
        __syncthreads();
        for (int l = 0; threadIdx.x == 0 && l < THREADS && from + l < count; l++)
            total += (double)part[l];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        y[count] = (float)sqrt(total);
}

cudaError_t fleet_cuda_total_norm(cudaStream_t stream, const float *x, float *y, int64_t count)
{
    if (count < 0)
        return cudaErrorInvalidValue;
    return CUDA_LAUNCH(norms_total_kernel, dim3(1), dim3(THREADS), 0, stream, x, y, count);
}
