/* SPDX-License-Identifier: Apache-2.0 */

/* Matrix products and attention. */
#include "tests/bench/gpu/bench.h"

/* A layer's products: y = x·w + bias, its gradient by x, its gradient by w. */
enum {
    FORWARD,
    GRADIENT_X,
    GRADIENT_W
};
enum {
    QKV,
    PROJECTION,
    UP,
    DOWN,
    CLASSIFIER
};
#define PRODUCT(layer, what) ((layer)*3 + (what))

static struct fleet_cuda_matrix matrix(struct bench_arena *arena, enum program_type type,
                                       int64_t rows, int64_t columns, bool turned)
{
    return (struct fleet_cuda_matrix){.data = bench_random(arena, type, rows * columns),
                                      .type = type,
                                      .row = turned ? 1 : columns,
                                      .column = turned ? columns : 1};
}

static void layer_sizes(const struct bench_sizes *s, int layer, int64_t *in, int64_t *out)
{
    const int64_t ins[] = {s->gpt.width, s->gpt.width, s->gpt.width, 4 * s->gpt.width,
                           s->gpt.width};
    const int64_t outs[] = {3 * s->gpt.width, s->gpt.width, 4 * s->gpt.width, s->gpt.width,
                            s->gpt.vocabulary};

    *in = ins[layer];
    *out = outs[layer];
}

/* The classifier's weight is the embedding's table, [out, in]; those of other layers are
 * [in, out]. Weights' gradients are fp32 always. */
static void product(struct bench_arena *arena, const struct bench_sizes *s,
                    const struct bench_case *c, struct bench_set *set)
{
    int layer = c->number / 3, what = c->number % 3;
    bool turned = layer == CLASSIFIER;
    int64_t rows = bench_tokens(s), in, out;
    struct fleet_cuda_gemm *g = &set->gemm;

    layer_sizes(s, layer, &in, &out);
    g->batch = 1;
    g->c_type = what == GRADIENT_W ? PROGRAM_FP32 : c->type;
    if (what == FORWARD) {
        g->m = rows, g->n = out, g->k = in;
        g->a = matrix(arena, c->type, rows, in, false);
        g->b = matrix(arena, c->type, turned ? out : in, turned ? in : out, turned);
        g->bias = turned ? NULL : bench_random(arena, PROGRAM_FP32, out);
        if (layer == UP) {
            g->activation = OP_ACTIVATION_GELU;
            g->pre = bench_room(arena, (size_t)(rows * out) * bench_bytes(c->type));
        }
    } else if (what == GRADIENT_X) {
        g->m = rows, g->n = in, g->k = out;
        g->a = matrix(arena, c->type, rows, out, false);
        g->b = matrix(arena, c->type, turned ? out : in, turned ? in : out, !turned);
    } else {
        g->m = turned ? out : in, g->n = turned ? in : out, g->k = rows;
        g->a = matrix(arena, c->type, rows, g->m, true);
        g->b = matrix(arena, c->type, rows, g->n, false);
    }
    g->c = bench_room(arena, (size_t)(g->m * g->n) * bench_bytes(g->c_type));
    set->flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
}

/* Codes of a layer's activations in both orders; it is read for the greatest element, and again. */
static void codes(struct bench_arena *arena, const struct bench_sizes *s,
                  const struct bench_case *c, struct bench_set *set)
{
    int64_t rows = bench_tokens(s), columns = 4 * s->gpt.width, count = rows * columns;
    size_t bytes = gpu_scratch_fp8(count, 1);

    set->fp8.count = 1;
    set->fp8.tensors[0].x = bench_random(arena, c->type, count);
    set->fp8.tensors[0].x_type = c->type;
    set->fp8.tensors[0].rows = rows;
    set->fp8.tensors[0].columns = columns;
    set->fp8.tensors[0].type = FP8_E4M3;
    set->fp8.tensors[0].straight = bench_room(arena, bytes);
    set->fp8.tensors[0].turned = bench_room(arena, bytes);
    set->fp8.tensors[0].scale = bench_room(arena, sizeof(struct fleet_cuda_fp8_scale));
    set->bytes = (double)count * (2.0 * (double)bench_bytes(c->type) + 2.0);
}

