/* SPDX-License-Identifier: Apache-2.0 */

/*
 * softmax(q·kᵀ/√D, masked)·v of packed q, k, v, tile by tile (Dao et al., 2205.14135; Dao,
 * 2307.08691), for any number of query heads a key head. Tiles are 64 or 128 columns wide: heads of
 * other sizes fill a part, with zeros beyond. FMA in fp32, no tensor cores: it runs where
 * attention_tensor_fits() is false.
 *
 * Floor: forward 4·T²·D FLOP a head (half of it if causal), backward 14·T²·D: scores and their
 * gradients are made twice, once for the keys' sums and once for the queries'.
 * Grid: forward and queries' gradient: a block of 256 threads for 64 queries of a head; keys'
 * gradient: a block for 64 keys of a key head.
 * Determinism: a block owns what it writes and walks the other side in order (the keys' block all
 * query heads that share it, too), so there is one order of every sum and no atomic function.
 *
 * A thread has rows 4·(thread / 16) … +3 and columns thread % 16, +16, … of every tile. The sixteen
 * threads of a row are half a warp. Tiles lie in dynamic shared memory, rows padded by one.
 */
#include "cuda/kernels/attention_tensor.cuh"
#include "cuda/kernels/device.cuh"

#define TILE    64
#define THREADS 256
#define ROWS    4  /* of a thread, in every tile */
#define SIDE    16 /* threads of a row */
#define COLUMNS (TILE / SIDE)

#define SCORE_ROW (TILE + 1)
/* The gradient's blocks of a multiprocessor: as many as its shared memory holds. */
#define BLOCKS(D) ((D) == 64 ? 2 : 1)

/* Where things lie in the packed tensor, in elements. */
__device__ static __forceinline__ int64_t width_of(const struct fleet_cuda_attention &a)
{
    return (a.heads + 2 * a.kv_heads) * a.head_dim;
}

struct place {
    const void *data;
    int64_t first, row; /* of context position 0; from one position to the next */
    int64_t columns;    /* of a head */
    enum program_type type;
};

/* Column `head` of the packed tensor's q (0 …), k (heads …) or v (heads + kv_heads …). */
__device__ static __forceinline__ struct place packed(const struct fleet_cuda_attention &a,
                                                      int64_t batch, int64_t head)
{
    struct place p = {};

    p.data = a.qkv;
    p.type = a.type;
    p.columns = a.head_dim;
    p.row = width_of(a);
    p.first = batch * a.context * p.row + head * a.head_dim;
    return p;
}

__device__ static __forceinline__ struct place unpacked(const struct fleet_cuda_attention &a,
                                                        const void *data, enum program_type type,
                                                        int64_t batch, int64_t head)
{
    struct place p = {};

    p.data = data;
    p.type = type;
    p.columns = a.head_dim;
    p.row = a.heads * a.head_dim;
    p.first = batch * a.context * p.row + head * a.head_dim;
    return p;
}

/* Rows first … +63 into a tile, 0 beyond the context and beyond the head. */
template <int D>
__device__ static __forceinline__ void load_tile(float *tile, const struct place &p, int64_t first,
                                                 int64_t context)
{
    for (int i = (int)threadIdx.x * 4; i < TILE * D; i += THREADS * 4) {
        int64_t t = first + i / D, at = p.first + t * p.row + i % D;
        struct four x = {{0, 0, 0, 0}};
        if (t < context && p.columns % 4 == 0 && i % D < p.columns)
            x = load_four(p.data, p.type, at);
        else if (t < context && p.columns % 4 != 0)
            for (int l = 0; l < 4; l++)
                x.at[l] = i % D + l < p.columns ? load(p.data, p.type, at + l) : 0.0f;
#pragma unroll
        for (int l = 0; l < 4; l++)
            tile[i / D * (D + 1) + i % D + l] = x.at[l];
    }
}

/* out[r][c] = Σ over d of left's row · right's row. */
template <int D>
__device__ static __forceinline__ void rows_by_rows(const float *left, const float *right,
                                                    float out[ROWS][COLUMNS])
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE * ROWS;

#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            out[r][c] = 0;
    for (int d = 0; d < D; d++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                out[r][c] = fmaf(left[(y + r) * (D + 1) + d], right[(x + SIDE * c) * (D + 1) + d],
                                 out[r][c]);
}

