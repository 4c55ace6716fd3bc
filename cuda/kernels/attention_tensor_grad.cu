/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The gradient of attention of bf16 and fp16 on tensor cores, in two kernels (attention_tensor.cu
 * is forward): queries first, which also leaves dot = Σ d_out·out of each query, then keys and
 * values.
 *
 *   p = exp(q·kᵀ/√D - lse)      d_v = pᵀ·d_out
 *   d_p = d_out·vᵀ              d_s = p·(d_p - dot)/√D      d_q = d_s·k      d_k = d_sᵀ·q
 *
 * Floor: 14·T²·D FLOP a head, half of it if causal: p and d_p are made in both kernels. One kernel
 * would need 10·T²·D, and sums of d_q over blocks of keys: atomic functions, or T / 64 partial sums
 * in memory.
 * Grid: x: heads (key heads) of all samples; y: blocks of queries (64 keys), heavy ones first if
 * causal. A block has 128 threads; a warp owns 32 queries (16 of wide heads), or 16 keys. Tiles of the other
 * side are copied asynchronously while the tile before them is used: one barrier a tile.
 * p and d_s stay in registers, rounded to the inputs' type.
 * Determinism: a warp owns what it writes. It walks over the other side in order (keys over all
 * query heads that share them, too), so there is one order of every sum and no atomic function.
 */
#include "cuda/kernels/attention_tensor.cuh"

#define TILE  64 /* positions of the other side's tiles */
#define CHUNK 32 /* of them at a time: as many as registers hold the scores of */

/* 16·M rows of a tile as operands a, in registers (KEPT) or read when they are used. */
template <bool KEPT, int D, int M> struct left_rows {
    const unsigned short *tile;
    unsigned kept[M][KEPT ? D / 16 : 1][4];
};

template <bool KEPT, int D, int M>
__device__ static __forceinline__ void set_left(struct left_rows<KEPT, D, M> *left,
                                                const unsigned short *tile)
{
    left->tile = tile;
#pragma unroll
    for (int m = 0; KEPT && m < M; m++)
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            fragment_a<D>(left->kept[m][KEPT ? d : 0], tile, lane_offset<D>(), 16 * m, d);
}

/* left·rightᵀ of the warp's rows and COUNT rows of `right`. */
template <bool BF16, bool KEPT, int D, int M, int COUNT>
__device__ static __forceinline__ void multiply(float out[M][COUNT / 8][4],
                                                const struct left_rows<KEPT, D, M> &left,
                                                const unsigned short *right)
{
    int offset = lane_offset<D>(), turned = lane_offset_turned<D>();

    CUDA_FORGET(offset);
    CUDA_FORGET(turned);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < COUNT / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[m][n][e] = 0;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        unsigned read[M][4];
#pragma unroll
        for (int m = 0; !KEPT && m < M; m++)
            fragment_a<D>(read[m], left.tile, offset, 16 * m, d);
#pragma unroll
        for (int n = 0; n < COUNT / 16; n++) {
            unsigned b[4];
            fragments_b_turned<D>(b, right, turned, 16 * n, d);
#pragma unroll
            for (int m = 0; m < M; m++) {
                const unsigned *a = KEPT ? left.kept[m][KEPT ? d : 0] : read[m];
                mma<BF16>(out[m][2 * n], a, b[0], b[1]);
                mma<BF16>(out[m][2 * n + 1], a, b[2], b[3]);
            }
        }
    }
}