static void attention(struct bench_arena *arena, const struct bench_sizes *s,
                      const struct bench_case *c, struct bench_set *set)
{
    int64_t tokens = bench_tokens(s);
    struct fleet_cuda_attention *a = &set->attention;

    *a = (struct fleet_cuda_attention){
        .qkv = bench_random(arena, c->type, tokens * 3 * s->gpt.width),
        .out = bench_room(arena, (size_t)(tokens * s->gpt.width) * bench_bytes(c->type)),
        .lse = bench_room(arena, (size_t)(tokens * s->gpt.heads) * sizeof(float)),
        .type = c->type,
        .out_type = c->type,
        .d_type = c->type,
        .d_qkv_type = c->type,
        .batch = s->gpt.batch,
        .context = s->gpt.context,
        .heads = s->gpt.heads,
        .kv_heads = s->gpt.heads,
        .head_dim = s->gpt.width / s->gpt.heads,
        .causal = true};
    /* 4·T²·D a head, half of it below the diagonal */
    set->flops = 2.0 * (double)tokens * (double)s->gpt.context * (double)s->gpt.width;
}

/* The floor has five products where the forward pass has two. */
static void attention_grad(struct bench_arena *arena, const struct bench_sizes *s,
                           const struct bench_case *c, struct bench_set *set)
{
    int64_t tokens = bench_tokens(s);

    attention(arena, s, c, set);
    set->attention.d_out = bench_random(arena, c->type, tokens * s->gpt.width);
    set->attention.d_qkv =
        bench_room(arena, (size_t)(tokens * 3 * s->gpt.width) * bench_bytes(c->type));
    set->attention.scratch =
        bench_room(arena, gpu_scratch_attention_grad(set->attention.batch, set->attention.heads,
                                                     set->attention.context));
    set->flops *= 2.5;
}

static cudaError_t launch_gemm(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_gemm(stream, &set->gemm);
}

static cudaError_t launch_codes(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_fp8(stream, &set->fp8);
}

static cudaError_t launch_attention(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_attention(stream, &set->attention);
}

static cudaError_t launch_attention_grad(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_attention_grad(stream, &set->attention);
}

#define PRODUCTS(name, layer, type)                                                   \
    {name ".forward", type, PRODUCT(layer, FORWARD), product, NULL, launch_gemm},     \
        {name ".by_x", type, PRODUCT(layer, GRADIENT_X), product, NULL, launch_gemm}, \
    {                                                                                 \
        name ".by_w", type, PRODUCT(layer, GRADIENT_W), product, NULL, launch_gemm    \
    }

const struct bench_case bench_cases_products[] = {
    PRODUCTS("gemm.qkv", QKV, PROGRAM_BF16),
    PRODUCTS("gemm.projection", PROJECTION, PROGRAM_BF16),
    PRODUCTS("gemm.up", UP, PROGRAM_BF16),
    PRODUCTS("gemm.down", DOWN, PROGRAM_BF16),
    PRODUCTS("gemm.classifier", CLASSIFIER, PROGRAM_BF16),
    PRODUCTS("gemm.qkv", QKV, PROGRAM_FP32),
    PRODUCTS("gemm.up", UP, PROGRAM_FP32),
    {"fp8.codes", PROGRAM_BF16, 0, codes, NULL, launch_codes},
    {"attention", PROGRAM_FP32, 0, attention, NULL, launch_attention},
    {"attention", PROGRAM_BF16, 0, attention, NULL, launch_attention},
    {"attention.gradient", PROGRAM_FP32, 0, attention_grad, launch_attention,
     launch_attention_grad},
    {"attention.gradient", PROGRAM_BF16, 0, attention_grad, launch_attention,
     launch_attention_grad},
    {0},
};
