/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Mean of log Σ exp(logits - max) - (logits[target] - max) over the rows whose target counts; the
 * gradient is (exp(logits - max - log Σ) - [target]) · d_loss / rows, and may lie over the logits.
 *
 * Floor: rows reads the logits once, grad reads and writes them once. In chunks of rows that fit
 * the L2, a classifier's logits never reach the memory.
 * Grid: a block of 256 threads a row, eight elements a thread, four times. count and loss are one
 * block: their arrays are a number a row. join is a thread a row.
 * Determinism: a thread sums exp(x - the greatest so far) over its elements, and multiplies the sum
 * when a greater one comes; then a tree in each warp, warps in order. The elements before the first
 * multiple of 16 bytes go one by one, so where a row begins, modulo 16 bytes, is part of the order.
 * Ranks are joined in their order. The loss is summed in double, 256 strided sums and the same tree; the number of rows is an
 * integer.
 */
#include "cuda/kernels/eight.cuh"

#define THREADS 256
#define WARPS   (THREADS / WARP)
#define FLIGHT  4 /* loads that a thread starts before it waits for the first one */

__device__ static __forceinline__ bool counts(const struct fleet_cuda_cross_entropy &c, int64_t row)
{
    return c.targets[row] != c.ignore_index && c.targets[row] >= 0 &&
           (c.divided || c.targets[row] < c.columns);
}

