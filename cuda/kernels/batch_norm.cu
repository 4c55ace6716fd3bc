/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Batch normalization of [B,C,…] per channel, with the formulas of the CPU back end.
 *
 * Floor: forward x (and residual) read and y written once; backward d_y and x read, d_x written.
 * The statistics read x twice more, from the L2 where a channel fits.
 * Grid: a block of 512 threads a channel. Few channels do not fill a device.
 * Determinism: 512 strided sums over (image, place), a tree in each warp, warps in order.
 * Over several ranks the sums of all of them come from outside; the kernels of sums give a rank's.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 512
#define WARPS   (THREADS / WARP)

/* Element i of the channel, images one after the other. */
__device__ static __forceinline__ int64_t place(const struct fleet_cuda_batch_norm &b,
                                                int64_t channel, int64_t i)
{
    return (i / b.plane * b.channels + channel) * b.plane + i % b.plane;
}

/* Mean and rstd of the channel, from x. */
__device__ static __forceinline__ void measure(const struct fleet_cuda_batch_norm &b,
                                               int64_t channel, float *partial, float *mean,
                                               float *rstd)
{
    int64_t count = b.batch * b.plane;
    float sum = 0, squares = 0;

    for (int64_t i = threadIdx.x; i < count; i += THREADS)
        sum += load(b.x, b.x_type, place(b, channel, i));
    *mean = block_sum<THREADS>(sum, partial) / (float)count;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        float x = load(b.x, b.x_type, place(b, channel, i)) - *mean;
        squares = fmaf(x, x, squares);
    }
    squares = block_sum<THREADS>(squares, partial);
    *rstd = 1.0f / sqrtf(squares / (float)count + b.epsilon);
    if (threadIdx.x != 0)
        return;
    if (b.stat_mean)
        b.stat_mean[channel] = *mean;
    if (b.stat_var)
        b.stat_var[channel] = squares / (float)(count > 1 ? count - 1 : 1);
}

/* Σ(x - center) and Σ(x - center)² of the channel. */
__device__ static __forceinline__ void sum_squares(const struct fleet_cuda_batch_norm &b,
                                                   int64_t channel, float center, float *partial,
                                                   float *sum, float *squares)
{
    *sum = *squares = 0;
    for (int64_t i = threadIdx.x; i < b.batch * b.plane; i += THREADS) {
        float x = load(b.x, b.x_type, place(b, channel, i)) - center;
        *sum += x;
        *squares = fmaf(x, x, *squares);
    }
    *sum = block_sum<THREADS>(*sum, partial);
    *squares = block_sum<THREADS>(*squares, partial);
}

/* Σ d_y and Σ d_y·x̂ of the channel. */
__device__ static __forceinline__ void sum_gradients(const struct fleet_cuda_batch_norm &b,
                                                     int64_t channel, float *partial, float *shift,
                                                     float *scale)
{
    float mean = b.mean[channel], rstd = b.rstd[channel];

    *shift = *scale = 0;
    for (int64_t i = threadIdx.x; i < b.batch * b.plane; i += THREADS) {
        int64_t at = place(b, channel, i);
        float d = load(b.d_y, b.d_type, at);
        *shift += d;
        *scale = fmaf(d, (load(b.x, b.x_type, at) - mean) * rstd, *scale);
    }
    *shift = block_sum<THREADS>(*shift, partial);
    *scale = block_sum<THREADS>(*scale, partial);
}

/* Mean and rstd of the channel, from the sums of all ranks. */
__device__ static __forceinline__ void take_total(const struct fleet_cuda_batch_norm &b,
                                                  int64_t channel, float *mean, float *rstd)
{
    float n = b.total[2 * b.channels], shifted = b.total[channel] / n;
    float squares = max_of(b.total[b.channels + channel] - n * shifted * shifted, 0.0f);

    if (isnan(b.total[b.channels + channel]))
        squares = b.total[b.channels + channel];
    *mean = b.center[channel] + shifted;
    *rstd = 1.0f / sqrtf(squares / n + b.epsilon);
    if (threadIdx.x != 0)
        return;
    if (b.stat_mean)
        b.stat_mean[channel] = *mean;
    if (b.stat_var)
        b.stat_var[channel] = squares / (n > 1.0f ? n - 1.0f : 1.0f);
}

__device__ static __forceinline__ void write_sums(const struct fleet_cuda_batch_norm &b,
                                                  int64_t channel, float first, float second)
{
    if (threadIdx.x != 0)
        return;
    b.sums[channel] = first;
    b.sums[b.channels + channel] = second;
    if (channel == 0)
        b.sums[2 * b.channels] = (float)(b.batch * b.plane);
}

__global__ void __launch_bounds__(THREADS)
    batch_norm_sums_kernel(const struct fleet_cuda_batch_norm b)
{
    CUDA_SHARED(float, partial, [WARPS]);
    float sum, squares;

    sum_squares(b, blockIdx.x, b.center[blockIdx.x], partial, &sum, &squares);
    write_sums(b, blockIdx.x, sum, squares);
}

