/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sums over the rows of a matrix, one a column.
 *
 * Floor: x read once, and a 64th of it in fp32 written and read.
 * Grid: a thread a column, 128 a block, for each run of 64 rows; then a thread a column.
 * Determinism: runs of 64 rows in order, then their sums in order: the bits of the CPU back end.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 128
#define CHUNK   64

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

__global__ void __launch_bounds__(THREADS)
    column_total_kernel(const struct fleet_cuda_column_sum s, int64_t chunks)
{
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;

    if (column >= s.columns)
        return;
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        sum += s.scratch[chunk * s.columns + column];
    store(s.out, s.out_type, column, sum);
}

size_t fleet_cuda_column_sum_scratch(int64_t rows, int64_t columns)
{
    return (size_t)((rows + CHUNK - 1) / CHUNK * columns) * sizeof(float);
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
    if (chunks > 0)
        status = CUDA_LAUNCH(column_chunk_kernel, dim3(blocks, (unsigned)chunks), dim3(THREADS), 0,
                             stream, *s);
    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(column_total_kernel, dim3(blocks), dim3(THREADS), 0, stream, *s, chunks);
}