/* sums += rounded weights · rows: COUNT columns of weights, as many rows. */
template <bool BF16, int D, int M, int COUNT>
__device__ static __forceinline__ void
add_rows(float sums[M][D / 8][4], const float weights[M][COUNT / 8][4], const unsigned short *rows)
{
    int offset = lane_offset<D>();

    CUDA_FORGET(offset);
#pragma unroll
    for (int k = 0; k < COUNT / 16; k++) {
        unsigned a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            pack_a<BF16>(a[m], weights[m][2 * k], weights[m][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            unsigned b[4];
            fragments_b<D>(b, rows, offset, 16 * k, n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<BF16>(sums[m][2 * n], a[m], b[0], b[1]);
                mma<BF16>(sums[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* ---- queries --------------------------------------------------------------------------------- */

/* Of the lane's rows g and g + 8 of each group: lse·log2(e), and the dot. */
template <int M> struct query_rows {
    float lse[M][2], dot[M][2];
};

/* Four lanes make the dot of a row; it goes to a.scratch, too. */
template <bool BF16, int D, int M>
__device__ static __forceinline__ void
read_query_rows(const struct fleet_cuda_attention &a, struct query_rows<M> *rows,
                const unsigned short *d_out, const struct head_rows &out, int64_t head_row,
                int query)
{
    const enum program_type type = BF16 ? PROGRAM_BF16 : PROGRAM_FP16;
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = 16 * m + 8 * half + g;
            bool exists = query + row < (int)a.context;
            int64_t at = head_row * a.context + query + row;
            float dot = 0;
            for (int piece = t; exists && piece * 8 < (int)a.head_dim; piece += 4)
#pragma unroll
                for (int quarter = 0; quarter < 8; quarter += 4) {
                    struct four x = load_four(d_out, type, piece_at<D>(row, piece) + quarter);
                    struct four y =
                        load_four(out.first, type, (query + row) * out.row + piece * 8 + quarter);
#pragma unroll
                    for (int l = 0; l < 4; l++)
                        dot = fmaf(x.at[l], y.at[l], dot);
                }
            dot += __shfl_xor_sync(LANES, dot, 1);
            dot += __shfl_xor_sync(LANES, dot, 2);
            rows->dot[m][half] = dot;
            rows->lse[m][half] = exists ? a.lse[at] * LOG2_E : 0.0f;
            if (exists && t == 0)
                a.scratch[at] = dot;
        }
}

/* d_p becomes d_s·√D. */
template <int M>
__device__ static __forceinline__ void
query_gradients(const struct fleet_cuda_attention &a, const struct query_rows<M> &rows,
                const float scores[M][CHUNK / 8][4], float d_p[M][CHUNK / 8][4], int query, int key)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    bool at_edge = key + CHUNK > (int)a.context || (a.causal && key + CHUNK - 1 > query);
    float scale = LOG2_E / sqrtf((float)a.head_dim);

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = query + 16 * m + g + e / 2 * 8, j = key + 8 * n + 2 * t + e % 2;
                bool hidden = at_edge && (j >= (int)a.context || (a.causal && j > i));
                float p = CUDA_EXP2(fmaf(scores[m][n][e], scale, -rows.lse[m][e / 2]));
                d_p[m][n][e] = hidden ? 0.0f : p * (d_p[m][n][e] - rows.dot[m][e / 2]);
            }
}

template <int D> __host__ __device__ constexpr int query_groups()
{
    return D == 64 ? 2 : 1;
}

template <bool BF16, int D>
__global__ void __launch_bounds__(BLOCK_THREADS)
    attention_tensor_queries(const struct fleet_cuda_attention a)
{
    CUDA_DYNAMIC_SHARED(memory);
    constexpr int M = query_groups<D>(), ROWS = BLOCK_WARPS * 16 * M;
    unsigned short *q = reinterpret_cast<unsigned short *>(memory), *d_out = q + ROWS * D;
    unsigned short *stages = d_out + ROWS * D;
    int query = (int)(gridDim.y - 1 - blockIdx.y) * ROWS, row = (int)threadIdx.x / WARP * 16 * M;
    int64_t head = blockIdx.x % a.heads, batch = blockIdx.x / a.heads;
    int64_t group = head / (a.heads / a.kv_heads);
    struct head_rows k = head_of_packed(a, a.qkv, batch, a.heads + group);
    struct head_rows v = head_of_packed(a, a.qkv, batch, a.heads + a.kv_heads + group);
    int end = a.causal && query + ROWS < (int)a.context ? query + ROWS : (int)a.context;
    float d_q[M][D / 8][4] = {};
    struct left_rows<true, D, M> queries, d_outs;
    struct query_rows<M> rows;

    start_rows<D, ROWS>(q, head_of_packed(a, a.qkv, batch, head), query, a);
    start_rows<D, ROWS>(d_out, head_of_out(a, a.d_out, batch, head), query, a);
    CUDA_COPY_COMMIT();
    start_rows<D, TILE>(stages, k, 0, a);
    start_rows<D, TILE>(stages + TILE * D, v, 0, a);
    CUDA_COPY_COMMIT();
    CUDA_COPY_WAIT(1);
    __syncthreads();
    read_query_rows<BF16, D, M>(a, &rows, d_out + row * D, head_of_out(a, a.out, batch, head),
                                batch * a.heads + head, query + row);
    set_left(&queries, q + row * D);
    set_left(&d_outs, d_out + row * D);
    for (int key = 0; key < end; key += TILE) {
        unsigned short *now = stages + key / TILE % 2 * (2 * TILE * D);
        unsigned short *next = stages + (key / TILE + 1) % 2 * (2 * TILE * D);
        CUDA_COPY_WAIT(0);
        __syncthreads(); /* this tile has come, the last one has been read */
        if (key + TILE < end) {
            start_rows<D, TILE>(next, k, key + TILE, a);
            start_rows<D, TILE>(next + TILE * D, v, key + TILE, a);
        }
        CUDA_COPY_COMMIT();
#pragma unroll 1
        for (int c = 0; c < TILE; c += CHUNK) {
            float scores[M][CHUNK / 8][4], d_p[M][CHUNK / 8][4];
            if (a.causal && key + c > query + row + 16 * M - 1)
                continue; /* the warp sees none of it */
            multiply<BF16, true, D, M, CHUNK>(scores, queries, now + c * D);
            multiply<BF16, true, D, M, CHUNK>(d_p, d_outs, now + (TILE + c) * D);
            query_gradients<M>(a, rows, scores, d_p, query + row, key + c);
            add_rows<BF16, D, M, CHUNK>(d_q, d_p, now + c * D);
        }
    }
    put_scaled<BF16, D, M>(a, d_q, 1.0f / sqrtf((float)a.head_dim), q, row,
                           head_of_packed(a, a.d_qkv, batch, head), query + row);
}

/* ---- keys and values ------------------------------------------------------------------------- */

#define KEYS (BLOCK_WARPS * 16) /* of a block */

/* Of a tile of queries. */
template <int D> struct query_tile {
    unsigned short *q, *d_out;
    float *lse, *dot;
};

/* One of two, beside each other. */
template <int D>
__device__ static __forceinline__ struct query_tile<D> query_tile_at(unsigned short *first,
                                                                     int number) {
    constexpr int STAGE = 2 * TILE * D + 2 * TILE * (int)(sizeof(float) / sizeof(short));
    struct query_tile<D> t;

    t.q = first + number % 2 * STAGE;
    t.d_out = t.q + TILE * D;
    t.lse = reinterpret_cast<float *>(t.d_out + TILE * D);
    t.dot = t.lse + TILE;
    return t;
}

/* Starts copies of queries query … +63 of a head. */
template <int D>
__device__ static __forceinline__ void start_queries(const struct fleet_cuda_attention &a,
                                                     const struct query_tile<D> &tile, int batch,
                                                     int head, int query)
{
    int i = (int)threadIdx.x % TILE;
    bool exists = query + i < (int)a.context;
    const float *from = threadIdx.x < TILE ? a.lse : a.scratch;
    float *to = threadIdx.x < TILE ? tile.lse : tile.dot;

    start_rows<D, TILE>(tile.q, head_of_packed(a, a.qkv, batch, head), query, a);
    start_rows<D, TILE>(tile.d_out, head_of_out(a, a.d_out, batch, head), query, a);
    CUDA_COPY_4(to + i, from + (batch * a.heads + head) * a.context + query + i, exists);
}

/* Scores, of keys by queries, become p. */
template <int M>
__device__ static __forceinline__ void
key_probabilities(const struct fleet_cuda_attention &a, const float *lse,
                  float scores[M][CHUNK / 8][4], int key, int query)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    bool at_edge = a.causal && query < key + 16 * M - 1;
    float scale = LOG2_E / sqrtf((float)a.head_dim);

#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        float2 l = *reinterpret_cast<const float2 *>(lse + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = query + 8 * n + 2 * t + e % 2, j = key + 16 * m + g + e / 2 * 8;
                float p = CUDA_EXP2(fmaf(scores[m][n][e], scale, -(e % 2 ? l.y : l.x) * LOG2_E));
                scores[m][n][e] = at_edge && j > i ? 0.0f : p;
            }
    }
}

/* d_p becomes d_s·√D, which is 0 where p is: of what a query does not see, too. */
template <int M>
__device__ static __forceinline__ void
key_gradients(const float *dot, const float p[M][CHUNK / 8][4], float d_p[M][CHUNK / 8][4])
{
    int t = (int)threadIdx.x % 4;

#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        float2 d = *reinterpret_cast<const float2 *>(dot + 8 * n + 2 * t);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d_p[m][n][e] = p[m][n][e] * (d_p[m][n][e] - (e % 2 ? d.y : d.x));
    }
}