__global__ void __launch_bounds__(THREADS)
    batch_norm_grad_sums_kernel(const struct fleet_cuda_batch_norm b)
{
    CUDA_SHARED(float, partial, [WARPS]);
    float shift, scale;

    sum_gradients(b, blockIdx.x, partial, &shift, &scale);
    write_sums(b, blockIdx.x, shift, scale);
}

__global__ void __launch_bounds__(THREADS) batch_norm_kernel(const struct fleet_cuda_batch_norm b)
{
    CUDA_SHARED(float, partial, [WARPS]);
    int64_t channel = blockIdx.x;
    float mean, rstd, scale = b.scale[channel], shift = b.shift[channel];

    if (b.running_mean) {
        mean = b.running_mean[channel];
        rstd = 1.0f / sqrtf(b.running_var[channel] + b.epsilon);
    } else if (b.total) {
        take_total(b, channel, &mean, &rstd);
    } else {
        measure(b, channel, partial, &mean, &rstd);
    }
    if (threadIdx.x == 0) {
        b.mean[channel] = mean;
        b.rstd[channel] = rstd;
    }
    for (int64_t i = threadIdx.x; i < b.batch * b.plane; i += THREADS) {
        int64_t at = place(b, channel, i);
        float x = (load(b.x, b.x_type, at) - mean) * rstd * scale + shift;
        if (b.residual)
            x += load(b.residual, b.residual_type, at);
        store(b.y, b.out_type, at, b.relu ? max_of(0.0f, x) : x); /* NaN stays */
    }
}

__global__ void __launch_bounds__(THREADS)
    batch_norm_grad_kernel(const struct fleet_cuda_batch_norm b)
{
    CUDA_SHARED(float, partial, [WARPS]);
    int64_t channel = blockIdx.x, count = b.batch * b.plane;
    float mean = b.mean[channel], rstd = b.rstd[channel], factor = b.scale[channel] * rstd;
    float shift, scale, n = (float)count;

    if (b.total) {
        shift = b.total[channel];
        scale = b.total[b.channels + channel];
        n = b.total[2 * b.channels];
    } else {
        sum_gradients(b, channel, partial, &shift, &scale);
    }
    if (threadIdx.x == 0) {
        if (b.d_shift)
            b.d_shift[channel] = b.own ? b.own[channel] : shift;
        if (b.d_scale)
            b.d_scale[channel] = b.own ? b.own[b.channels + channel] : scale;
    }
    for (int64_t i = threadIdx.x; b.d_x && i < count; i += THREADS) {
        int64_t at = place(b, channel, i);
        float x = (load(b.x, b.x_type, at) - mean) * rstd;
        store(b.d_x, b.out_type, at,
              (load(b.d_y, b.d_type, at) - shift / n - x * (scale / n)) * factor);
    }
}

static bool is_sound(const struct fleet_cuda_batch_norm *b)
{
    return b->batch >= 1 && b->plane >= 1 && b->channels >= 0 && b->channels <= INT32_MAX &&
           is_float(b->x_type);
}

cudaError_t fleet_cuda_batch_norm_sums(cudaStream_t stream, const struct fleet_cuda_batch_norm *b)
{
    if (!is_sound(b) || b->channels == 0)
        return cudaErrorInvalidValue;
    return CUDA_LAUNCH(batch_norm_sums_kernel, dim3((unsigned)b->channels), dim3(THREADS), 0,
                       stream, *b);
}

cudaError_t fleet_cuda_batch_norm_grad_sums(cudaStream_t stream,
                                            const struct fleet_cuda_batch_norm *b)
{
    if (!is_sound(b) || b->channels == 0 || !is_float(b->d_type))
        return cudaErrorInvalidValue;
    return CUDA_LAUNCH(batch_norm_grad_sums_kernel, dim3((unsigned)b->channels), dim3(THREADS), 0,
                       stream, *b);
}

cudaError_t fleet_cuda_batch_norm(cudaStream_t stream, const struct fleet_cuda_batch_norm *b)
{
    if (!is_sound(b) || !is_float(b->out_type) || (b->residual && !is_float(b->residual_type)))
        return cudaErrorInvalidValue;
    if (b->channels == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(batch_norm_kernel, dim3((unsigned)b->channels), dim3(THREADS), 0, stream,
                       *b);
}

cudaError_t fleet_cuda_batch_norm_grad(cudaStream_t stream, const struct fleet_cuda_batch_norm *b)
{
    if (!is_sound(b) || !is_float(b->d_type) || (b->d_x && !is_float(b->out_type)))
        return cudaErrorInvalidValue;
    if (b->channels == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(batch_norm_grad_kernel, dim3((unsigned)b->channels), dim3(THREADS), 0,
                       stream, *b);
}