/* out[r][c] += Σ over k of scores(row, k) · right[k][column]; scores turned: (k, row). */
template <int D, bool TURNED>
__device__ static __forceinline__ void scores_by_rows(const float *scores, const float *right,
                                                      float out[ROWS][D / SIDE])
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE * ROWS;

    for (int k = 0; k < TILE; k++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float s = TURNED ? scores[k * SCORE_ROW + y + r] : scores[(y + r) * SCORE_ROW + k];
#pragma unroll
            for (int c = 0; c < D / SIDE; c++)
                out[r][c] = fmaf(s, right[k * (D + 1) + x + SIDE * c], out[r][c]);
        }
}

__device__ static __forceinline__ bool is_seen(const struct fleet_cuda_attention &a, int64_t query,
                                               int64_t key)
{
    return key < a.context && query < a.context && (!a.causal || key <= query);
}

__device__ static __forceinline__ float scale_of(const struct fleet_cuda_attention &a)
{
    return 1.0f / sqrtf((float)a.head_dim);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Of the thread's four rows. */
template <int D> struct running_rows {
    float most[ROWS], total[ROWS];
    float sums[ROWS][D / SIDE];
};

/* Scores become exp(score - greatest), in shared memory too; sums so far are brought to the new
 * greatest. Lanes of a row have the same `most` and `total`. */
template <int D>
__device__ static __forceinline__ void
softmax_rows(const struct fleet_cuda_attention &a, struct running_rows<D> *run,
             float scores[ROWS][COLUMNS], float *tile, int64_t query, int64_t key)
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE * ROWS;
    float scale = scale_of(a);

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float most = run->most[r], sum = 0, shrink;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            bool seen = is_seen(a, query + y + r, key + x + SIDE * c);
            scores[r][c] = seen ? scores[r][c] * scale : -INFINITY;
            most = greater(scores[r][c], most);
        }
        for (int by = SIDE / 2; by > 0; by /= 2)
            most = greater(most, __shfl_xor_sync(LANES, most, by));
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float p = scores[r][c] == -INFINITY ? 0.0f : exp_of(scores[r][c] - most);
            sum += p;
            tile[(y + r) * SCORE_ROW + x + SIDE * c] = p;
        }
        for (int by = SIDE / 2; by > 0; by /= 2)
            sum += __shfl_xor_sync(LANES, sum, by);
        shrink = most == run->most[r] ? 1.0f : exp_of(run->most[r] - most);
        run->most[r] = most;
        run->total[r] = run->total[r] * shrink + sum;
#pragma unroll
        for (int c = 0; c < D / SIDE; c++)
            run->sums[r][c] *= shrink;
    }
}

