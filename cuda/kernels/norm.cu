/* SPDX-License-Identifier: Apache-2.0 */

/*
 * layer_norm and rms_norm over the last dimension, with an optional residual that is added first.
 * With x̂ = (x - mean)·rstd (mean 0 for rms_norm), y = x̂·scale + shift; backward, with
 * g = d_y·scale,
 *   d_x = rstd·(g - mean(g) - x̂·mean(g·x̂)), without the first mean for rms_norm;
 *   d_scale = Σ d_y·x̂, d_shift = Σ d_y over rows.
 *
 * Floor: forward reads x (and residual) and writes y (and sum); the second and third look at a row
 * hit the L1. Backward reads d_y and x once and writes d_x, and for each run of 32 rows a sum of
 * each column in fp32.
 * Grid: forward, rows are a warp each, four a block, four elements a lane where columns is a
 * multiple of 4. Backward, a block has 32 rows, four at a time in its registers, eight columns a
 * thread. Where columns is no multiple of 8, or above 3072, rows and columns are kernels of their
 * own, and d_y and x are read twice. At last a column is a lane, for each of 8 warps.
 * Determinism: forward, a row's sum is 32 lanes (of four elements at a time) and one tree; backward,
 * a tree in each warp, then the warps in order. A column's sum is 32 rows in order, every eighth run
 * of rows in order, then these eight.
 */
#include "cuda/kernels/eight.cuh"

#define THREADS  128
#define ROWS     (THREADS / WARP)      /* of a block */
#define CHUNK    GPU_SCRATCH_NORM_ROWS /* rows of a partial sum over columns */
#define TOGETHER 4                     /* rows that a block of whole_kernel has in its registers */
#define WIDEST   384                   /* its greatest number of threads */
#define SUMMERS  8                     /* warps of a block that adds partial sums */

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

/* A lane is a column. Warp w adds chunks w, w + 8, …; then their sums are added in order. */
__global__ void __launch_bounds__(SUMMERS *WARP)
    norm_columns_kernel(const struct fleet_cuda_norm_grad n, int64_t chunks)
{
    CUDA_SHARED(float, partial, [2][SUMMERS][WARP]);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + lane;
    float scale = 0, shift = 0;

    if (column < n.columns) {
#pragma unroll 8
        for (int64_t chunk = warp; chunk < chunks; chunk += SUMMERS) {
            scale += n.scratch[chunk * n.columns + column];
            shift += n.scratch[(chunks + chunk) * n.columns + column];
        }
    }
    partial[0][warp][lane] = scale;
    partial[1][warp][lane] = shift;
    __syncthreads();
    if (warp != 0 || column >= n.columns)
        return;
    for (int w = 1; w < SUMMERS; w++) {
        scale += partial[0][w][lane];
        shift += partial[1][w][lane];
    }
    if (n.d_scale)
        n.d_scale[column] = scale;
    if (n.d_shift)
        n.d_shift[column] = shift;
}

/* ---- backward, all in one pass: eight columns a thread, CHUNK rows a block ------------------- */

/* Of TOGETHER rows: sums over the row of g and of g·x̂, by all threads of the block. `partial` is
 * written again after the next call's barrier, so two of them take turns. */
__device__ static __forceinline__ void row_sums(float sum[TOGETHER], float dot[TOGETHER],
                                                float (*partial)[2 * TOGETHER])
{
    int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;

#pragma unroll
    for (int r = 0; r < TOGETHER; r++) {
        sum[r] = warp_sum(sum[r]);
        dot[r] = warp_sum(dot[r]);
    }
    if (lane == 0) {
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            partial[threadIdx.x / WARP][r] = sum[r];
            partial[threadIdx.x / WARP][TOGETHER + r] = dot[r];
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < TOGETHER; r++)
        sum[r] = dot[r] = 0;
    for (int w = 0; w < warps; w++) {
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            sum[r] += partial[w][r];
            dot[r] += partial[w][TOGETHER + r];
        }
    }
}

