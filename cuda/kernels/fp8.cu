/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Factors of products in fp8: the greatest element of each tensor, then its codes, straight and
 * turned. Products of fp8 want both factors with their common dimension last, so a gradient needs
 * the other order of what the forward product read.
 *
 * Floor: x read twice, a byte written for each element and order.
 * Grid: one thread clears the greatest elements; then at most FINDERS blocks a tensor, 256 threads,
 * eight elements a thread at a time; then 256 threads a tile of 64 × 64 elements, which lies in
 * shared memory between its two orders. blockIdx.y is the number of the tensor.
 * Determinism: the greatest does not depend on the order; an atomic function compares bits.
 */
#include <cuda_fp8.h>

#include "cuda/kernels/eight.cuh"

#define THREADS 256
#define FINDERS 1024
#define TILE    64
#define EACH    4                       /* neighbours that a thread makes codes of */
#define PASS    (THREADS * EACH / TILE) /* rows of a tile at a time */

__global__ void clear_scales_kernel(const struct fleet_cuda_fp8 f)
{
    f.tensors[threadIdx.x].scale->greatest = 0;
}

/* 0 of what is not finite */
__device__ static __forceinline__ unsigned size_of(float x)
{
    unsigned bits = __float_as_uint(x) & 0x7fffffff;

    return bits < 0x7f800000 ? bits : 0;
}

__device__ static __forceinline__ unsigned larger(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

__global__ void __launch_bounds__(THREADS) find_greatest_kernel(const struct fleet_cuda_fp8 f)
{
    const auto &t = f.tensors[blockIdx.y];
    int64_t count = t.rows * t.columns, whole = count / EIGHT * EIGHT;
    int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    unsigned greatest = 0;

    for (int64_t i = first * EIGHT; i < whole; i += (int64_t)gridDim.x * THREADS * EIGHT) {
        struct eight x = widen_eight(load_eight(t.x, t.x_type, i), t.x_type);
#pragma unroll
        for (int l = 0; l < EIGHT; l++)
            greatest = larger(size_of(x.at[l]), greatest);
    }
    if (first < count - whole)
        greatest = larger(size_of(load(t.x, t.x_type, whole + first)), greatest);
    for (int by = WARP / 2; by > 0; by /= 2)
        greatest = larger(greatest, __shfl_xor_sync(LANES, greatest, by));
    if (threadIdx.x % WARP == 0 && greatest > 0)
        atomicMax(&t.scale->greatest, greatest);
}

/* ---- codes ----------------------------------------------------------------------------------- */

__device__ static __forceinline__ unsigned code_of(float x, float up, enum fp8_type type)
{
    if (!(fabsf(x) < INFINITY))
        return 0x7f;
    return __nv_cvt_float_to_fp8(x * up, __NV_SATFINITE, type == FP8_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

/* `count` (up to EACH) codes of one byte each, to byte `at`; at once where `whole`. */
__device__ static __forceinline__ void put_codes(uint8_t *to, int64_t at, unsigned codes,
                                                 int64_t count, bool whole)
{
    if (whole && count >= EACH) {
        *reinterpret_cast<unsigned *>(to + at) = codes;
        return;
    }
    for (int l = 0; l < EACH && l < count; l++)
        to[at + l] = (uint8_t)(codes >> 8 * l);
}

/* The four elements from x[at] on, of which `count` exist. */
__device__ static __forceinline__ struct four neighbours(const void *x, enum program_type type,
                                                         int64_t at, int64_t count, bool whole)
{
    struct four r = {};

    if (whole && count >= EACH)
        return load_four(x, type, at);
#pragma unroll
    for (int l = 0; l < EACH; l++)
        r.at[l] = l < count ? load(x, type, at + l) : 0.0f;
    return r;
}

__global__ void __launch_bounds__(THREADS) codes_kernel(const struct fleet_cuda_fp8 f)
{
    CUDA_SHARED(unsigned, tile, [TILE][TILE / EACH + 1]); /* [column][row], a code a byte */
    const auto &t = f.tensors[blockIdx.y];
    int64_t across = (t.columns + TILE - 1) / TILE, row = blockIdx.x / across * TILE;
    int64_t column = blockIdx.x % across * TILE;
    int line = (int)threadIdx.x / (TILE / EACH), place = (int)threadIdx.x % (TILE / EACH) * EACH;
    int s = fp8_scale(t.scale->greatest, t.type);
    float up = __uint_as_float(fp8_power(s));

    if (row >= t.rows)
        return;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        t.scale->down = __uint_as_float(fp8_power(-s));
    for (int r = line; r < TILE; r += PASS) {
        int64_t at = (row + r) * t.columns + column + place;
        int64_t left = row + r < t.rows ? t.columns - column - place : 0;
        struct four x = neighbours(t.x, t.x_type, at, left, t.columns % EACH == 0);
        unsigned codes = 0;
#pragma unroll
        for (int l = 0; l < EACH; l++) {
            unsigned code = code_of(x.at[l], up, t.type);
            codes |= code << 8 * l;
            reinterpret_cast<uint8_t *>(tile[place + l])[r] = (uint8_t)code;
        }
        if (t.straight)
            put_codes(t.straight, at, codes, left, t.columns % EACH == 0);
    }
    __syncthreads();
    if (!t.turned)
        return;
    for (int c = line; c < TILE && column + c < t.columns; c += PASS) {
        put_codes(t.turned, (column + c) * t.rows + row + place, tile[c][place / EACH],
                  t.rows - row - place, t.rows % EACH == 0);
    }
}

static bool is_possible(const struct fleet_cuda_fp8 *f)
{
    bool is = f->count >= 0 && f->count <= FLEET_CUDA_FP8_TENSORS;

    for (int i = 0; is && i < f->count; i++)
        is = is_float(f->tensors[i].x_type) && f->tensors[i].rows >= 0 &&
             f->tensors[i].columns >= 0 && f->tensors[i].type != FP8_NONE;
    return is;
}

cudaError_t fleet_cuda_fp8(cudaStream_t stream, const struct fleet_cuda_fp8 *f)
{
    unsigned finders = 1, tiles = 0;
    cudaError_t status;

    if (!is_possible(f))
        return cudaErrorInvalidValue;
    if (f->count == 0)
        return cudaSuccess;
    for (int i = 0; i < f->count; i++) {
        const auto &t = f->tensors[i];
        unsigned wanted = blocks_for(t.rows * t.columns, (int64_t)THREADS * EIGHT * 2);
        unsigned own = blocks_for(t.rows, TILE) * blocks_for(t.columns, TILE);
        finders = wanted > finders ? wanted : finders;
        tiles = own > tiles ? own : tiles;
    }
    finders = finders < FINDERS ? finders : FINDERS;
    status = CUDA_LAUNCH(clear_scales_kernel, dim3(1), dim3((unsigned)f->count), 0, stream, *f);
    if (status != cudaSuccess || tiles == 0)
        return status;
    status = CUDA_LAUNCH(find_greatest_kernel, dim3(finders, (unsigned)f->count), dim3(THREADS), 0,
                         stream, *f);
    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(codes_kernel, dim3(tiles, (unsigned)f->count), dim3(THREADS), 0, stream, *f);
}
