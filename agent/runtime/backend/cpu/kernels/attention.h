/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_ATTENTION_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_ATTENTION_H

/*
 * softmax(q·kᵀ/√D, masked)·v of packed q, k, v, tile by tile (Dao et al., 2205.14135; Dao,
 * 2307.08691). Forward, a task owns a tile of query rows of one head and walks the key tiles with a
 * running maximum and sum. Backward, a task owns one key head: it walks key tiles, and for each the
 * query tiles of all query heads that share it; so every sum has one order.
 *
 * Tiles live in the thread's buffer. Fully masked tiles are not visited.
 */

#include <inttypes.h>

#include "agent/runtime/backend/cpu/kernels/gemm.h"
#include "agent/runtime/backend/cpu/kernels/kernel.h"

#define ATTENTION_TILE     64
#define ATTENTION_HEAD_MAX 256 /* so that the tiles fit the thread's buffer */

struct attention {
    const void *qkv;
    void *out; /* forward: result; backward: read */
    float *lse;
    const void *d_out;
    void *d_qkv;
    float *dots; /* backward: Σ d_out·out of each row, as lse */
    enum program_type type, out_type, d_type;
    int64_t batch, context, heads, kv_heads, head_dim, width;
    int64_t tiles; /* of one head */
    bool causal;
    float scale;
    struct cpu_backend *cpu;
};

/* Where things lie; all in elements. */
static inline int64_t attention_q_at(const struct attention *a, int64_t b, int64_t t, int64_t head)
{
    return (b * a->context + t) * a->width + head * a->head_dim;
}

static inline int64_t attention_k_at(const struct attention *a, int64_t b, int64_t t, int64_t group)
{
    return (b * a->context + t) * a->width + (a->heads + group) * a->head_dim;
}

static inline int64_t attention_v_at(const struct attention *a, int64_t b, int64_t t, int64_t group)
{
    return attention_k_at(a, b, t, group + a->kv_heads);
}

static inline int64_t attention_out_at(const struct attention *a, int64_t b, int64_t t,
                                       int64_t head)
{
    return ((b * a->context + t) * a->heads + head) * a->head_dim;
}

/* Rows of a packed tensor as an operand: element (i, j) is row i of the tile, or turned. */
static inline struct gemm_operand attention_rows(const void *data, enum program_type type,
                                                 int64_t at, int64_t stride, bool turned)
{
    size_t size = program_type_size(type);

    return (struct gemm_operand){.data = (const char *)data + (size_t)at * size,
                                 .type = type,
                                 .row = turned ? 1 : stride,
                                 .column = turned ? stride : 1};
}

/* A tile in the buffer, rows `stride` floats apart. */
static inline struct gemm_operand attention_tile(const float *tile, int64_t stride, bool turned)
{
    return attention_rows(tile, PROGRAM_FP32, 0, stride, turned);
}

/* Columns of a key tile at `key` that query row `query` sees. */
static inline int64_t attention_seen(const struct attention *a, int64_t query, int64_t key,
                                     int64_t columns)
{
    if (!a->causal || query - key + 1 >= columns)
        return columns;
    return query < key ? 0 : query - key + 1;
}

/* ---- forward --------------------------------------------------------------------------------- */

struct attention_state {
    float max[ATTENTION_TILE], sum[ATTENTION_TILE];
    float *sums;   /* [TILE][D], of exp(score - max)·v */
    float *scores; /* [TILE][TILE] */
    float *packed;
};

/* One row of scores becomes exp(score - max); sums so far are brought to the new maximum. */
static void attention_softmax_row(const struct attention *a, struct attention_state *s, int r,
                                  int64_t seen, int64_t columns)
{
    float *row = s->scores + r * ATTENTION_TILE, max, shrink;
    v16 greatest = v_set(-INFINITY), sum = v_zero();

    for (int64_t j = 0; j < seen; j += V_LANES) {
        v16 x = v_mul(v_load(row + j), v_set(a->scale));
        x = v_select(v_first((int)kernel_least(seen - j, V_LANES)), x, v_set(-INFINITY));
        v_store(row + j, x);
        greatest = v_max(x, greatest);
    }
    max = v_greatest(v_max(greatest, v_set(s->max[r])));
    for (int64_t j = 0; j < seen; j += V_LANES) {
        v16 p = v_exp(v_sub(v_load(row + j), v_set(max)));
        v_store(row + j, p);
        sum = v_add(sum, p);
    }
    for (int64_t j = (seen + V_LANES - 1) / V_LANES * V_LANES; j < columns; j += V_LANES)
        v_store(row + j, v_zero());
    if (max != s->max[r]) {
        shrink = kernel_lane(v_exp(v_set(s->max[r] - max)));
        s->sum[r] *= shrink;
        for (int64_t j = 0; j < a->head_dim; j += V_LANES) {
            float *to = s->sums + r * a->head_dim + j;
            v_store_n(to, a->head_dim - j, v_mul(v_load_n(to, a->head_dim - j), v_set(shrink)));
        }
        s->max[r] = max;
    }
    s->sum[r] += v_sum(sum);
}

