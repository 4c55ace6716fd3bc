/* SPDX-License-Identifier: Apache-2.0 */

/* Operators on elements: each operand moved once. */
#include "tests/bench/gpu/bench.h"

enum {
    CAST_TO_BF16,
    CAST_TO_FP32
};

/* An operand of the blocks' widest activation, [tokens, 4·width]. */
static int64_t elements(const struct bench_sizes *s)
{
    return bench_tokens(s) * s->gpt.width * 4;
}

static void describe(struct bench_arena *arena, int64_t count, int inputs, enum program_type in,
                     enum program_type out, struct bench_set *set)
{
    struct fleet_cuda_elementwise *e = &set->elementwise;

    e->count = count;
    for (int i = 0; i < inputs; i++) {
        e->in[i] = bench_random(arena, in, count);
        e->in_type[i] = in;
    }
    e->out[0] = bench_room(arena, (size_t)count * bench_bytes(out));
    e->out_type[0] = out;
    set->bytes =
        (double)count * ((double)inputs * (double)bench_bytes(in) + (double)bench_bytes(out));
}

static void copy(struct bench_arena *arena, const struct bench_sizes *s, const struct bench_case *c,
                 struct bench_set *set)
{
    (void)c;
    set->copy = (struct bench_copy){
        .from = bench_random(arena, PROGRAM_FP32, s->copy_bytes / (int64_t)sizeof(float)),
        .to = bench_room(arena, (size_t)s->copy_bytes),
        .bytes = (size_t)s->copy_bytes};
    set->bytes = 2.0 * (double)s->copy_bytes;
}

static void unary(struct bench_arena *arena, const struct bench_sizes *s,
                  const struct bench_case *c, struct bench_set *set)
{
    describe(arena, elements(s), 1, c->type, c->type, set);
}

static void binary(struct bench_arena *arena, const struct bench_sizes *s,
                   const struct bench_case *c, struct bench_set *set)
{
    describe(arena, elements(s), 2, c->type, c->type, set);
}

static void residual(struct bench_arena *arena, const struct bench_sizes *s,
                     const struct bench_case *c, struct bench_set *set)
{
    describe(arena, bench_tokens(s) * s->gpt.width, 2, c->type, c->type, set);
}

/* A bias of 4·width, the same for each token. */
static void bias(struct bench_arena *arena, const struct bench_sizes *s, const struct bench_case *c,
                 struct bench_set *set)
{
    describe(arena, elements(s), 1, c->type, c->type, set);
    set->elementwise.in[1] = bench_random(arena, PROGRAM_FP32, 4 * s->gpt.width);
    set->elementwise.in_type[1] = PROGRAM_FP32;
    set->elementwise.period = 4 * s->gpt.width;
}

static void cast(struct bench_arena *arena, const struct bench_sizes *s, const struct bench_case *c,
                 struct bench_set *set)
{
    bool narrow = c->number == CAST_TO_BF16;

    describe(arena, elements(s), 1, narrow ? PROGRAM_FP32 : PROGRAM_BF16,
             narrow ? PROGRAM_BF16 : PROGRAM_FP32, set);
}

static void dropout(struct bench_arena *arena, const struct bench_sizes *s,
                    const struct bench_case *c, struct bench_set *set)
{
    struct fleet_cuda_scalars scalars = {.step = 3, .first_sample = 16};
    int64_t count = bench_tokens(s) * s->gpt.width;

    set->dropout =
        (struct fleet_cuda_dropout){.x = bench_random(arena, c->type, count),
                                    .y = bench_room(arena, (size_t)count * bench_bytes(c->type)),
                                    .x_type = c->type,
                                    .y_type = c->type,
                                    .count = count,
                                    .per_sample = s->gpt.context * s->gpt.width,
                                    .key = {1, 2},
                                    .rate = 0.1,
                                    .scalars = bench_table(arena, &scalars, sizeof(scalars))};
    set->bytes = 2.0 * (double)count * (double)bench_bytes(c->type);
}

static cudaError_t launch_copy(cudaStream_t stream, const struct bench_set *set)
{
    return cudaMemcpyAsync(set->copy.to, set->copy.from, set->copy.bytes, cudaMemcpyDeviceToDevice,
                           stream);
}

#define LAUNCH(name, member)                                                         \
    static cudaError_t launch_##name(cudaStream_t stream, const struct bench_set *s) \
    {                                                                                \
        return fleet_cuda_##name(stream, &s->member);                                \
    }
LAUNCH(add, elementwise)
LAUNCH(cast, elementwise)
LAUNCH(gelu, elementwise)
LAUNCH(gelu_grad, elementwise)
LAUNCH(swiglu, elementwise)
LAUNCH(dropout, dropout)

const struct bench_case bench_cases_elements[] = {
    {"copy", PROGRAM_FP32, 0, copy, NULL, launch_copy},
    {"add.residual", PROGRAM_FP32, 0, residual, NULL, launch_add},
    {"add.residual", PROGRAM_BF16, 0, residual, NULL, launch_add},
    {"add.bias", PROGRAM_BF16, 0, bias, NULL, launch_add},
    {"gelu", PROGRAM_FP32, 0, unary, NULL, launch_gelu},
    {"gelu", PROGRAM_BF16, 0, unary, NULL, launch_gelu},
    {"gelu.gradient", PROGRAM_FP32, 0, binary, NULL, launch_gelu_grad},
    {"gelu.gradient", PROGRAM_BF16, 0, binary, NULL, launch_gelu_grad},
    {"swiglu", PROGRAM_BF16, 0, binary, NULL, launch_swiglu},
    {"dropout", PROGRAM_FP32, 0, dropout, NULL, launch_dropout},
    {"dropout", PROGRAM_BF16, 0, dropout, NULL, launch_dropout},
    {"cast.narrow", PROGRAM_BF16, CAST_TO_BF16, cast, NULL, launch_cast},
    {"cast.widen", PROGRAM_BF16, CAST_TO_FP32, cast, NULL, launch_cast},
    {0},
};
