/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Attention of bf16 and fp16 on tensor cores, forward: softmax(q·kᵀ/√D, masked)·v of packed q, k,
 * v, tile by tile with running maxima and totals (Dao, 2307.08691), for any number of query heads a
 * key head. Heads have up to 64 or 128 columns, a multiple of 8; zeros fill the rest.
 *
 * Floor: 4·T²·D FLOP a head, half of it if causal; 2·T²·D of it for scores. Beside it, one
 * exponential a score, by the special function unit: 16 a clock of a multiprocessor.
 * Grid: x: heads of all samples; y: blocks of 128 queries, the last ones first, because a causal
 * block is the heavier the later its queries are. A block has 128 threads; a warp owns 32 queries.
 * Tiles of 64 keys and values (32 of wide heads) are copied asynchronously while the tile before them is used: one
 * barrier a tile. Probabilities stay in registers, rounded to the inputs' type.
 * Determinism: a warp owns what it writes and walks over keys in order; no atomic function.
 */
#include "cuda/kernels/attention_tensor.cuh"

#define M    2 /* groups of 16 queries of a warp */
#define ROWS (BLOCK_WARPS * 16 * M)

/* Keys of a tile: as many as registers hold the scores of. */
template <int D> __host__ __device__ constexpr int tile_keys()
{
    return D == 64 ? 64 : 32;
}

/* A lane has rows g and g + 8 of each group, and of each tile of scores columns 2t, 2t+1 of every 8
 * (tensor_core.cuh). */
template <int D> struct running {
    float sums[M][D / 8][4];
    float most[M][2], total[M][2]; /* total: of this lane's columns */
};

template <bool BF16, int D, int KEYS>
__device__ static __forceinline__ void score(float scores[M][KEYS / 8][4], const unsigned short *q,
                                             const unsigned short *k)
{
    int offset = lane_offset<D>(), turned = lane_offset_turned<D>();

    CUDA_FORGET(offset);
    CUDA_FORGET(turned);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[m][n][e] = 0;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        unsigned a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            fragment_a<D>(a[m], q, offset, 16 * m, d);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            unsigned b[4];
            fragments_b_turned<D>(b, k, turned, 16 * n, d);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<BF16>(scores[m][2 * n], a[m], b[0], b[1]);
                mma<BF16>(scores[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Scores that a query may not see become -inf. */
template <int KEYS>
__device__ static __forceinline__ void mask(const struct fleet_cuda_attention &a,
                                            float scores[M][KEYS / 8][4], int query, int key)
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = query + 16 * m + g + e / 2 * 8, j = key + 8 * n + 2 * t + e % 2;
                if (j >= (int)a.context || (a.causal && j > i))
                    scores[m][n][e] = -INFINITY;
            }
}

/* Scores become exp(score - greatest); what was summed so far is brought to the new greatest. */
template <int D, int KEYS>
__device__ static __forceinline__ void soften(struct running<D> *run, float scores[M][KEYS / 8][4],
                                              float scale)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float before = run->most[m][half], most = before, base, shrink, sum = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                most = fmaxf(most, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(LANES, most, 2));
            run->most[m][half] = most;
            most = most == -INFINITY ? 0.0f : most;
            base = most * scale;
            shrink = CUDA_EXP2((before - most) * scale);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    scores[m][n][e] = CUDA_EXP2(fmaf(scores[m][n][e], scale, -base));
                    sum += scores[m][n][e];
                }
            run->total[m][half] = fmaf(run->total[m][half], shrink, sum);
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    run->sums[m][n][e] *= shrink;
        }
}

template <bool BF16, int D, int KEYS>
__device__ static __forceinline__ void
add_values(struct running<D> *run, const float scores[M][KEYS / 8][4], const unsigned short *v)
{
    int offset = lane_offset<D>();

    CUDA_FORGET(offset);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        unsigned p[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            pack_a<BF16>(p[m], scores[m][2 * k], scores[m][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            unsigned b[4];
            fragments_b<D>(b, v, offset, 16 * k, n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<BF16>(run->sums[m][2 * n], p[m], b[0], b[1]);
                mma<BF16>(run->sums[m][2 * n + 1], p[m], b[2], b[3]);
            }
        }
    }
}

/* lse, and the factors of the sums. */
template <int D>
__device__ static __forceinline__ void finish(const struct fleet_cuda_attention &a,
                                              const struct running<D> &run, int64_t head_row,
                                              int query, float factor[M][2])
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float scale = 1.0f / sqrtf((float)a.head_dim);

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = run.total[m][half];
            int i = query + 16 * m + 8 * half + g;
            total += __shfl_xor_sync(LANES, total, 1);
            total += __shfl_xor_sync(LANES, total, 2);
            factor[m][half] = 1.0f / total;
            if (t == 0 && i < (int)a.context)
                a.lse[head_row * a.context + i] = fmaf(run.most[m][half], scale, log_of(total));
        }
}

