/* SPDX-License-Identifier: Apache-2.0 */

/*
 * layer_norm and rms_norm over the last dimension, with an optional residual that is added first.
 * With x̂ = (x - mean)·rstd (mean 0 for rms_norm), y = x̂·scale + shift; backward, with
 * g = d_y·scale,
 *   d_x = rstd·(g - mean(g) - x̂·mean(g·x̂)), without the first mean for rms_norm;
 *   d_scale = Σ d_y·x̂, d_shift = Σ d_y over rows.
 *
 * Floor: forward reads x (and residual) and writes y (and sum); backward reads d_y and x twice, for
 * the rows and for the columns, and writes d_x. The second and third look at a row hit the L1.
 * Grid: rows are a warp each, four a block, four elements a lane where columns is a multiple of 4.
 * Columns are a thread each, 128 a block, for each run of 64 rows.
 * Determinism: a row's sum is 32 lanes (of four elements at a time) and one tree; a column's is
 * blocks of 64 rows in order, then the blocks in order: those of the CPU back end, so d_scale and
 * d_shift have its bits where mean and rstd have.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 128
#define ROWS    (THREADS / WARP) /* of a block */
#define CHUNK   64               /* rows of a partial sum over columns */

template <int WIDTH>
__device__ static __forceinline__ struct some<WIDTH> norm_input(const struct fleet_cuda_norm &n,
                                                                int64_t at) {
    return n.residual ? load_some<WIDTH>(n.sum, n.sum_type, at)
                      : load_some<WIDTH>(n.x, n.x_type, at);
}

/* sum = x + residual: the warp reads it back below, each lane what it wrote itself. */
template <int WIDTH>
__device__ static __forceinline__ void norm_residual(const struct fleet_cuda_norm &n, int64_t at)
{
    for (int64_t j = threadIdx.x % WARP * WIDTH; j < n.columns; j += WARP * WIDTH) {
        struct some<WIDTH> x = load_some<WIDTH>(n.x, n.x_type, at + j);
        struct some<WIDTH> r = load_some<WIDTH>(n.residual, n.residual_type, at + j);
#pragma unroll
        for (int l = 0; l < WIDTH; l++)
            x.at[l] += r.at[l];
        store_some<WIDTH>(n.sum, n.sum_type, at + j, x);
    }
}

template <int WIDTH>
__global__ void __launch_bounds__(THREADS) norm_kernel(const struct fleet_cuda_norm n)
{
    int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, at = row * n.columns;
    int64_t first = threadIdx.x % WARP * WIDTH;
    float mean = 0, squares = 0, rstd;

    if (row >= n.rows) /* a whole warp */
        return;
    if (n.residual)
        norm_residual<WIDTH>(n, at);
    for (int64_t j = first; n.mean && j < n.columns; j += WARP * WIDTH) {
        struct some<WIDTH> x = norm_input<WIDTH>(n, at + j);
#pragma unroll
        for (int l = 0; l < WIDTH; l++)
            mean += x.at[l];
    }
    mean = warp_sum(mean) / (float)n.columns;
    for (int64_t j = first; j < n.columns; j += WARP * WIDTH) {
        struct some<WIDTH> x = norm_input<WIDTH>(n, at + j);
#pragma unroll
        for (int l = 0; l < WIDTH; l++)
            squares = fmaf(x.at[l] - mean, x.at[l] - mean, squares);
    }
    rstd = 1.0f / sqrtf(warp_sum(squares) / (float)n.columns + n.epsilon);
    if (threadIdx.x % WARP == 0) {
        n.rstd[row] = rstd;
        if (n.mean)
            n.mean[row] = mean;
    }
    for (int64_t j = first; j < n.columns; j += WARP * WIDTH) {
        struct some<WIDTH> x = norm_input<WIDTH>(n, at + j);
#pragma unroll
        for (int l = 0; l < WIDTH; l++) {
            x.at[l] = (x.at[l] - mean) * rstd * n.scale[j + l];
            if (n.shift)
                x.at[l] += n.shift[j + l];
        }
        store_some<WIDTH>(n.y, n.y_type, at + j, x);
    }
}

