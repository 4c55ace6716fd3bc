/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_KERNELS_ATTENTION_TENSOR_CUH
#define CUDA_KERNELS_ATTENTION_TENSOR_CUH

/*
 * What attention on tensor cores shares, forward (attention_tensor.cu) and backward
 * (attention_tensor_grad.cu). A block has four warps; each owns 16·M rows of the block's side and
 * walks over tiles of the other side.
 */
#include "cuda/kernels/tensor_core.cuh"

#define BLOCK_WARPS   4
#define BLOCK_THREADS (BLOCK_WARPS * WARP)
#define LOG2_E        1.44269504f

/* Is there a kernel on tensor cores for these operands? attention.cu has one for all others. */
bool attention_tensor_fits(const struct fleet_cuda_attention *a, bool backward);
cudaError_t attention_tensor(cudaStream_t stream, const struct fleet_cuda_attention *a);
cudaError_t attention_tensor_grad(cudaStream_t stream, const struct fleet_cuda_attention *a);

/* One head of one sample in device memory: a row of `columns` elements a context position. */
struct head_rows {
    const unsigned short *first;
    int64_t row; /* elements from one position to the next */
};

/* Head `column` of the packed tensor: q (0 …), k (heads …), v (heads + kv_heads …). */
__device__ static __forceinline__ struct head_rows
head_of_packed(const struct fleet_cuda_attention &a, const void *packed, int64_t batch,
               int64_t column)
{
    struct head_rows r;

    r.row = (a.heads + 2 * a.kv_heads) * a.head_dim;
    r.first = static_cast<const unsigned short *>(packed) + batch * a.context * r.row +
              column * a.head_dim;
    return r;
}

/* Head `head` of out or of its gradient. */
__device__ static __forceinline__ struct head_rows
head_of_out(const struct fleet_cuda_attention &a, const void *out, int64_t batch, int64_t head)
{
    struct head_rows r;

    r.row = a.heads * a.head_dim;
    r.first =
        static_cast<const unsigned short *>(out) + batch * a.context * r.row + head * a.head_dim;
    return r;
}

/* Starts copies of positions first … +ROWS-1 into a tile; zeros beyond the context and the head. */
template <int D, int ROWS>
__device__ static __forceinline__ void start_rows(unsigned short *tile,
                                                  const struct head_rows &from, int first,
                                                  const struct fleet_cuda_attention &a)
{
    constexpr int PIECES = D / 8, STEP = BLOCK_THREADS / PIECES;
    int row = (int)threadIdx.x / PIECES, piece = (int)threadIdx.x % PIECES;
    int left = piece * 8 < (int)a.head_dim ? (int)a.context - first - row : 0;
    const unsigned short *at = from.first + (first + row) * from.row + piece * 8;

#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++, at += STEP * from.row)
        CUDA_COPY_16(tile + piece_at<D>(row + i * STEP, piece), at, i * STEP < left);
}

/* Writes the warp's sums, times `factor` of their row, to positions first … of `to`, by way of
 * `tile`, whose rows row … +16·M-1 only this warp uses. */
template <bool BF16, int D, int M>
__device__ static __forceinline__ void put_rows(const struct fleet_cuda_attention &a,
                                                const float sums[M][D / 8][4],
                                                const float factor[M][2], unsigned short *tile,
                                                int row, const struct head_rows &to, int first)
{
    constexpr int PIECES = D / 8;
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;

    __syncwarp(); /* the tile has been read */
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<unsigned *>(tile + piece_at<D>(row + 16 * m + 8 * half + g, n) +
                                              2 * t) =
                    pack_two<BF16>(sums[m][n][2 * half] * factor[m][half],
                                   sums[m][n][2 * half + 1] * factor[m][half]);
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * M * PIECES; i += WARP) {
        int r = i / PIECES, piece = i % PIECES;
        if (first + r < (int)a.context && piece * 8 < (int)a.head_dim)
            *reinterpret_cast<uint4 *>(const_cast<unsigned short *>(to.first) +
                                       (first + r) * to.row + piece * 8) =
                *reinterpret_cast<const uint4 *>(tile + piece_at<D>(row + r, piece));
    }
}

/* The same with one factor for all rows. */
template <bool BF16, int D, int M>
__device__ static __forceinline__ void
put_scaled(const struct fleet_cuda_attention &a, const float sums[M][D / 8][4], float factor,
           unsigned short *tile, int row, const struct head_rows &to, int first)
{
    float factors[M][2];

#pragma unroll
    for (int m = 0; m < M; m++)
        factors[m][0] = factors[m][1] = factor;
    put_rows<BF16, D, M>(a, sums, factors, tile, row, to, first);
}

/* Rounded sums of 16 columns as the operand a of the next product. */
template <bool BF16>
__device__ static __forceinline__ void pack_a(unsigned a[4], const float left[4],
                                              const float right[4])
{
    a[0] = pack_two<BF16>(left[0], left[1]);
    a[1] = pack_two<BF16>(left[2], left[3]);
    a[2] = pack_two<BF16>(right[0], right[1]);
    a[3] = pack_two<BF16>(right[2], right[3]);
}

/* Launches `kernel` over blocks of `rows` positions; heavy blocks of all heads come first. */
static inline cudaError_t launch_tensor(cudaStream_t stream, const struct fleet_cuda_attention *a,
                                        int64_t heads, int rows, size_t bytes,
                                        void (*kernel)(struct fleet_cuda_attention))
{
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(kernel, dim3((unsigned)(heads * a->batch), blocks_for(a->context, rows)),
                       dim3(BLOCK_THREADS), bytes, stream, *a);
}

#endif