template <bool BF16, int D>
__global__ void __launch_bounds__(BLOCK_THREADS)
    attention_tensor_kernel(const struct fleet_cuda_attention a)
{
    CUDA_DYNAMIC_SHARED(memory);
    constexpr int KEYS = tile_keys<D>();
    unsigned short *q = reinterpret_cast<unsigned short *>(memory), *stages = q + ROWS * D;
    int query = (int)(gridDim.y - 1 - blockIdx.y) * ROWS, row = (int)threadIdx.x / WARP * 16 * M;
    int64_t head = blockIdx.x % a.heads, batch = blockIdx.x / a.heads;
    int64_t group = head / (a.heads / a.kv_heads);
    struct head_rows k = head_of_packed(a, a.qkv, batch, a.heads + group);
    struct head_rows v = head_of_packed(a, a.qkv, batch, a.heads + a.kv_heads + group);
    int end = a.causal && query + ROWS < (int)a.context ? query + ROWS : (int)a.context;
    float scale = LOG2_E / sqrtf((float)a.head_dim), factor[M][2];
    struct running<D> run = {
    };

#pragma unroll
    for (int m = 0; m < M; m++)
        run.most[m][0] = run.most[m][1] = -INFINITY;
    start_rows<D, ROWS>(q, head_of_packed(a, a.qkv, batch, head), query, a);
    start_rows<D, KEYS>(stages, k, 0, a);
    start_rows<D, KEYS>(stages + KEYS * D, v, 0, a);
    CUDA_COPY_COMMIT();
    for (int key = 0; key < end; key += KEYS) {
        unsigned short *now = stages + key / KEYS % 2 * (2 * KEYS * D);
        unsigned short *next = stages + (key / KEYS + 1) % 2 * (2 * KEYS * D);
        float scores[M][KEYS / 8][4];
        CUDA_COPY_WAIT(0);
        __syncthreads(); /* this tile has come, the last one has been read */
        if (key + KEYS < end) {
            start_rows<D, KEYS>(next, k, key + KEYS, a);
            start_rows<D, KEYS>(next + KEYS * D, v, key + KEYS, a);
        }
        CUDA_COPY_COMMIT();
        if (a.causal && key > query + row + 16 * M - 1)
            continue; /* the warp sees none of it */
        score<BF16, D, KEYS>(scores, q + row * D, now);
        if (key + KEYS > (int)a.context || (a.causal && key + KEYS - 1 > query + row))
            mask<KEYS>(a, scores, query + row, key);
        soften<D, KEYS>(&run, scores, scale);
        add_values<BF16, D, KEYS>(&run, scores, now + KEYS * D);
    }
    finish<D>(a, run, batch * a.heads + head, query + row, factor);
    put_rows<BF16, D, M>(a, run.sums, factor, q, row, head_of_out(a, a.out, batch, head),
                         query + row);
}

/* ---- launches -------------------------------------------------------------------------------- */

bool attention_tensor_fits(const struct fleet_cuda_attention *a, bool backward)
{
    bool same =
        a->out_type == a->type && (!backward || (a->d_type == a->type && a->d_qkv_type == a->type));

    return (a->type == PROGRAM_BF16 || a->type == PROGRAM_FP16) && same && a->head_dim % 8 == 0 &&
           a->head_dim <= 128 && a->context <= 1 << 20 && a->heads * a->batch <= INT32_MAX;
}

template <bool BF16, int D>
static cudaError_t run_tensor(cudaStream_t stream, const struct fleet_cuda_attention *a)
{
    size_t bytes = (size_t)(ROWS + 4 * tile_keys<D>()) * D * sizeof(unsigned short);

    return launch_tensor(stream, a, a->heads, ROWS, bytes, attention_tensor_kernel<BF16, D>);
}

cudaError_t attention_tensor(cudaStream_t stream, const struct fleet_cuda_attention *a)
{
    if (a->type == PROGRAM_BF16)
        return a->head_dim <= 64 ? run_tensor<true, 64>(stream, a)
                                 : run_tensor<true, 128>(stream, a);
    return a->head_dim <= 64 ? run_tensor<false, 64>(stream, a) : run_tensor<false, 128>(stream, a);
}