static void attention_key_tile(const struct attention *a, struct attention_state *s, int64_t b,
                               int64_t head, int64_t query, int rows, int64_t key)
{
    int64_t columns = kernel_least(ATTENTION_TILE, a->context - key);
    int64_t group = head / (a->heads / a->kv_heads);
    struct gemm scores = {
        .m = rows,
        .n = columns,
        .k = a->head_dim,
        .a = attention_rows(a->qkv, a->type, attention_q_at(a, b, query, head), a->width, false),
        .b = attention_rows(a->qkv, a->type, attention_k_at(a, b, key, group), a->width, true),
        .c = s->scores,
        .ldc = ATTENTION_TILE};
    struct gemm sums = {
        .m = rows,
        .n = a->head_dim,
        .k = columns,
        .a = attention_tile(s->scores, ATTENTION_TILE, false),
        .b = attention_rows(a->qkv, a->type, attention_v_at(a, b, key, group), a->width, false),
        .c = s->sums,
        .ldc = a->head_dim,
        .accumulate = true};

    gemm_small(&scores, s->packed);
    for (int r = 0; r < rows; r++)
        attention_softmax_row(a, s, r, attention_seen(a, query + r, key, columns), columns);
    gemm_small(&sums, s->packed);
}

static void attention_task(void *context, int64_t task, int thread)
{
    const struct attention *a = context;
    int64_t b = task / a->tiles / a->heads, head = task / a->tiles % a->heads;
    int64_t query = task % a->tiles * ATTENTION_TILE;
    int rows = (int)kernel_least(ATTENTION_TILE, a->context - query);
    int64_t end = a->causal ? query + rows : a->context;
    float *buffer = cpu_thread_buffer(a->cpu, thread);
    struct attention_state s = {.scores = buffer};
    float *lse = a->lse + (b * a->heads + head) * a->context + query;

    s.sums = s.scores + ATTENTION_TILE * ATTENTION_TILE;
    s.packed = s.sums + ATTENTION_TILE * ATTENTION_HEAD_MAX;
    memset(s.sums, 0, (size_t)(rows * a->head_dim) * sizeof(float));
    for (int r = 0; r < rows; r++)
        s.max[r] = -INFINITY;
    for (int64_t key = 0; key < end; key += ATTENTION_TILE)
        attention_key_tile(a, &s, b, head, query, rows, key);
    for (int r = 0; r < rows; r++) {
        int64_t at = attention_out_at(a, b, query + r, head);
        lse[r] = s.max[r] + kernel_lane(v_log(v_set(s.sum[r])));
        for (int64_t j = 0; j < a->head_dim; j += V_LANES)
            typed_store_n(
                a->out, a->out_type, at + j, a->head_dim - j,
                v_div(v_load_n(s.sums + r * a->head_dim + j, a->head_dim - j), v_set(s.sum[r])));
    }
}

/* What both directions need, from the packed tensor in input i. */
static int attention_init(struct attention *a, struct cpu_backend *cpu,
                          const struct kernel_call *call, int i, struct fleet_error *err)
{
    const struct program_var *qkv = kernel_in(call, i);
    const struct op_attributes *attributes = &call->op->attributes;

    *a = (struct attention){.qkv = call->in[i],
                            .type = qkv->type,
                            .batch = qkv->shape[0],
                            .context = qkv->shape[1],
                            .width = qkv->shape[2],
                            .heads = attributes->heads,
                            .kv_heads = attributes->kv_heads,
                            .causal = attributes->causal,
                            .cpu = cpu};
    a->head_dim = a->width / (a->heads + 2 * a->kv_heads);
    if (a->head_dim > ATTENTION_HEAD_MAX)
        return fleet_error(err, -ENOTSUP, "%s: heads of %" PRId64 " columns, at most %d", qkv->name,
                           a->head_dim, ATTENTION_HEAD_MAX);
    a->tiles = kernel_pieces(a->context, ATTENTION_TILE);
    a->scale = 1.0f / sqrtf((float)a->head_dim);
    return 0;
}

static int attention_kernel(struct backend *backend, const struct kernel_call *call,
                            struct fleet_error *err)
{
    struct attention a;

    if (attention_init(&a, cpu_backend(backend), call, 0, err) < 0)
        return -ENOTSUP;
    a.out = call->out[0];
    a.out_type = kernel_out_type(call, 0);
    a.lse = call->out[1];
    cpu_parallel(a.cpu, a.batch * a.heads * a.tiles, attention_task, &a);
    return 0;
}

