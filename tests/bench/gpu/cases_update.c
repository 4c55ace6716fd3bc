/* SPDX-License-Identifier: Apache-2.0 */

/* What runs once an update, on all parameters of the model. */
#include <stdlib.h>

#include "tests/bench/gpu/bench.h"

#define PARAMETERS_MAX 512
#define TREE_LEAVES    8

/* Elements of each parameter of a GPT, in the order of the model; returns their number. */
static int parameters_of(const struct bench_sizes *s, int64_t *counts)
{
    const int64_t w = s->gpt.width;
    const int64_t layer[] = {w, w, 3 * w * w, 3 * w, w * w,     w,
                             w, w, 4 * w * w, 4 * w, 4 * w * w, w};
    int count = 0;

    counts[count++] = s->gpt.vocabulary * w;
    counts[count++] = s->gpt.context * w;
    for (int64_t l = 0; l < s->gpt.layers && count + 14 <= PARAMETERS_MAX; l++)
        for (size_t i = 0; i < sizeof(layer) / sizeof(layer[0]); i++)
            counts[count++] = layer[i];
    counts[count++] = w;
    counts[count++] = w;
    return count;
}

static int64_t blocks_of(int64_t count)
{
    return (count + FLEET_CUDA_BLOCK - 1) / FLEET_CUDA_BLOCK;
}

static int64_t total_of(const struct bench_sizes *s)
{
    int64_t counts[PARAMETERS_MAX], total = 0;

    for (int i = parameters_of(s, counts) - 1; i >= 0; i--)
        total += counts[i];
    return total;
}

static const struct fleet_cuda_scalars *scalars_of(struct bench_arena *arena)
{
    struct fleet_cuda_scalars scalars = {
        .update_1based = 10, .gradient_scale = 1, .learning_rate = 1e-4, .votes = 1, .world = 1};

    return bench_table(arena, &scalars, sizeof(scalars));
}

/* All tensors in one launch; number 1: with a copy of the weights in bf16. */
static void adamw(struct bench_arena *arena, const struct bench_sizes *s,
                  const struct bench_case *c, struct bench_set *set)
{
    struct fleet_cuda_parameter *rows = calloc(PARAMETERS_MAX, sizeof(*rows));
    int64_t counts[PARAMETERS_MAX];
    struct fleet_cuda_optimizer *o = &set->optimizer;

    if (!rows)
        abort();
    o->kind = OP_ADAMW;
    o->parameter_count = parameters_of(s, counts);
    for (int i = 0; i < o->parameter_count; i++) {
        rows[i] = (struct fleet_cuda_parameter){
            .param = bench_random(arena, PROGRAM_FP32, counts[i]),
            .state = {bench_random(arena, PROGRAM_FP32, counts[i]),
                      bench_positive(arena, counts[i])},
            .gradient = bench_random(arena, PROGRAM_FP32, counts[i]),
            .narrow = c->number ? bench_room(arena, (size_t)counts[i] * 2) : NULL,
            .narrow_type = c->number ? PROGRAM_BF16 : PROGRAM_FP32,
            .count = counts[i],
            .first_block = o->block_count,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .epsilon = 1e-8,
            .coefficient = 0.1,
            .rescale = 1};
        o->block_count += blocks_of(counts[i]);
    }
    o->parameters = bench_table(arena, rows, (size_t)o->parameter_count * sizeof(*rows));
    o->scalars = scalars_of(arena);
    o->scratch = bench_room(arena, gpu_scratch_optimizer(o->parameter_count, o->block_count));
    set->bytes = (double)total_of(s) * (c->number ? 30.0 : 28.0);
    free(rows);
}

static void grad_norm(struct bench_arena *arena, const struct bench_sizes *s,
                      const struct bench_case *c, struct bench_set *set)
{
    struct fleet_cuda_gradient rows[PARAMETERS_MAX] = {0};
    int64_t counts[PARAMETERS_MAX];
    struct fleet_cuda_grad_norm *n = &set->grad_norm;

    (void)c;
    n->tensor_count = parameters_of(s, counts);
    for (int i = 0; i < n->tensor_count; i++) {
        rows[i] = (struct fleet_cuda_gradient){.data = bench_random(arena, PROGRAM_FP32, counts[i]),
                                               .count = counts[i],
                                               .first_block = n->block_count};
        n->block_count += blocks_of(counts[i]);
    }
    n->tensors = bench_table(arena, rows, (size_t)n->tensor_count * sizeof(rows[0]));
    n->scalars = scalars_of(arena);
    n->norms = bench_room(arena, (size_t)(n->tensor_count + 1) * sizeof(float));
    n->scratch = bench_room(arena, (size_t)(n->block_count + n->tensor_count) * sizeof(double));
    set->bytes = 4.0 * (double)total_of(s);
}

