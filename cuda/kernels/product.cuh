/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_PRODUCT_CUH
#define CUDA_KERNELS_PRODUCT_CUH

/*
 * A tile of a matrix product whose operands are functions: rows of A and columns of B are made
 * while they are loaded, so a convolution needs no columns in memory.
 *
 * A block of 256 threads makes 64 × 64 results, a thread 4 × 4 of them; 16 of K at a time lie in
 * shared memory, and the next 16 are loaded into registers meanwhile. FMA in fp32, no tensor cores:
 * this is what runs where cuBLASLt or cuDNN does not.
 * Determinism: every result is one sum over K in order, for any grid.
 */

#include "cuda/kernels/device.cuh"

#define PRODUCT_TILE    64
#define PRODUCT_DEPTH   16
#define PRODUCT_THREADS 256
#define PRODUCT_EACH    4 /* elements of an operand's tile that a thread loads */

/*
 * Product: `float a(int64_t i, int64_t k)`, `float b(int64_t k, int64_t j)`, `float first(int64_t i,
 * int64_t j)`, what the sum begins with, `void put(int64_t i, int64_t j, float sum)`, and m, n, k.
 * They are called within the sizes only.
 * sums[r][c] of a thread is row 4·(thread / 16) + r, column thread % 16 + 16·c of the tile.
 */
template <typename Product>
__device__ static __forceinline__ void product_tile(const Product &product, int64_t row,
                                                    int64_t column)
{
    CUDA_SHARED(float, a, [PRODUCT_DEPTH][PRODUCT_TILE + 4]);
    CUDA_SHARED(float, b, [PRODUCT_DEPTH][PRODUCT_TILE]);
    int thread = (int)threadIdx.x, x = thread % 16, y = thread / 16;
    float sums[4][4];

#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] = row + 4 * y + r < product.m && column + x + 16 * c < product.n
                             ? product.first(row + 4 * y + r, column + x + 16 * c)
                             : 0.0f;
    for (int64_t k = 0; k < product.k; k += PRODUCT_DEPTH) {
        float next_a[PRODUCT_EACH], next_b[PRODUCT_EACH];
#pragma unroll
        for (int e = 0; e < PRODUCT_EACH; e++) {
            int64_t i = row + thread / 16 + e * 16, l = k + x;
            int64_t j = column + thread % PRODUCT_TILE, h = k + thread / PRODUCT_TILE + e * 4;
            next_a[e] = i < product.m && l < product.k ? product.a(i, l) : 0.0f;
            next_b[e] = j < product.n && h < product.k ? product.b(h, j) : 0.0f;
        }
        __syncthreads(); /* the last round has been read */
#pragma unroll
        for (int e = 0; e < PRODUCT_EACH; e++) {
            a[x][y + e * 16] = next_a[e];
            b[thread / PRODUCT_TILE + e * 4][thread % PRODUCT_TILE] = next_b[e];
        }
        __syncthreads();
        int depth = product.k - k < PRODUCT_DEPTH ? (int)(product.k - k) : PRODUCT_DEPTH;
        for (int l = 0; l < depth; l++)
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sums[r][c] = fmaf(a[l][4 * y + r], b[l][x + 16 * c], sums[r][c]);
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (row + 4 * y + r < product.m && column + x + 16 * c < product.n)
                product.put(row + 4 * y + r, column + x + 16 * c, sums[r][c]);
}

/* A block a tile; blockIdx.y is the row of tiles, z the number of the product. */
static inline dim3 product_grid(int64_t m, int64_t n, int64_t batch)
{
    return dim3(blocks_for(n, PRODUCT_TILE), blocks_for(m, PRODUCT_TILE), (unsigned)batch);
}

static inline bool product_fits(int64_t m, int64_t n, int64_t k, int64_t batch)
{
    return m >= 0 && n >= 0 && k >= 0 && batch >= 0 && batch <= 65535 &&
           m <= (int64_t)65535 * PRODUCT_TILE && n <= (int64_t)INT32_MAX;
}

#endif