cudaError_t fleet_cuda_norm(cudaStream_t stream, const struct fleet_cuda_norm *n)
{
    auto *kernel = n->columns % 4 == 0 ? norm_kernel<4> : norm_kernel<1>;

    if (n->rows < 0 || n->columns < 0 || !is_float(n->x_type) || !is_float(n->y_type) ||
        (n->residual && (!is_float(n->residual_type) || !is_float(n->sum_type) || !n->sum)))
        return cudaErrorInvalidValue;
    if (n->rows == 0 || n->columns == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(kernel, dim3(blocks_for(n->rows, ROWS)), dim3(THREADS), 0, stream, *n);
}

/* ---- backward -------------------------------------------------------------------------------- */

template <int WIDTH>
__global__ void __launch_bounds__(THREADS) norm_grad_kernel(const struct fleet_cuda_norm_grad n)
{
    int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, at = row * n.columns;
    int64_t first = threadIdx.x % WARP * WIDTH;
    float mean, rstd, sum = 0, dot = 0;

    if (row >= n.rows)
        return;
    mean = n.mean ? n.mean[row] : 0.0f;
    rstd = n.rstd[row];
    for (int64_t j = first; j < n.columns; j += WARP * WIDTH) {
        struct some<WIDTH> x = load_some<WIDTH>(n.x, n.x_type, at + j);
        struct some<WIDTH> d = load_some<WIDTH>(n.d_y, n.d_type, at + j);
#pragma unroll
        for (int l = 0; l < WIDTH; l++) {
            float g = d.at[l] * n.scale[j + l];
            sum += g;
            dot = fmaf(g, (x.at[l] - mean) * rstd, dot);
        }
    }
    sum = n.mean ? warp_sum(sum) / (float)n.columns : 0.0f;
    dot = warp_sum(dot) / (float)n.columns;
    for (int64_t j = first; j < n.columns; j += WARP * WIDTH) {
        struct some<WIDTH> x = load_some<WIDTH>(n.x, n.x_type, at + j);
        struct some<WIDTH> d = load_some<WIDTH>(n.d_y, n.d_type, at + j);
#pragma unroll
        for (int l = 0; l < WIDTH; l++) {
            float g = d.at[l] * n.scale[j + l];
            d.at[l] = (g - sum - (x.at[l] - mean) * rstd * dot) * rstd;
        }
        store_some<WIDTH>(n.d_x, n.out_type, at + j, d);
    }
}

/* Sums of one column over CHUNK rows, to scratch[0 … 1][chunk][column]. */
__global__ void __launch_bounds__(THREADS)
    norm_chunk_kernel(const struct fleet_cuda_norm_grad n, int64_t chunks)
{
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x, chunk = blockIdx.y;
    int64_t last = (chunk + 1) * CHUNK < n.rows ? (chunk + 1) * CHUNK : n.rows;
    float scale = 0, shift = 0;

    if (column >= n.columns)
        return;
    for (int64_t row = chunk * CHUNK; row < last; row++) {
        float mean = n.mean ? n.mean[row] : 0.0f;
        float d = load(n.d_y, n.d_type, row * n.columns + column);
        float x = (load(n.x, n.x_type, row * n.columns + column) - mean) * n.rstd[row];
        scale = fmaf(d, x, scale);
        shift = d + shift;
    }
    n.scratch[chunk * n.columns + column] = scale;
    n.scratch[(chunks + chunk) * n.columns + column] = shift;
}

__global__ void __launch_bounds__(THREADS)
    norm_columns_kernel(const struct fleet_cuda_norm_grad n, int64_t chunks)
{
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float scale = 0, shift = 0;

    if (column >= n.columns)
        return;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        scale += n.scratch[chunk * n.columns + column];
        shift += n.scratch[(chunks + chunk) * n.columns + column];
    }
    if (n.d_scale)
        n.d_scale[column] = scale;
    if (n.d_shift)
        n.d_shift[column] = shift;
}

size_t fleet_cuda_norm_grad_scratch(int64_t rows, int64_t columns)
{
    return (size_t)((rows + CHUNK - 1) / CHUNK * 2 * columns) * sizeof(float);
}

/* Columns first: d_x may lie over d_y. */
static cudaError_t norm_columns(cudaStream_t stream, const struct fleet_cuda_norm_grad *n)
{
    int64_t chunks = (n->rows + CHUNK - 1) / CHUNK;
    unsigned blocks = blocks_for(n->columns, THREADS);
    cudaError_t status = cudaSuccess;

    if (chunks > 65535)
        return cudaErrorInvalidValue;
    if (chunks > 0)
        status = CUDA_LAUNCH(norm_chunk_kernel, dim3(blocks, (unsigned)chunks), dim3(THREADS), 0,
                             stream, *n, chunks);
    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(norm_columns_kernel, dim3(blocks), dim3(THREADS), 0, stream, *n, chunks);
}

cudaError_t fleet_cuda_norm_grad(cudaStream_t stream, const struct fleet_cuda_norm_grad *n)
{
    auto *kernel = n->columns % 4 == 0 ? norm_grad_kernel<4> : norm_grad_kernel<1>;
    cudaError_t status = cudaSuccess;

    if (n->rows < 0 || n->columns < 0 || !is_float(n->x_type) || !is_float(n->d_type) ||
        (n->d_x && !is_float(n->out_type)))
        return cudaErrorInvalidValue;
    if (n->columns == 0)
        return cudaSuccess;
    if (n->d_scale || n->d_shift)
        status = norm_columns(stream, n);
    if (status != cudaSuccess || !n->d_x || n->rows == 0)
        return status;
    return CUDA_LAUNCH(kernel, dim3(blocks_for(n->rows, ROWS)), dim3(THREADS), 0, stream, *n);
}
