/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Kernels for the emulator's own test: some right, most with a bug that the emulator must find.
 * Each is one block of 64 threads unless noted. `wrong` chooses between the kernel as it should be
 * and the one with the bug, so that the test also shows that the right one passes.
 */
#include <cuda_fp8.h>
#include <cuda_pipeline_primitives.h>

#include "cuda/kernels/device.cuh"
#include "cuda/kernels/tensor_core.cuh"
#include "tests/cuda_emulator/planted.h"

#define THREADS 64

/* y[i] = x[63 - i] by a shared array. Bug 1: no barrier between writing and reading it. */
__global__ void reverse(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float, tile, [THREADS]);
    int i = (int)threadIdx.x;

    tile[i] = x[i];
    if (!wrong)
        __syncthreads();
    y[i] = tile[THREADS - 1 - i];
}

/* Sum of 64 by halves. Bug 2: no barrier at the end of a round. */
__global__ void tree(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float, tile, [THREADS]);
    int i = (int)threadIdx.x;

    tile[i] = x[i];
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (i < half)
            tile[i] += tile[i + half];
        if (!wrong)
            __syncthreads();
    }
    if (i == 0)
        y[0] = tile[0];
}

/* y = 2x of 50 elements. Bug 3: <= in the bound. */
__global__ void twice(const float *x, float *y, int wrong)
{
    int i = (int)threadIdx.x;

    if (i < 50 || (wrong && i <= 50))
        y[i] = 2 * x[i];
}

/* Neighbours by a shared array of 64. Bug 4: the last thread reads beyond it. */
__global__ void neighbour(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float, tile, [THREADS]);
    int i = (int)threadIdx.x;

    tile[i] = x[i];
    __syncthreads();
    y[i] = tile[wrong ? i + 1 : (i + 1) % THREADS];
}

/* Sum of 32 lanes. Bug 5: the lower half only calls the shuffle, with the mask of all. */
__global__ void half_shuffle(const float *x, float *y, int wrong)
{
    int i = (int)threadIdx.x;
    float sum = x[i];

    if (!wrong || i % WARP < 16)
        sum += __shfl_xor_sync(LANES, sum, 8);
    y[i] = sum;
}

/* The upper half reads lane 0. Bug 6: which its mask does not name. */
__global__ void mask(const float *x, float *y, int wrong)
{
    int i = (int)threadIdx.x;
    float first = x[i];

    if (i % WARP >= 16)
        first = __shfl_sync(0xffff0000u, first, wrong ? 0 : 16);
    y[i] = first;
}

/* Bug 7: a barrier that threads above 50 never reach, as they returned. */
__global__ void early_return(const float *x, float *y, int wrong)
{
    int i = (int)threadIdx.x;

    if (wrong && i > 50)
        return;
    __syncthreads();
    y[i] = x[i];
}

/* Bug 8: two barriers in the branches of an if. */
__global__ void branches(const float *x, float *y, int wrong)
{
    if (wrong && threadIdx.x < WARP)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}

/* Sum of a shared array, of which the block writes the first 48. Bug 9: all 64 are read. */
__global__ void unwritten(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float, tile, [THREADS]);
    int i = (int)threadIdx.x;
    float sum = 0;

    if (i < 48)
        tile[i] = x[i];
    __syncthreads();
    for (int j = 0; j < (wrong ? THREADS : 48); j++)
        sum += tile[j];
    y[i] = sum;
}

/* Counts by an atomic function. Bug 10: by reading and writing; of two blocks. */
__global__ void count(int *total, int wrong)
{
    if (wrong)
        *total = *total + 1;
    else
        atomicAdd(total, 1);
}

/* A producer warp and a consumer warp over a named barrier. Bug 11: the consumer waits at another
 * one. */
__global__ void named(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float, tile, [WARP]);
    int i = (int)threadIdx.x;

    if (i < WARP)
        tile[i] = x[i];
    CUDA_BARRIER(wrong && i >= WARP ? 2 : 1, THREADS);
    if (i >= WARP)
        y[i - WARP] = tile[(i + 1) % WARP];
}

