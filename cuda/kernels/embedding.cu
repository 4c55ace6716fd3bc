/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Rows of a table by token plus rows by position. Backward, the tokens are put into the order of
 * their rows by a counting sort; then each row of the table is summed by one thread a column, in
 * the order of the tokens.
 *
 * Floor: forward 2 rows read and one written a token; backward d_out read once, the table's
 * gradient written once, and 24 bytes of sorting a token.
 * Grid: forward a warp a token. Backward: counts and places a thread a token; ranks a thread a
 * token, which looks at all tokens of its row; sums a block a row of the table.
 * Determinism: atomic functions count integers only, and place the tokens of a row in any order;
 * the rank of a token among them is its place in the batch, so every sum has the order of the CPU
 * back end, and its bits.
 */
#include "cuda/kernels/device.cuh"

#define THREADS 128
#define TOKENS  (THREADS / WARP)
#define SCAN    1024

/* ---- forward --------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) embedding_kernel(const struct fleet_cuda_embedding e)
{
    int64_t i = (int64_t)blockIdx.x * TOKENS + threadIdx.x / WARP, row;
    bool is_here;

    if (i >= e.batch * e.context)
        return;
    row = e.ids[i] - e.first_word;
    is_here = row >= 0 && row < e.rows;
    row = is_here ? row : 0;
    for (int64_t j = threadIdx.x % WARP; j < e.columns; j += WARP) {
        float x = e.divided && !is_here ? 0.0f : load(e.table, e.table_type, row * e.columns + j);
        if (e.position)
            x += load(e.position, e.table_type, i % e.context * e.columns + j);
        store(e.out, e.out_type, i * e.columns + j, x);
    }
}

__global__ void __launch_bounds__(SCAN) embedding_check_kernel(const struct fleet_cuda_embedding e)
{
    CUDA_SHARED(unsigned long long, least, [1]);
    unsigned long long fault = ~0ull;

    if (threadIdx.x == 0)
        least[0] = ~0ull;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < e.batch * e.context && fault == ~0ull; i += SCAN)
        if (e.ids[i] < 0 || (!e.divided && e.ids[i] >= e.rows))
            fault = (unsigned long long)i + 1;
    if (fault != ~0ull)
        atomicMin(&least[0], fault);
    __syncthreads();
    if (threadIdx.x == 0 && least[0] != ~0ull && (*e.fault == 0 || least[0] < *e.fault))
        *e.fault = least[0];
}

cudaError_t fleet_cuda_embedding(cudaStream_t stream, const struct fleet_cuda_embedding *e)
{
    int64_t tokens = e->batch * e->context;
    cudaError_t status = cudaSuccess;

    if (e->batch < 0 || e->context < 0 || e->columns < 0 || e->rows < 1 ||
        !is_float(e->table_type) || !is_float(e->out_type))
        return cudaErrorInvalidValue;
    if (tokens == 0 || e->columns == 0)
        return cudaSuccess;
    if (e->fault)
        status = CUDA_LAUNCH(embedding_check_kernel, dim3(1), dim3(SCAN), 0, stream, *e);
    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(embedding_kernel, dim3(blocks_for(tokens, TOKENS)), dim3(THREADS), 0, stream,
                       *e);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Where things lie in scratch. */
struct sorting {
    int *start;   /* [rows + 1]: first place of a row's tokens; counts before the scan */
    int *cursor;  /* [rows] */
    int *placed;  /* [tokens]: tokens by row, in any order within it */
    int *ordered; /* [tokens]: in order */
};

static struct sorting sorting_of(const struct fleet_cuda_embedding_grad *e)
{
    struct sorting s;

    s.start = e->scratch;
    s.cursor = s.start + e->rows + 1;
    s.placed = s.cursor + e->rows;
    s.ordered = s.placed + e->batch * e->context;
    return s;
}

/* A bad id, and another rank's, counts for no row. */
__device__ static __forceinline__ int row_of(const struct fleet_cuda_embedding_grad &e, int64_t i)
{
    int64_t row = e.ids[i] - e.first_word;

    return row >= 0 && row < e.rows ? (int)row : -1;
}

__global__ void __launch_bounds__(THREADS) embedding_zero_kernel(int *to, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < count)
        to[i] = 0;
}

__global__ void __launch_bounds__(THREADS)
    embedding_count_kernel(const struct fleet_cuda_embedding_grad e, const struct sorting s)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < e.batch * e.context && row_of(e, i) >= 0)
        atomicAdd(&s.start[row_of(e, i)], 1);
}