template <int D>
__global__ void __launch_bounds__(THREADS) attention_kernel(const struct fleet_cuda_attention a)
{
    CUDA_DYNAMIC_SHARED(memory);
    float *q = reinterpret_cast<float *>(memory), *k = q + TILE * (D + 1);
    float *v = k + TILE * (D + 1), *tile = v + TILE * (D + 1);
    int64_t query = (int64_t)blockIdx.x * TILE, head = blockIdx.y, batch = blockIdx.z;
    int64_t group = head / (a.heads / a.kv_heads);
    int64_t end = a.causal && query + TILE < a.context ? query + TILE : a.context;
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE * ROWS;
    struct running_rows<D> run = {
    };

#pragma unroll
    for (int r = 0; r < ROWS; r++)
        run.most[r] = -INFINITY;
    load_tile<D>(q, packed(a, batch, head), query, a.context);
    for (int64_t key = 0; key < end; key += TILE) {
        float scores[ROWS][COLUMNS];
        __syncthreads(); /* the last tiles have been read */
        load_tile<D>(k, packed(a, batch, a.heads + group), key, a.context);
        load_tile<D>(v, packed(a, batch, a.heads + a.kv_heads + group), key, a.context);
        __syncthreads();
        rows_by_rows<D>(q, k, scores);
        softmax_rows<D>(a, &run, scores, tile, query, key);
        __syncthreads();
        scores_by_rows<D, false>(tile, v, run.sums);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t t = query + y + r, at;
        if (t >= a.context)
            continue;
        at = ((batch * a.context + t) * a.heads + head) * a.head_dim;
        if (x == 0)
            a.lse[(batch * a.heads + head) * a.context + t] = run.most[r] + log_of(run.total[r]);
#pragma unroll
        for (int c = 0; c < D / SIDE; c++)
            if (x + SIDE * c < a.head_dim)
                store(a.out, a.out_type, at + x + SIDE * c, run.sums[r][c] / run.total[r]);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* dots[row] = Σ d_out·out, the part of every score's gradient that its row shares. A warp a row. */
__global__ void __launch_bounds__(THREADS) dots_kernel(const struct fleet_cuda_attention a)
{
    int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    int64_t batch = row / (a.heads * a.context), head = row / a.context % a.heads;
    int64_t at = ((batch * a.context + row % a.context) * a.heads + head) * a.head_dim;
    float dot = 0;

    if (row >= a.batch * a.heads * a.context)
        return;
    for (int64_t j = threadIdx.x % WARP; j < a.head_dim; j += WARP)
        dot = fmaf(load(a.d_out, a.d_type, at + j), load(a.out, a.out_type, at + j), dot);
    dot = warp_sum(dot);
    if (threadIdx.x % WARP == 0)
        a.scratch[row] = dot;
}

/* The four tiles of a pair (queries, keys), and the probabilities and score gradients of it. */
template <int D> struct tiles {
    float *q, *k, *v, *d_out, *p, *d_p;
};

template <int D> __device__ static __forceinline__ struct tiles<D> tiles_in(char *memory) {
    struct tiles<D> t;

    t.q = reinterpret_cast<float *>(memory);
    t.k = t.q + TILE * (D + 1);
    t.v = t.k + TILE * (D + 1);
    t.d_out = t.v + TILE * (D + 1);
    t.p = t.d_out + TILE * (D + 1);
    t.d_p = t.p + TILE * SCORE_ROW;
    return t;
}

/* p = exp(score·scale - lse), d_p = p·(d_out·v - dot)·scale, 0 where masked; between barriers. */
template <int D>
__device__ static __forceinline__ void score_gradients(const struct fleet_cuda_attention &a,
                                                       const struct tiles<D> &t, int64_t batch,
                                                       int64_t head, int64_t query, int64_t key)
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE * ROWS;
    float scores[ROWS][COLUMNS], d_scores[ROWS][COLUMNS], scale = scale_of(a);

    rows_by_rows<D>(t.q, t.k, scores);
    rows_by_rows<D>(t.d_out, t.v, d_scores);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t row = (batch * a.heads + head) * a.context + query + y + r;
        bool exists = query + y + r < a.context;
        float lse = exists ? a.lse[row] : 0.0f, dot = exists ? a.scratch[row] : 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            bool seen = is_seen(a, query + y + r, key + x + SIDE * c);
            float p = seen ? exp_of(scores[r][c] * scale - lse) : 0.0f;
            t.p[(y + r) * SCORE_ROW + x + SIDE * c] = p;
            t.d_p[(y + r) * SCORE_ROW + x + SIDE * c] =
                seen ? p * (d_scores[r][c] - dot) * scale : 0.0f;
        }
    }
}

template <int D>
__device__ static __forceinline__ void put_tile(const struct fleet_cuda_attention &a,
                                                const struct place &p, int64_t first,
                                                const float sums[ROWS][D / SIDE])
{
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE * ROWS;

#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < D / SIDE; c++)
            if (first + y + r < a.context && x + SIDE * c < a.head_dim)
                store(a.d_qkv, a.d_qkv_type, p.first + (first + y + r) * p.row + x + SIDE * c,
                      sums[r][c]);
}

template <int D>
__global__ void __launch_bounds__(THREADS, BLOCKS(D))
    keys_kernel(const struct fleet_cuda_attention a)
{
    CUDA_DYNAMIC_SHARED(memory);
    struct tiles<D> t = tiles_in<D>(memory);
    int64_t key = (int64_t)blockIdx.x * TILE, group = blockIdx.y, batch = blockIdx.z;
    int64_t share = a.heads / a.kv_heads;
    struct place k = packed(a, batch, a.heads + group);
    struct place v = packed(a, batch, a.heads + a.kv_heads + group);
    float d_k[ROWS][D / SIDE] = {}, d_v[ROWS][D / SIDE] = {};

    load_tile<D>(t.k, k, key, a.context);
    load_tile<D>(t.v, v, key, a.context);
    for (int64_t head = group * share; head < (group + 1) * share; head++)
        for (int64_t query = a.causal ? key : 0; query < a.context; query += TILE) {
            __syncthreads();
            load_tile<D>(t.q, packed(a, batch, head), query, a.context);
            load_tile<D>(t.d_out, unpacked(a, a.d_out, a.d_type, batch, head), query, a.context);
            __syncthreads();
            score_gradients<D>(a, t, batch, head, query, key);
            __syncthreads();
            scores_by_rows<D, true>(t.p, t.d_out, d_v);
            scores_by_rows<D, true>(t.d_p, t.q, d_k);
        }
    put_tile<D>(a, k, key, d_k);
    put_tile<D>(a, v, key, d_v);
}