/* columns is a multiple of 8. Threads beyond the columns have zeros. */
__global__ void __launch_bounds__(WIDEST)
    whole_kernel(const struct fleet_cuda_norm_grad n, int64_t chunks)
{
    CUDA_SHARED(float, partial, [2][WIDEST / WARP][2 * TOGETHER]);
    int64_t column = (int64_t)threadIdx.x * EIGHT, first = (int64_t)blockIdx.x * CHUNK;
    int rows = (int)(n.rows - first < CHUNK ? n.rows - first : CHUNK);
    bool mine = column < n.columns;
    struct eight scale = {}, d_scale = {}, d_shift = {};

#pragma unroll
    for (int l = 0; l < EIGHT; l++)
        scale.at[l] = mine ? n.scale[column + l] : 0.0f;
    for (int done = 0; done < rows; done += TOGETHER) {
        struct raw_eight x_raw[TOGETHER] = {}, d_raw[TOGETHER] = {};
        float mean[TOGETHER] = {}, rstd[TOGETHER] = {}, sum[TOGETHER], dot[TOGETHER];
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            int64_t row = first + done + r;
            if (!mine || done + r >= rows)
                continue;
            x_raw[r] = load_eight(n.x, n.x_type, row * n.columns + column);
            d_raw[r] = load_eight(n.d_y, n.d_type, row * n.columns + column);
            mean[r] = n.mean ? n.mean[row] : 0.0f;
            rstd[r] = n.rstd[row];
        }
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            struct eight x = widen_eight(x_raw[r], n.x_type), d = widen_eight(d_raw[r], n.d_type);
            sum[r] = dot[r] = 0;
#pragma unroll
            for (int l = 0; l < EIGHT; l++) {
                float g = d.at[l] * scale.at[l], to = (x.at[l] - mean[r]) * rstd[r];
                sum[r] += g;
                dot[r] = fmaf(g, to, dot[r]);
                d_scale.at[l] = fmaf(d.at[l], to, d_scale.at[l]);
                d_shift.at[l] += d.at[l];
            }
        }
        row_sums(sum, dot, partial[done / TOGETHER % 2]);
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            struct eight x = widen_eight(x_raw[r], n.x_type), d = widen_eight(d_raw[r], n.d_type);
            float mean_g = n.mean ? sum[r] / (float)n.columns : 0.0f;
            float mean_dot = dot[r] / (float)n.columns;
#pragma unroll
            for (int l = 0; l < EIGHT; l++) {
                float g = d.at[l] * scale.at[l], to = (x.at[l] - mean[r]) * rstd[r];
                d.at[l] = (g - mean_g - to * mean_dot) * rstd[r];
            }
            if (n.d_x && mine && done + r < rows)
                store_eight(n.d_x, n.out_type, (first + done + r) * n.columns + column, d);
        }
    }
    if (!mine || (!n.d_scale && !n.d_shift))
        return;
#pragma unroll
    for (int l = 0; l < EIGHT; l++) {
        n.scratch[blockIdx.x * n.columns + column + l] = d_scale.at[l];
        n.scratch[(chunks + blockIdx.x) * n.columns + column + l] = d_shift.at[l];
    }
}

static cudaError_t norm_total(cudaStream_t stream, const struct fleet_cuda_norm_grad *n)
{
    if (!n->d_scale && !n->d_shift)
        return cudaSuccess;
    return CUDA_LAUNCH(norm_columns_kernel, dim3(blocks_for(n->columns, WARP)),
                       dim3(SUMMERS * WARP), 0, stream, *n, (n->rows + CHUNK - 1) / CHUNK);
}

/* Columns first: d_x may lie over d_y. */
static cudaError_t norm_apart(cudaStream_t stream, const struct fleet_cuda_norm_grad *n)
{
    auto *kernel = n->columns % 4 == 0 ? norm_grad_kernel<4> : norm_grad_kernel<1>;
    int64_t chunks = (n->rows + CHUNK - 1) / CHUNK;
    unsigned blocks = blocks_for(n->columns, THREADS);
    cudaError_t status = cudaSuccess;

    if (chunks > 65535)
        return cudaErrorInvalidValue;
    if (n->d_scale || n->d_shift)
        status = CUDA_LAUNCH(norm_chunk_kernel, dim3(blocks, (unsigned)chunks), dim3(THREADS), 0,
                             stream, *n, chunks);
    if (status != cudaSuccess || !n->d_x)
        return status;
    return CUDA_LAUNCH(kernel, dim3(blocks_for(n->rows, ROWS)), dim3(THREADS), 0, stream, *n);
}

cudaError_t fleet_cuda_norm_grad(cudaStream_t stream, const struct fleet_cuda_norm_grad *n)
{
    int64_t chunks = (n->rows + CHUNK - 1) / CHUNK;
    bool whole = n->columns % EIGHT == 0 && n->columns <= (int64_t)EIGHT * WIDEST;
    cudaError_t status = cudaSuccess;

    if (n->rows < 0 || n->columns < 0 || !is_float(n->x_type) || !is_float(n->d_type) ||
        (n->d_x && !is_float(n->out_type)))
        return cudaErrorInvalidValue;
    if (n->columns == 0)
        return cudaSuccess;
    if (n->rows > 0 && whole)
        status =
            CUDA_LAUNCH(whole_kernel, dim3((unsigned)chunks),
                        dim3(blocks_for(n->columns, EIGHT * WARP) * WARP), 0, stream, *n, chunks);
    else if (n->rows > 0)
        status = norm_apart(stream, n);
    return status == cudaSuccess ? norm_total(stream, n) : status;
}