/* The column of a row's target; -1: it is another rank's, or the row does not count. */
__device__ static __forceinline__ int64_t column_of(const struct fleet_cuda_cross_entropy &c,
                                                    int64_t row)
{
    int64_t column = c.targets[row] - c.first_word;

    return counts(c, row) && column >= 0 && column < c.columns ? column : -1;
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy_count_kernel(const struct fleet_cuda_cross_entropy c)
{
    CUDA_SHARED(unsigned long long, partial, [WARPS]);
    CUDA_SHARED(unsigned long long, least, [1]);
    unsigned long long count = 0, fault = ~0ull;

    if (threadIdx.x == 0)
        least[0] = ~0ull;
    for (int64_t row = threadIdx.x; row < c.rows; row += THREADS) {
        if (c.targets[row] == c.ignore_index)
            continue;
        count++;
        if (!counts(c, row) && fault == ~0ull)
            fault = (unsigned long long)row + 1;
    }
    count = block_sum<THREADS>(count, partial);
    if (fault != ~0ull)
        atomicMin(&least[0], fault);
    __syncthreads();
    if (threadIdx.x == 0) {
        *c.counted = (int64_t)count;
        if (least[0] != ~0ull && c.fault && (*c.fault == 0 || least[0] < *c.fault))
            *c.fault = least[0];
    }
}

/* A row's elements from `at`: up to `first` one by one, then `eights` of eight, then the rest. */
struct row_parts {
    int64_t first, eights, rest; /* rest: the element that the last part begins at */
};

__device__ static __forceinline__ struct row_parts
parts_of(const void *data, enum program_type type, int64_t at, int64_t columns)
{
    int64_t size = type == PROGRAM_FP32 ? 4 : 2;
    int64_t over = (int64_t)((reinterpret_cast<uintptr_t>(data) + (uintptr_t)(at * size)) % 16);
    struct row_parts p;

    p.first = over ? (16 - over) / size : 0;
    p.first = p.first < columns ? p.first : columns;
    p.eights = (columns - p.first) / EIGHT;
    p.rest = p.first + p.eights * EIGHT;
    return p;
}

/* What a thread knows of its elements: the greatest, Σ exp(x - most), and whether one is NaN. */
struct running {
    float most, sum;
    bool fault;
};

template <int COUNT>
__device__ static __forceinline__ void add_to(struct running *r, const float *x)
{
    float most = x[0];

#pragma unroll
    for (int l = 1; l < COUNT; l++)
        most = fmaxf(most, x[l]);
    if (most > r->most) {
        r->sum *= exp_below(r->most - most);
        r->most = most;
    }
#pragma unroll
    for (int l = 0; l < COUNT; l++) {
        r->sum += exp_below(x[l] - r->most);
        r->fault |= x[l] != x[l];
    }
}

/* The greatest logit of a row in *most, and Σ exp(logit - it) as the result, in all threads. A row
 * with NaN or +inf, or of -inf only, has a NaN. */
__device__ static __forceinline__ float row_sum(const struct fleet_cuda_cross_entropy &c,
                                                int64_t at, float *partial, float *most)
{
    struct row_parts parts = parts_of(c.logits, c.type, at, c.columns);
    struct running r = {-INFINITY, 0.0f, false};
    float x;

    for (int64_t j = threadIdx.x; j < parts.first; j += THREADS) {
        x = load(c.logits, c.type, at + j);
        add_to<1>(&r, &x);
    }
    for (int64_t v = threadIdx.x; v < parts.eights; v += FLIGHT * THREADS) {
        struct raw_eight raw[FLIGHT] = {};
#pragma unroll
        for (int f = 0; f < FLIGHT; f++)
            if (v + f * THREADS < parts.eights)
                raw[f] = load_eight(c.logits, c.type, at + parts.first + (v + f * THREADS) * EIGHT);
#pragma unroll
        for (int f = 0; f < FLIGHT; f++)
            if (v + f * THREADS < parts.eights)
                add_to<EIGHT>(&r, widen_eight(raw[f], c.type).at);
    }
    for (int64_t j = parts.rest + threadIdx.x; j < c.columns; j += THREADS) {
        x = load(c.logits, c.type, at + j);
        add_to<1>(&r, &x);
    }
    *most = block_max<THREADS>(r.fault ? NAN : r.most, partial);
    return block_sum<THREADS>(r.sum * exp_below(r.most - *most), partial) + (*most - *most);
}

__global__ void __launch_bounds__(THREADS)
    cross_entropy_rows_kernel(const struct fleet_cuda_cross_entropy c)
{
    CUDA_SHARED(float, partial, [WARPS]);
    int64_t row = blockIdx.x, at = row * c.columns;
    float most, rest = log_of(row_sum(c, at, partial, &most));

    if (threadIdx.x != 0)
        return;
    c.lse[2 * row] = most;
    c.lse[2 * row + 1] = rest;
    c.row_loss[row] =
        counts(c, row) ? rest - (load(c.logits, c.type, at + c.targets[row]) - most) : 0.0f;
}

/* ---- logits that ranks divide ---------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS)
    cross_entropy_sums_kernel(const struct fleet_cuda_cross_entropy c)
{
    CUDA_SHARED(float, partial, [WARPS]);
    int64_t row = blockIdx.x, at = row * c.columns, column = column_of(c, row);
    float most, sum = row_sum(c, at, partial, &most);

    if (threadIdx.x != 0)
        return;
    c.sums[3 * row] = most;
    c.sums[3 * row + 1] = sum;
    c.sums[3 * row + 2] = column < 0 ? 0.0f : load(c.logits, c.type, at + column);
}

/* The statistics of all ranks joined, in their order; a thread a row. */
__global__ void __launch_bounds__(THREADS)
    cross_entropy_join_kernel(const struct fleet_cuda_cross_entropy c)
{
    int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float most = -INFINITY, sum = 0, hit = 0, rest;

    if (row >= c.rows)
        return;
    for (int p = 0; p < c.parts; p++)
        most = fmaxf(most, c.all_sums[3 * (p * c.rows + row)]);
    for (int p = 0; p < c.parts; p++) {
        const float *of = &c.all_sums[3 * (p * c.rows + row)];

        sum += of[1] * exp_of(of[0] - most);
        hit += of[2];
    }
    rest = log_of(sum);
    c.lse[2 * row] = most;
    c.lse[2 * row + 1] = rest;
    c.row_loss[row] = counts(c, row) ? rest - (hit - most) : 0.0f;
}

/* ---- the loss, and the gradient -------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS)
    cross_entropy_loss_kernel(const struct fleet_cuda_cross_entropy c)
{
    CUDA_SHARED(double, partial, [WARPS]);
    double sum = 0;

    for (int64_t row = threadIdx.x; row < c.rows; row += THREADS)
        sum += (double)c.row_loss[row];
    sum = block_sum<THREADS>(sum, partial);
    if (threadIdx.x == 0)
        *c.loss = *c.counted > 0 ? (float)(sum / (double)*c.counted) : 0.0f;
}

/* most and rest may be NaN, which exp_below() would hide: then the scale is NaN. */
__global__ void __launch_bounds__(THREADS)
    cross_entropy_grad_kernel(const struct fleet_cuda_cross_entropy c)
{
    int64_t row = blockIdx.x, at = row * c.columns, target = column_of(c, row);
    struct row_parts parts = parts_of(c.logits, c.type, at, c.columns);
    float most = c.lse[2 * row], rest = c.lse[2 * row + 1], scale = 0;

    if (counts(c, row))
        scale = (c.d_loss ? *c.d_loss : 1.0f) / (float)*c.counted;
    scale += (most - most) + (rest - rest);
    if (parts_of(c.d_logits, c.d_type, at + parts.first, c.columns).first != 0)
        parts = {c.columns, 0, c.columns}; /* no eight begins at 16 bytes in both */
    for (int64_t i = threadIdx.x; i < parts.first + c.columns - parts.rest; i += THREADS) {
        int64_t j = i < parts.first ? i : i - parts.first + parts.rest;
        float p = exp_below(load(c.logits, c.type, at + j) - most - rest);
        store(c.d_logits, c.d_type, at + j, (j == target ? p - 1.0f : p) * scale);
    }
    for (int64_t v = threadIdx.x; v < parts.eights; v += FLIGHT * THREADS) {
        struct raw_eight raw[FLIGHT] = {};
#pragma unroll
        for (int f = 0; f < FLIGHT; f++)
            if (v + f * THREADS < parts.eights)
                raw[f] = load_eight(c.logits, c.type, at + parts.first + (v + f * THREADS) * EIGHT);
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            int64_t j = parts.first + (v + f * THREADS) * EIGHT;
            struct eight x = widen_eight(raw[f], c.type);
            if (v + f * THREADS >= parts.eights)
                continue;
#pragma unroll
            for (int l = 0; l < EIGHT; l++) {
                float p = exp_below(x.at[l] - most - rest);
                x.at[l] = (l == target - j ? p - 1.0f : p) * scale;
            }
            store_eight(c.d_logits, c.d_type, at + j, x);
        }
    }
}