/* ---- backward -------------------------------------------------------------------------------- */

/*
 * dots[row] = Σ d_out·out, the part of every score's gradient that its row shares. Sixteen rows at
 * a time, each summed as a matrix product sums: where a row sees one key, out is v, and the
 * gradient of the score is exactly 0.
 */
static void attention_dots_task(void *context, int64_t task, int thread)
{
    const struct attention *a = context;
    int64_t b = task / a->heads, head = task % a->heads, width = a->heads * a->head_dim;
    float *left = cpu_thread_buffer(a->cpu, thread), *right = left + ATTENTION_HEAD_MAX * V_LANES;

    for (int64_t t = 0; t < a->context; t += V_LANES) {
        int rows = (int)kernel_least(V_LANES, a->context - t);
        int64_t at = attention_out_at(a, b, t, head);
        struct gemm_operand d_out = {.data = a->d_out, .type = a->d_type};
        struct gemm_operand out = {.data = a->out, .type = a->out_type};
        v16 sum = v_zero();
        gemm_pack_across(&d_out, at, width, rows, V_LANES, a->head_dim, left);
        gemm_pack_across(&out, at, width, rows, V_LANES, a->head_dim, right);
        for (int64_t j = 0; j < a->head_dim; j++)
            sum = v_fma(v_load(left + j * V_LANES), v_load(right + j * V_LANES), sum);
        v_store_n(a->dots + task * a->context + t, rows, sum);
    }
}

struct attention_grad_state {
    float *p, *d_p;   /* [TILE][TILE]: probabilities, their gradient, then that of the scores */
    float *d_k, *d_v; /* [TILE][D] */
    float *packed;
    int64_t key, columns; /* of the key tile */
    int64_t b, group;
};

/* p = exp(score·scale - lse) and d_p = p·(d_p - dot)·scale, row by row; 0 where masked. */
static void attention_grad_scores(const struct attention *a, const struct attention_grad_state *s,
                                  int64_t head, int64_t query, int rows)
{
    int64_t first = (s->b * a->heads + head) * a->context + query;

    for (int r = 0; r < rows; r++) {
        int64_t seen = attention_seen(a, query + r, s->key, s->columns);
        float *p = s->p + r * ATTENTION_TILE, *d_p = s->d_p + r * ATTENTION_TILE;
        v16 lse = v_set(a->lse[first + r]), dot = v_set(a->dots[first + r]);
        for (int64_t j = 0; j < s->columns; j += V_LANES) {
            v16_mask mask = v_first((int)kernel_least(seen > j ? seen - j : 0, V_LANES));
            v16 x = v_exp(v_sub(v_mul(v_load(p + j), v_set(a->scale)), lse));
            v16 d = v_mul(v_mul(x, v_sub(v_load(d_p + j), dot)), v_set(a->scale));
            v_store(p + j, v_select(mask, x, v_zero()));
            v_store(d_p + j, v_select(mask, d, v_zero()));
        }
    }
}

/* The share of one query tile in d_k, d_v and the share of the key tile in its d_q. */
static void attention_grad_tile(const struct attention *a, struct attention_grad_state *s,
                                int64_t head, int64_t query)
{
    int rows = (int)kernel_least(ATTENTION_TILE, a->context - query);
    int64_t q_at = attention_q_at(a, s->b, query, head), d = a->head_dim;
    int64_t out_at = attention_out_at(a, s->b, query, head), out_width = a->heads * d;
    int64_t k_at = attention_k_at(a, s->b, s->key, s->group);
    int64_t v_at = attention_v_at(a, s->b, s->key, s->group);
    struct gemm scores = {.m = rows, .n = s->columns, .k = d, .c = s->p, .ldc = ATTENTION_TILE};
    struct gemm d_p = {.m = rows, .n = s->columns, .k = d, .c = s->d_p, .ldc = ATTENTION_TILE};
    struct gemm d_v = {.m = s->columns, .n = d, .k = rows, .c = s->d_v, .ldc = d};
    struct gemm d_k = {.m = s->columns, .n = d, .k = rows, .c = s->d_k, .ldc = d};
    struct gemm d_q = {.m = rows, .n = d, .k = s->columns, .ldc = a->width};

    scores.a = attention_rows(a->qkv, a->type, q_at, a->width, false);
    scores.b = attention_rows(a->qkv, a->type, k_at, a->width, true);
    gemm_small(&scores, s->packed);
    d_p.a = attention_rows(a->d_out, a->d_type, out_at, out_width, false);
    d_p.b = attention_rows(a->qkv, a->type, v_at, a->width, true);
    gemm_small(&d_p, s->packed);
    attention_grad_scores(a, s, head, query, rows);
    d_v.a = attention_tile(s->p, ATTENTION_TILE, true);
    d_v.b = attention_rows(a->d_out, a->d_type, out_at, out_width, false);
    d_v.accumulate = true;
    gemm_small(&d_v, s->packed);
    d_k.a = attention_tile(s->d_p, ATTENTION_TILE, true);
    d_k.b = attention_rows(a->qkv, a->type, q_at, a->width, false);
    d_k.accumulate = true;
    gemm_small(&d_k, s->packed);
    d_q.a = attention_tile(s->d_p, ATTENTION_TILE, false);
    d_q.b = attention_rows(a->qkv, a->type, k_at, a->width, false);
    d_q.c = (float *)a->d_qkv + q_at;
    d_q.accumulate = s->key > 0;
    gemm_small(&d_q, s->packed);
}