/* Counts become first places. Each thread has a run of rows; thread 0 adds up the runs. */
__global__ void __launch_bounds__(SCAN) embedding_scan_kernel(const struct sorting s, int64_t rows)
{
    CUDA_SHARED(int, runs, [SCAN]);
    int64_t size = (rows + SCAN - 1) / SCAN, from = threadIdx.x * size;
    int64_t to = from + size < rows ? from + size : rows;
    int sum = 0;

    for (int64_t i = from; i < to; i++)
        sum += s.start[i];
    runs[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        int before = 0;
        for (int t = 0; t < SCAN; t++) {
            int own = runs[t];
            runs[t] = before;
            before += own;
        }
        s.start[rows] = before;
    }
    __syncthreads();
    sum = runs[threadIdx.x];
    for (int64_t i = from; i < to; i++) {
        int own = s.start[i];
        s.start[i] = sum;
        sum += own;
    }
}

__global__ void __launch_bounds__(THREADS)
    embedding_place_kernel(const struct fleet_cuda_embedding_grad e, const struct sorting s)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < e.batch * e.context && row_of(e, i) >= 0) {
        int row = row_of(e, i);
        s.placed[s.start[row] + atomicAdd(&s.cursor[row], 1)] = (int)i;
    }
}

__global__ void __launch_bounds__(THREADS)
    embedding_rank_kernel(const struct fleet_cuda_embedding_grad e, const struct sorting s)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int row, rank = 0;

    if (i >= e.batch * e.context || row_of(e, i) < 0)
        return;
    row = row_of(e, i);
    for (int at = s.start[row]; at < s.start[row + 1]; at++)
        rank += s.placed[at] < i;
    s.ordered[s.start[row] + rank] = (int)i;
}

__global__ void __launch_bounds__(THREADS)
    embedding_sum_kernel(const struct fleet_cuda_embedding_grad e, const struct sorting s)
{
    int64_t row = blockIdx.x;

    for (int64_t j = threadIdx.x; j < e.columns; j += THREADS) {
        float sum = 0;
        for (int at = s.start[row]; at < s.start[row + 1]; at++)
            sum += load(e.d_out, e.d_type, s.ordered[at] * e.columns + j);
        e.d_table[row * e.columns + j] = sum;
    }
}

/* A block a position: the sum over the batch, in order. */
__global__ void __launch_bounds__(THREADS)
    embedding_position_kernel(const struct fleet_cuda_embedding_grad e)
{
    int64_t t = blockIdx.x;

    for (int64_t j = threadIdx.x; j < e.columns; j += THREADS) {
        float sum = 0;
        for (int64_t b = 0; b < e.batch && t < e.context; b++)
            sum += load(e.d_out, e.d_type, (b * e.context + t) * e.columns + j);
        e.d_position[t * e.columns + j] = sum;
    }
}

static cudaError_t embedding_table(cudaStream_t stream, const struct fleet_cuda_embedding_grad *e)
{
    struct sorting s = sorting_of(e);
    int64_t tokens = e->batch * e->context, zeros = 2 * e->rows + 1;
    dim3 each(blocks_for(tokens, THREADS)), threads(THREADS);
    cudaError_t status;

    status = CUDA_LAUNCH(embedding_zero_kernel, dim3(blocks_for(zeros, THREADS)), threads, 0,
                         stream, s.start, zeros);
    if (status == cudaSuccess && tokens > 0)
        status = CUDA_LAUNCH(embedding_count_kernel, each, threads, 0, stream, *e, s);
    if (status == cudaSuccess)
        status = CUDA_LAUNCH(embedding_scan_kernel, dim3(1), dim3(SCAN), 0, stream, s, e->rows);
    if (status == cudaSuccess && tokens > 0)
        status = CUDA_LAUNCH(embedding_place_kernel, each, threads, 0, stream, *e, s);
    if (status == cudaSuccess && tokens > 0)
        status = CUDA_LAUNCH(embedding_rank_kernel, each, threads, 0, stream, *e, s);
    if (status == cudaSuccess)
        status =
            CUDA_LAUNCH(embedding_sum_kernel, dim3((unsigned)e->rows), threads, 0, stream, *e, s);
    return status;
}

cudaError_t fleet_cuda_embedding_grad(cudaStream_t stream,
                                      const struct fleet_cuda_embedding_grad *e)
{
    cudaError_t status = cudaSuccess;

    if (e->batch < 0 || e->context < 0 || e->columns < 0 || !is_float(e->d_type) ||
        e->batch * e->context > INT32_MAX ||
        (e->d_table && (e->rows < 1 || e->rows > INT32_MAX || !e->scratch)) ||
        (e->d_position && e->positions < 1))
        return cudaErrorInvalidValue;
    if (e->columns == 0)
        return cudaSuccess;
    if (e->d_table)
        status = embedding_table(stream, e);
    if (status == cudaSuccess && e->d_position)
        status = CUDA_LAUNCH(embedding_position_kernel, dim3((unsigned)e->positions), dim3(THREADS),
                             0, stream, *e);
    return status;
}