template <bool BF16, int D>
__global__ void __launch_bounds__(BLOCK_THREADS)
    attention_tensor_keys(const struct fleet_cuda_attention a)
{
    CUDA_DYNAMIC_SHARED(memory);
    constexpr bool KEPT = D == 64;
    constexpr int M = 1;
    unsigned short *k = reinterpret_cast<unsigned short *>(memory), *v = k + KEYS * D;
    unsigned short *stages = v + KEYS * D;
    int key = (int)blockIdx.y * KEYS, row = (int)threadIdx.x / WARP * 16 * M;
    int group = (int)(blockIdx.x % (unsigned)a.kv_heads);
    int batch = (int)(blockIdx.x / (unsigned)a.kv_heads);
    int share = (int)a.heads / (int)a.kv_heads;
    struct head_rows from_k = head_of_packed(a, a.qkv, batch, a.heads + group);
    struct head_rows from_v = head_of_packed(a, a.qkv, batch, a.heads + a.kv_heads + group);
    int first = a.causal ? key : 0, tiles = ((int)a.context - first + TILE - 1) / TILE;
    int head = group * share, count = tiles * share;
    float d_k[M][D / 8][4] = {}, d_v[M][D / 8][4] = {};
    struct left_rows<KEPT, D, M> keys;
    struct left_rows<false, D, M> values;

    start_rows<D, KEYS>(k, from_k, key, a);
    start_rows<D, KEYS>(v, from_v, key, a);
    start_queries<D>(a, query_tile_at<D>(stages, 0), batch, head, first);
    CUDA_COPY_COMMIT();
    CUDA_COPY_WAIT(0);
    __syncthreads();
    set_left(&keys, k + row * D);
    set_left(&values, v + row * D);
    for (int i = 0, query = first; i < count; i++) {
        struct query_tile<D> now = query_tile_at<D>(stages, i);
        bool is_last = query + TILE >= (int)a.context; /* of its head */
        int next = is_last ? first : query + TILE;
        CUDA_COPY_WAIT(0);
        __syncthreads(); /* this tile has come, the last one has been read */
        head += is_last;
        if (i + 1 < count)
            start_queries<D>(a, query_tile_at<D>(stages, i + 1), batch, head, next);
        CUDA_COPY_COMMIT();
#pragma unroll 1
        for (int c = 0; c < TILE; c += CHUNK) {
            float scores[M][CHUNK / 8][4], d_p[M][CHUNK / 8][4];
            if (a.causal && query + c + CHUNK - 1 < key + row)
                continue; /* these queries see none of the warp's keys */
            multiply<BF16, KEPT, D, M, CHUNK>(scores, keys, now.q + c * D);
            key_probabilities<M>(a, now.lse + c, scores, key + row, query + c);
            add_rows<BF16, D, M, CHUNK>(d_v, scores, now.d_out + c * D);
            multiply<BF16, false, D, M, CHUNK>(d_p, values, now.d_out + c * D);
            key_gradients<M>(now.dot + c, scores, d_p);
            add_rows<BF16, D, M, CHUNK>(d_k, d_p, now.q + c * D);
        }
        query = next;
    }
    put_scaled<BF16, D, M>(a, d_k, 1.0f / sqrtf((float)a.head_dim), k, row,
                           head_of_packed(a, a.d_qkv, batch, a.heads + group), key + row);
    put_scaled<BF16, D, M>(a, d_v, 1.0f, v, row,
                           head_of_packed(a, a.d_qkv, batch, a.heads + a.kv_heads + group),
                           key + row);
}

/* ---- launches -------------------------------------------------------------------------------- */

template <bool BF16, int D>
static cudaError_t run_tensor(cudaStream_t stream, const struct fleet_cuda_attention *a)
{
    constexpr int ROWS = BLOCK_WARPS * 16 * query_groups<D>();
    size_t row = D * sizeof(unsigned short), scalars = 2 * TILE * sizeof(float);
    cudaError_t status = launch_tensor(stream, a, a->heads, ROWS, (2 * ROWS + 4 * TILE) * row,
                                       attention_tensor_queries<BF16, D>);

    if (status != cudaSuccess)
        return status;
    return launch_tensor(stream, a, a->kv_heads, KEYS, (2 * KEYS + 4 * TILE) * row + 2 * scalars,
                         attention_tensor_keys<BF16, D>);
}

cudaError_t attention_tensor_grad(cudaStream_t stream, const struct fleet_cuda_attention *a)
{
    if (a->type == PROGRAM_BF16)
        return a->head_dim <= 64 ? run_tensor<true, 64>(stream, a)
                                 : run_tensor<true, 128>(stream, a);
    return a->head_dim <= 64 ? run_tensor<false, 64>(stream, a) : run_tensor<false, 128>(stream, a);
}