static void attention_grad_store(const struct attention *a, int64_t at, const float *tile,
                                 int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < a->head_dim; j += V_LANES)
            v_store_n((float *)a->d_qkv + at + r * a->width + j, a->head_dim - j,
                      v_load_n(tile + r * a->head_dim + j, a->head_dim - j));
}

static void attention_grad_task(void *context, int64_t task, int thread)
{
    const struct attention *a = context;
    int64_t share = a->heads / a->kv_heads;
    struct attention_grad_state s = {.b = task / a->kv_heads, .group = task % a->kv_heads};
    size_t tile_bytes = (size_t)(ATTENTION_TILE * a->head_dim) * sizeof(float);

    s.p = cpu_thread_buffer(a->cpu, thread);
    s.d_p = s.p + ATTENTION_TILE * ATTENTION_TILE;
    s.d_k = s.d_p + ATTENTION_TILE * ATTENTION_TILE;
    s.d_v = s.d_k + ATTENTION_TILE * ATTENTION_HEAD_MAX;
    s.packed = s.d_v + ATTENTION_TILE * ATTENTION_HEAD_MAX;
    for (s.key = 0; s.key < a->context; s.key += ATTENTION_TILE) {
        s.columns = kernel_least(ATTENTION_TILE, a->context - s.key);
        memset(s.d_k, 0, tile_bytes);
        memset(s.d_v, 0, tile_bytes);
        for (int64_t head = s.group * share; head < (s.group + 1) * share; head++)
            for (int64_t query = a->causal ? s.key : 0; query < a->context; query += ATTENTION_TILE)
                attention_grad_tile(a, &s, head, query);
        attention_grad_store(a, attention_k_at(a, s.b, s.key, s.group), s.d_k, s.columns);
        attention_grad_store(a, attention_v_at(a, s.b, s.key, s.group), s.d_v, s.columns);
    }
}

/* A gradient in 16 bits is made in fp32, in scratch, and rounded once. */
struct attention_narrow {
    const float *wide;
    void *out;
    enum program_type type;
    int64_t count;
};

static void attention_narrow_task(void *context, int64_t task, int thread)
{
    const struct attention_narrow *s = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, s->count);

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES)
        typed_store_n(s->out, s->type, i, to - i, v_load_n(s->wide + i, to - i));
}

static int attention_grad_kernel(struct backend *backend, const struct kernel_call *call,
                                 struct fleet_error *err)
{
    struct attention_narrow narrow = {.out = call->out[0],
                                      .type = kernel_out_type(call, 0),
                                      .count = program_var_elements(kernel_out(call, 0))};
    int64_t narrow_at =
        (program_var_elements(kernel_in(call, 3)) + V_LANES - 1) / V_LANES * V_LANES;
    struct attention a;

    if (attention_init(&a, cpu_backend(backend), call, 1, err) < 0)
        return -ENOTSUP;
    a.d_out = call->in[0];
    a.d_type = kernel_in_type(call, 0);
    a.out = (void *)(uintptr_t)call->in[2]; /* read only here, as is lse */
    a.out_type = kernel_in_type(call, 2);
    a.lse = (float *)(uintptr_t)call->in[3];
    a.dots = call->scratch;
    a.d_qkv = narrow.type == PROGRAM_FP32 ? call->out[0] : (void *)(a.dots + narrow_at);
    narrow.wide = a.d_qkv;
    cpu_parallel(a.cpu, a.batch * a.heads, attention_dots_task, &a);
    cpu_parallel(a.cpu, a.batch * a.kv_heads, attention_grad_task, &a);
    if (narrow.type != PROGRAM_FP32)
        cpu_parallel(a.cpu, kernel_pieces(narrow.count, KERNEL_TASK_ELEMENTS),
                     attention_narrow_task, &narrow);
    return 0;
}

#endif