static bool is_sound(const struct fleet_cuda_cross_entropy *c)
{
    return c->rows >= 0 && c->columns >= 1 && c->rows <= INT32_MAX;
}

cudaError_t fleet_cuda_cross_entropy_count(cudaStream_t stream,
                                           const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !c->counted)
        return cudaErrorInvalidValue;
    return CUDA_LAUNCH(cross_entropy_count_kernel, dim3(1), dim3(THREADS), 0, stream, *c);
}

cudaError_t fleet_cuda_cross_entropy_rows(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !is_float(c->type))
        return cudaErrorInvalidValue;
    if (c->rows == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(cross_entropy_rows_kernel, dim3((unsigned)c->rows), dim3(THREADS), 0, stream,
                       *c);
}

cudaError_t fleet_cuda_cross_entropy_sums(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !is_float(c->type) || !c->sums)
        return cudaErrorInvalidValue;
    if (c->rows == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(cross_entropy_sums_kernel, dim3((unsigned)c->rows), dim3(THREADS), 0, stream,
                       *c);
}

cudaError_t fleet_cuda_cross_entropy_join(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !c->all_sums || c->parts < 1)
        return cudaErrorInvalidValue;
    if (c->rows == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(cross_entropy_join_kernel, dim3(blocks_for(c->rows, THREADS)), dim3(THREADS),
                       0, stream, *c);
}

cudaError_t fleet_cuda_cross_entropy_loss(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !c->counted || !c->loss)
        return cudaErrorInvalidValue;
    return CUDA_LAUNCH(cross_entropy_loss_kernel, dim3(1), dim3(THREADS), 0, stream, *c);
}

cudaError_t fleet_cuda_cross_entropy_grad(cudaStream_t stream,
                                          const struct fleet_cuda_cross_entropy *c)
{
    if (!is_sound(c) || !is_float(c->type) || !is_float(c->d_type) || !c->counted)
        return cudaErrorInvalidValue;
    if (c->rows == 0)
        return cudaSuccess;
    return CUDA_LAUNCH(cross_entropy_grad_kernel, dim3((unsigned)c->rows), dim3(THREADS), 0, stream,
                       *c);
}