static void check_finite(struct bench_arena *arena, const struct bench_sizes *s,
                         const struct bench_case *c, struct bench_set *set)
{
    float unscale = 0.999999f; /* again and again over the same numbers */
    uint64_t table = 0;

    __builtin_memcpy(&table, &unscale, sizeof(unscale));
    set->check_finite =
        (struct fleet_cuda_check_finite){.x = bench_random(arena, PROGRAM_FP32, total_of(s)),
                                         .count = total_of(s),
                                         .flag = bench_room(arena, sizeof(float))};
    if (c->number)
        set->check_finite.unscale = bench_table(arena, &table, sizeof(table));
    set->bytes = (c->number ? 8.0 : 4.0) * (double)total_of(s);
}

static void accumulate(struct bench_arena *arena, const struct bench_sizes *s,
                       const struct bench_case *c, struct bench_set *set)
{
    (void)c;
    set->accumulate =
        (struct bench_accumulate){.accumulator = bench_random(arena, PROGRAM_FP32, total_of(s)),
                                  .addend = bench_random(arena, PROGRAM_FP32, total_of(s)),
                                  .count = total_of(s)};
    set->bytes = 12.0 * (double)total_of(s);
}

/* ((0+1)+(2+3))+((4+5)+(6+7)) of an eighth of the model each. */
static void tree_sum(struct bench_arena *arena, const struct bench_sizes *s,
                     const struct bench_case *c, struct bench_set *set)
{
    static const int16_t walk[] = {0, 1, -1, 2, 3, -1, -1, 4, 5, -1, 6, 7, -1, -1, -1};
    struct fleet_cuda_tree_sum *t = &set->tree_sum;

    (void)c;
    t->count = total_of(s) / TREE_LEAVES;
    t->walk_count = sizeof(walk) / sizeof(walk[0]);
    __builtin_memcpy(t->walk, walk, sizeof(walk));
    for (int i = 0; i < TREE_LEAVES; i++)
        t->nodes[i] = bench_random(arena, PROGRAM_FP32, t->count);
    t->to = bench_room(arena, (size_t)t->count * sizeof(float));
    set->bytes = 4.0 * (TREE_LEAVES + 1) * (double)t->count;
}

/* One element of a thousand of the largest tensor, exactly. Reads the gradient, u and v. */
static void dgc_select(struct bench_arena *arena, const struct bench_sizes *s,
                       const struct bench_case *c, struct bench_set *set)
{
    struct fleet_cuda_dgc *d = &set->dgc;

    (void)c;
    d->count = (int64_t)s->gpt.vocabulary * s->gpt.width;
    d->gradient = bench_random(arena, PROGRAM_FP32, d->count);
    d->u = bench_random(arena, PROGRAM_FP32, d->count);
    d->v = bench_random(arena, PROGRAM_FP32, d->count);
    d->momentum = 0.9F;
    d->rescale = d->ranks = 1;
    d->kept = d->wanted = d->count > 1000 ? d->count / 1000 : 1;
    d->stride = 2 * d->kept;
    d->part = bench_room(arena, (size_t)d->stride * sizeof(uint32_t));
    d->scalars = scalars_of(arena);
    d->scratch = bench_room(arena, gpu_scratch_dgc(d->count));
    set->bytes = 12.0 * (double)d->count;
}

static cudaError_t launch_dgc_select(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_dgc_select(stream, &set->dgc);
}

static cudaError_t launch_optimizer(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_optimizer(stream, &set->optimizer);
}

static cudaError_t launch_grad_norm(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_grad_norm(stream, &set->grad_norm);
}

static cudaError_t launch_check_finite(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_check_finite(stream, &set->check_finite);
}

static cudaError_t launch_accumulate(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_accumulate(stream, set->accumulate.accumulator, set->accumulate.addend,
                                 set->accumulate.count);
}

static cudaError_t launch_tree_sum(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_tree_sum(stream, &set->tree_sum);
}

const struct bench_case bench_cases_update[] = {
    {"adamw", PROGRAM_FP32, 0, adamw, NULL, launch_optimizer},
    {"adamw.narrow", PROGRAM_FP32, 1, adamw, NULL, launch_optimizer},
    {"grad_norm", PROGRAM_FP32, 0, grad_norm, NULL, launch_grad_norm},
    {"check_finite", PROGRAM_FP32, 0, check_finite, NULL, launch_check_finite},
    {"check_finite.unscale", PROGRAM_FP32, 1, check_finite, NULL, launch_check_finite},
    {"accumulate", PROGRAM_FP32, 0, accumulate, NULL, launch_accumulate},
    {"tree_sum", PROGRAM_FP32, 0, tree_sum, NULL, launch_tree_sum},
    {"dgc.select", PROGRAM_FP32, 0, dgc_select, NULL, launch_dgc_select},
    {0},
};