/* y = scale·x in fp8, back in fp32. Bug 12: multiplied by the scale again, instead of divided. */
__global__ void swapped_scale(const float *x, float *y, int wrong)
{
    int i = (int)threadIdx.x;
    const float scale = 16.0f;
    __nv_fp8_storage_t bits = __nv_cvt_float_to_fp8(x[i] * scale, __NV_SATFINITE, __NV_E5M2);
    float back = __half2float(__ushort_as_half((unsigned short)(bits << 8)));

    y[i] = wrong ? back * scale : back / scale;
}

/* Right: a copy by asynchronous copies of 16 bytes. Bug 13: it does not wait for them. */
__global__ void late_copy(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float4, tile, [THREADS / 4]);
    int i = (int)threadIdx.x;

    if (i < THREADS / 4)
        __pipeline_memcpy_async(&tile[i], &reinterpret_cast<const float4 *>(x)[i], 16);
    __pipeline_commit();
    if (!wrong)
        __pipeline_wait_prior(0);
    __syncthreads();
    y[i] = tile[i / 4].x;
}

/* Two blocks, each writes its half. Bug 14: both write element 0. */
__global__ void blocks(const float *x, float *y, int wrong)
{
    int i = (int)(blockIdx.x * 32 + threadIdx.x % 32);

    if (threadIdx.x < 32)
        y[wrong && threadIdx.x == 0 ? 0 : i] = x[i];
}

/* Sums of four tiles of 16; each is copied while the one before it is summed. Bug 15: it waits for
 * the tile before. */
__global__ void pipeline(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float4, tile, [2][4]);
    int i = (int)threadIdx.x;
    float sum = 0;

    if (i < 4)
        CUDA_COPY_16(&tile[0][i], x + 4 * i, true);
    CUDA_COPY_COMMIT();
    for (int round = 0; round < 4; round++) {
        if (i < 4 && round < 3)
            CUDA_COPY_16(&tile[(round + 1) % 2][i], x + 16 * (round + 1) + 4 * i, true);
        CUDA_COPY_COMMIT();
        if (wrong)
            CUDA_COPY_WAIT(2);
        else
            CUDA_COPY_WAIT(1);
        __syncthreads();
        sum += reinterpret_cast<const float *>(tile[round % 2])[i % 16];
        __syncthreads();
    }
    y[i] = sum;
}

/* The same with one barrier a round. Bug 16: it stands behind the start of the next copy, which so
 * overwrites what others still read. */
__global__ void reuse(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float4, tile, [2][4]);
    int i = (int)threadIdx.x;
    float sum = 0;

    if (i < 4)
        CUDA_COPY_16(&tile[0][i], x + 4 * i, true);
    CUDA_COPY_COMMIT();
    for (int round = 0; round < 4; round++) {
        CUDA_COPY_WAIT(0);
        if (!wrong)
            __syncthreads();
        if (i < 4 && round < 3)
            CUDA_COPY_16(&tile[(round + 1) % 2][i], x + 16 * (round + 1) + 4 * i, true);
        CUDA_COPY_COMMIT();
        if (wrong)
            __syncthreads();
        sum += reinterpret_cast<const float *>(tile[round % 2])[i % 16];
    }
    y[i] = sum;
}

/* Rows 8 … 15 of a·b on tensor cores: a's rows are 16 numbers of x, b moves columns by one. Bug 17:
 * the lane's row of a's lower half is that of the upper one. */