template <int D>
__global__ void __launch_bounds__(THREADS, BLOCKS(D))
    queries_kernel(const struct fleet_cuda_attention a)
{
    CUDA_DYNAMIC_SHARED(memory);
    struct tiles<D> t = tiles_in<D>(memory);
    int64_t query = (int64_t)blockIdx.x * TILE, head = blockIdx.y, batch = blockIdx.z;
    int64_t group = head / (a.heads / a.kv_heads);
    int64_t end = a.causal && query + TILE < a.context ? query + TILE : a.context;
    struct place q = packed(a, batch, head);
    float d_q[ROWS][D / SIDE] = {};

    load_tile<D>(t.q, q, query, a.context);
    load_tile<D>(t.d_out, unpacked(a, a.d_out, a.d_type, batch, head), query, a.context);
    for (int64_t key = 0; key < end; key += TILE) {
        __syncthreads();
        load_tile<D>(t.k, packed(a, batch, a.heads + group), key, a.context);
        load_tile<D>(t.v, packed(a, batch, a.heads + a.kv_heads + group), key, a.context);
        __syncthreads();
        score_gradients<D>(a, t, batch, head, query, key);
        __syncthreads();
        scores_by_rows<D, false>(t.d_p, t.k, d_q);
    }
    put_tile<D>(a, q, query, d_q);
}

/* ---- launches -------------------------------------------------------------------------------- */

static bool is_sound(const struct fleet_cuda_attention *a)
{
    return a->head_dim >= 1 && a->head_dim <= 128 && a->batch >= 0 && a->batch <= 65535 &&
           a->context >= 0 && a->heads >= 1 && a->heads <= 65535 && a->kv_heads >= 1 &&
           a->heads % a->kv_heads == 0 && is_float(a->type) && is_float(a->out_type);
}

static size_t tile_bytes(const struct fleet_cuda_attention *a, int tiles, int scores)
{
    size_t columns = a->head_dim <= 64 ? 64 : 128;

    return ((size_t)tiles * TILE * (columns + 1) + (size_t)scores * TILE * SCORE_ROW) *
           sizeof(float);
}

static cudaError_t run(cudaStream_t stream, const struct fleet_cuda_attention *a, int64_t heads,
                       size_t bytes, void (*kernel)(struct fleet_cuda_attention))
{
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (status != cudaSuccess)
        return status;
    return CUDA_LAUNCH(kernel,
                       dim3(blocks_for(a->context, TILE), (unsigned)heads, (unsigned)a->batch),
                       dim3(THREADS), bytes, stream, *a);
}

cudaError_t fleet_cuda_attention(cudaStream_t stream, const struct fleet_cuda_attention *a)
{
    if (!is_sound(a))
        return cudaErrorInvalidValue;
    if (a->batch == 0 || a->context == 0)
        return cudaSuccess;
    if (attention_tensor_fits(a, false))
        return attention_tensor(stream, a);
    return run(stream, a, a->heads, tile_bytes(a, 3, 1),
               a->head_dim <= 64 ? attention_kernel<64> : attention_kernel<128>);
}

cudaError_t fleet_cuda_attention_grad(cudaStream_t stream, const struct fleet_cuda_attention *a)
{
    int64_t rows = a->batch * a->heads * a->context;
    cudaError_t status;

    if (!is_sound(a) || !is_float(a->d_type) || !is_float(a->d_qkv_type))
        return cudaErrorInvalidValue;
    if (rows == 0)
        return cudaSuccess;
    if (attention_tensor_fits(a, true))
        return attention_tensor_grad(stream, a);
    status = CUDA_LAUNCH(dots_kernel, dim3(blocks_for(rows, THREADS / WARP)), dim3(THREADS), 0,
                         stream, *a);
    if (status == cudaSuccess)
        status = run(stream, a, a->kv_heads, tile_bytes(a, 4, 2),
                     a->head_dim <= 64 ? keys_kernel<64> : keys_kernel<128>);
    if (status == cudaSuccess)
        status = run(stream, a, a->heads, tile_bytes(a, 4, 2),
                     a->head_dim <= 64 ? queries_kernel<64> : queries_kernel<128>);
    return status;
}
