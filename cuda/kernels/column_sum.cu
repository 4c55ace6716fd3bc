/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sums over the rows of a matrix, one a column.
 *
 * Floor: x read once, and a 64th of it in fp32 written and read.
 * Grid: a thread eight columns (or one, where columns is no multiple of 8), 128 a block, for each
 * run of 64 rows; then a lane a column, whose runs eight warps load.
 * Determinism: runs of 64 rows in order, then their sums in order: the bits of the CPU back end.
 */
#include "cuda/kernels/eight.cuh"

#define THREADS 128
#define CHUNK   GPU_SCRATCH_COLUMN_ROWS /* of a run, and runs that a block adds at once */
#define FLIGHT  4 /* loads that a thread starts before it waits for the first one */
#define ADDERS  8 /* warps of the second kernel's block */

__global__ void __launch_bounds__(THREADS) column_chunk_kernel(const struct fleet_cuda_column_sum s)
{
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x, chunk = blockIdx.y;
    int64_t last = (chunk + 1) * CHUNK < s.rows ? (chunk + 1) * CHUNK : s.rows;
    float sum = 0;

    if (column >= s.columns)
        return;
    for (int64_t row = chunk * CHUNK; row < last; row++)
        sum += load(s.x, s.x_type, row * s.columns + column);
    s.scratch[chunk * s.columns + column] = sum;
}

/* The same sums, eight columns a thread; columns is a multiple of 8. */
__global__ void __launch_bounds__(THREADS)
    column_eights_kernel(const struct fleet_cuda_column_sum s, int64_t threads)
{
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t eights = s.columns / EIGHT, chunk = thread / eights;
    int64_t column = thread % eights * EIGHT, row = chunk * CHUNK;
    int count = (int)(s.rows - row < CHUNK ? s.rows - row : CHUNK);
    struct eight sum = {};

    if (thread >= threads)
        return;
    for (int done = 0; done < count; done += FLIGHT) {
        struct raw_eight raw[FLIGHT] = {};
#pragma unroll
        for (int f = 0; f < FLIGHT; f++)
            if (done + f < count)
                raw[f] = load_eight(s.x, s.x_type, (row + done + f) * s.columns + column);
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            struct eight x = widen_eight(raw[f], s.x_type);
            if (done + f < count)
#pragma unroll
                for (int l = 0; l < EIGHT; l++)
                    sum.at[l] += x.at[l];
        }
    }
    store_eight(s.scratch, PROGRAM_FP32, chunk * s.columns + column, sum);
}

/* A block is 32 columns: its warps load the sums of 64 runs at once, the first one adds them. */
__global__ void __launch_bounds__(ADDERS *WARP)
    column_total_kernel(const struct fleet_cuda_column_sum s, int64_t chunks)
{
    CUDA_SHARED(float, part, [CHUNK][WARP]);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0;

    for (int64_t first = 0; first < chunks; first += CHUNK) {
        int count = (int)(chunks - first < CHUNK ? chunks - first : CHUNK);
#pragma unroll
        for (int i = 0; i < CHUNK / ADDERS; i++) {
            int at = i * ADDERS + warp;
            if (at < count && column < s.columns)
                part[at][lane] = s.scratch[(first + at) * s.columns + column];
        }
        __syncthreads();
        for (int at = 0; warp == 0 && column < s.columns && at < count; at++)
            sum += part[at][lane];
        __syncthreads();
    }
    if (warp == 0 && column < s.columns)
        store(s.out, s.out_type, column, sum);
}

cudaError_t fleet_cuda_column_sum(cudaStream_t stream, const struct fleet_cuda_column_sum *s)
{
    int64_t chunks = (s->rows + CHUNK - 1) / CHUNK;
    unsigned blocks = blocks_for(s->columns, THREADS);
    cudaError_t status = cudaSuccess;

    if (s->rows < 0 || s->columns < 0 || chunks > 65535 || !is_float(s->x_type) ||
        !is_float(s->out_type))
        return cudaErrorInvalidValue;
    if (s->columns == 0)
        return cudaSuccess;
    if (chunks > 0 && s->columns % EIGHT == 0)
        status = CUDA_LAUNCH(column_eights_kernel,
                             dim3(blocks_for(s->columns / EIGHT * chunks, THREADS)), dim3(THREADS),
                             0, stream, *s, s->columns / EIGHT * chunks);
    else if (chunks > 0)
        status = CUDA_LAUNCH(column_chunk_kernel, dim3(blocks, (unsigned)chunks), dim3(THREADS), 0,
                             stream, *s);
    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(column_total_kernel, dim3(blocks_for(s->columns, WARP)), dim3(ADDERS * WARP),
                       0, stream, *s, chunks);
}