__global__ void fragment(const float *x, float *y, int wrong)
{
    CUDA_SHARED(unsigned short, a, [16 * 64]);
    CUDA_SHARED(unsigned short, b, [16 * 64]);
    int lane = (int)threadIdx.x % WARP;
    unsigned left[4], right[4];
    float d[4] = {0, 0, 0, 0};

    for (int i = (int)threadIdx.x; i < 16 * 16; i += THREADS) {
        int row = i / 16, column = i % 16, at = piece_at<64>(row, column / 8) + column % 8;
        a[at] = narrow(x[(5 * row + column) % 64], PROGRAM_BF16);
        b[at] = narrow(row == column + 1 ? 1.0f : 0.0f, PROGRAM_BF16);
    }
    __syncthreads();
    if (wrong)
        CUDA_LDMATRIX(left, a + piece_at<64>(lane % 8, lane / 16));
    else
        fragment_a<64>(left, a, lane_offset<64>(), 0, 0);
    fragments_b<64>(right, b, lane_offset<64>(), 0, 0);
    mma<true>(d, left, right[0], right[1]);
    if (threadIdx.x < WARP)
        for (int e = 0; e < 2; e++)
            y[lane / 4 * 8 + 2 * (lane % 4) + e] = d[2 + e];
}

/* Bug 18: half of a warp calls a function of the whole one. */
__global__ void half_fragment(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float, tile, [THREADS]);
    int i = (int)threadIdx.x;
    unsigned r[4] = {0, 0, 0, 0};

    tile[i] = x[i];
    __syncthreads();
    if (!wrong || i % WARP < 16)
        CUDA_LDMATRIX(r, tile + i % 16 * 4);
    y[i] = __uint_as_float(r[0]);
}

/* Bug 19: rows of a matrix that do not begin at a multiple of 16 bytes. */
__global__ void misaligned(const float *x, float *y, int wrong)
{
    CUDA_SHARED(float, tile, [THREADS]);
    int i = (int)threadIdx.x;
    unsigned r[4];

    tile[i] = x[i];
    __syncthreads();
    CUDA_LDMATRIX(r, tile + i % 8 * 4 + (wrong ? 1 : 0));
    y[i] = __uint_as_float(r[0]);
}

#define PLANTED(kernel, grid) CUDA_LAUNCH(kernel, dim3(grid), dim3(THREADS), 0, stream, x, y, wrong)

cudaError_t planted_run(enum planted bug, const float *x, float *y, int *total, bool is_wrong)
{
    cudaStream_t stream = 0;
    int wrong = is_wrong;

    switch (bug) {
    case PLANTED_REVERSE:
        return PLANTED(reverse, 1);
    case PLANTED_TREE:
        return PLANTED(tree, 1);
    case PLANTED_TWICE:
        return PLANTED(twice, 1);
    case PLANTED_NEIGHBOUR:
        return PLANTED(neighbour, 1);
    case PLANTED_HALF_SHUFFLE:
        return PLANTED(half_shuffle, 1);
    case PLANTED_MASK:
        return PLANTED(mask, 1);
    case PLANTED_EARLY_RETURN:
        return PLANTED(early_return, 1);
    case PLANTED_BRANCHES:
        return PLANTED(branches, 1);
    case PLANTED_UNWRITTEN:
        return PLANTED(unwritten, 1);
    case PLANTED_COUNT:
        return CUDA_LAUNCH(count, dim3(2), dim3(THREADS), 0, stream, total, wrong);
    case PLANTED_NAMED:
        return PLANTED(named, 1);
    case PLANTED_SWAPPED_SCALE:
        return PLANTED(swapped_scale, 1);
    case PLANTED_LATE_COPY:
        return PLANTED(late_copy, 1);
    case PLANTED_BLOCKS:
        return PLANTED(blocks, 2);
    case PLANTED_PIPELINE:
        return PLANTED(pipeline, 1);
    case PLANTED_REUSE:
        return PLANTED(reuse, 1);
    case PLANTED_FRAGMENT:
        return PLANTED(fragment, 1);
    case PLANTED_HALF_FRAGMENT:
        return PLANTED(half_fragment, 1);
    case PLANTED_MISALIGNED:
        return PLANTED(misaligned, 1);
    case PLANTED_BUGS:
        break;
    }
    return cudaErrorInvalidValue;
}
