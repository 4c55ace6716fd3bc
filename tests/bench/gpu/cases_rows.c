/* SPDX-License-Identifier: Apache-2.0 */

/* Operators on rows: norms, sums, embeddings, the loss. */
#include "tests/bench/gpu/bench.h"

/* As in a program of precision bf16: the stream of residuals is fp32, gradients from products are
 * of the case's type. */
static void norm(struct bench_arena *arena, const struct bench_sizes *s, const struct bench_case *c,
                 struct bench_set *set)
{
    int64_t rows = bench_tokens(s), count = rows * s->gpt.width;

    set->norm =
        (struct fleet_cuda_norm){.x = bench_random(arena, PROGRAM_FP32, count),
                                 .y = bench_room(arena, (size_t)count * bench_bytes(c->type)),
                                 .y_type = c->type,
                                 .scale = bench_positive(arena, s->gpt.width),
                                 .shift = bench_random(arena, PROGRAM_FP32, s->gpt.width),
                                 .mean = bench_room(arena, (size_t)rows * sizeof(float)),
                                 .rstd = bench_room(arena, (size_t)rows * sizeof(float)),
                                 .epsilon = 1e-5f,
                                 .rows = rows,
                                 .columns = s->gpt.width};
    set->bytes = (double)count * (4.0 + (double)bench_bytes(c->type));
}

static void norm_grad(struct bench_arena *arena, const struct bench_sizes *s,
                      const struct bench_case *c, struct bench_set *set)
{
    int64_t count = bench_tokens(s) * s->gpt.width;

    norm(arena, s, c, set);
    set->norm_grad = (struct fleet_cuda_norm_grad){
        .d_y = bench_random(arena, c->type, count),
        .x = set->norm.x,
        .d_type = c->type,
        .scale = set->norm.scale,
        .mean = set->norm.mean,
        .rstd = set->norm.rstd,
        .d_x = bench_room(arena, (size_t)count * sizeof(float)),
        .d_scale = bench_room(arena, (size_t)s->gpt.width * sizeof(float)),
        .d_shift = bench_room(arena, (size_t)s->gpt.width * sizeof(float)),
        .rows = set->norm.rows,
        .columns = s->gpt.width,
        .scratch = bench_room(arena, gpu_scratch_norm_grad(set->norm.rows, s->gpt.width))};
    set->bytes = (double)count * (8.0 + (double)bench_bytes(c->type));
}

static void column_sum(struct bench_arena *arena, const struct bench_sizes *s,
                       const struct bench_case *c, struct bench_set *set)
{
    int64_t rows = bench_tokens(s), columns = 4 * s->gpt.width;

    set->column_sum = (struct fleet_cuda_column_sum){
        .x = bench_random(arena, c->type, rows * columns),
        .out = bench_room(arena, (size_t)columns * sizeof(float)),
        .x_type = c->type,
        .rows = rows,
        .columns = columns,
        .scratch = bench_room(arena, gpu_scratch_column_sum(rows, columns))};
    set->bytes = (double)(rows * columns) * (double)bench_bytes(c->type);
}

static void embedding(struct bench_arena *arena, const struct bench_sizes *s,
                      const struct bench_case *c, struct bench_set *set)
{
    int64_t tokens = bench_tokens(s);

    set->embedding = (struct fleet_cuda_embedding){
        .ids = bench_numbers(arena, tokens),
        .table = bench_random(arena, PROGRAM_FP32, s->gpt.vocabulary * s->gpt.width),
        .position = bench_random(arena, PROGRAM_FP32, s->gpt.context * s->gpt.width),
        .out = bench_room(arena, (size_t)(tokens * s->gpt.width) * bench_bytes(c->type)),
        .out_type = c->type,
        .batch = s->gpt.batch,
        .context = s->gpt.context,
        .columns = s->gpt.width,
        .rows = s->gpt.vocabulary,
        .fault = bench_zeros(arena, sizeof(uint64_t))};
    /* a row of the table a token; the positions' rows once */
    set->bytes = (double)(tokens * s->gpt.width) * (4.0 + (double)bench_bytes(c->type)) +
                 (double)(s->gpt.context * s->gpt.width) * 4.0;
}

static void embedding_grad(struct bench_arena *arena, const struct bench_sizes *s,
                           const struct bench_case *c, struct bench_set *set)
{
    int64_t tokens = bench_tokens(s);

    set->embedding_grad = (struct fleet_cuda_embedding_grad){
        .ids = bench_numbers(arena, tokens),
        .d_out = bench_random(arena, c->type, tokens * s->gpt.width),
        .d_type = c->type,
        .d_table = bench_room(arena, (size_t)(s->gpt.vocabulary * s->gpt.width) * sizeof(float)),
        .d_position = bench_room(arena, (size_t)(s->gpt.context * s->gpt.width) * sizeof(float)),
        .batch = s->gpt.batch,
        .context = s->gpt.context,
        .columns = s->gpt.width,
        .rows = s->gpt.vocabulary,
        .positions = s->gpt.context,
        .scratch = bench_room(
            arena, gpu_scratch_embedding_grad(s->gpt.batch, s->gpt.context, s->gpt.vocabulary))};
    set->bytes = (double)(tokens * s->gpt.width) * (double)bench_bytes(c->type) +
                 (double)((s->gpt.vocabulary + s->gpt.context) * s->gpt.width) * 4.0;
}

static void cross_entropy(struct bench_arena *arena, const struct bench_sizes *s,
                          const struct bench_case *c, struct bench_set *set)
{
    int64_t rows = bench_tokens(s), count = rows * s->gpt.vocabulary;

    set->cross_entropy = (struct fleet_cuda_cross_entropy){
        .logits = bench_random(arena, c->type, count),
        .targets = bench_numbers(arena, rows),
        .lse = bench_room(arena, (size_t)rows * 2 * sizeof(float)),
        .row_loss = bench_room(arena, (size_t)rows * sizeof(float)),
        .loss = bench_room(arena, sizeof(float)),
        .counted = bench_room(arena, sizeof(int64_t)),
        .type = c->type,
        .d_type = c->type,
        .rows = rows,
        .columns = s->gpt.vocabulary,
        .ignore_index = -100,
        .fault = bench_zeros(arena, sizeof(uint64_t))};
    set->bytes = (double)count * (double)bench_bytes(c->type);
}

static void cross_entropy_grad(struct bench_arena *arena, const struct bench_sizes *s,
                               const struct bench_case *c, struct bench_set *set)
{
    cross_entropy(arena, s, c, set);
    set->cross_entropy.d_logits =
        bench_room(arena, (size_t)(bench_tokens(s) * s->gpt.vocabulary) * bench_bytes(c->type));
    set->bytes *= 2;
}

static cudaError_t launch_norm(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_norm(stream, &set->norm);
}

static cudaError_t launch_norm_grad(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_norm_grad(stream, &set->norm_grad);
}

static cudaError_t launch_column_sum(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_column_sum(stream, &set->column_sum);
}

static cudaError_t launch_embedding(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_embedding(stream, &set->embedding);
}

static cudaError_t launch_embedding_grad(cudaStream_t stream, const struct bench_set *set)
{
    return fleet_cuda_embedding_grad(stream, &set->embedding_grad);
}

static cudaError_t launch_cross_entropy(cudaStream_t stream, const struct bench_set *set)
{
    cudaError_t status = fleet_cuda_cross_entropy_count(stream, &set->cross_entropy);

    if (status == cudaSuccess)
        status = fleet_cuda_cross_entropy_rows(stream, &set->cross_entropy);
    return status == cudaSuccess ? fleet_cuda_cross_entropy_loss(stream, &set->cross_entropy)
                                 : status;
}

static cudaError_t launch_cross_entropy_grad(cudaStream_t stream, const struct bench_set *set)
{
    cudaError_t status = fleet_cuda_cross_entropy_count(stream, &set->cross_entropy);

    return status == cudaSuccess ? fleet_cuda_cross_entropy_grad(stream, &set->cross_entropy)
                                 : status;
}

const struct bench_case bench_cases_rows[] = {
    {"layer_norm", PROGRAM_FP32, 0, norm, NULL, launch_norm},
    {"layer_norm", PROGRAM_BF16, 0, norm, NULL, launch_norm},
    {"layer_norm.gradient", PROGRAM_FP32, 0, norm_grad, launch_norm, launch_norm_grad},
    {"layer_norm.gradient", PROGRAM_BF16, 0, norm_grad, launch_norm, launch_norm_grad},
    {"bias.gradient", PROGRAM_FP32, 0, column_sum, NULL, launch_column_sum},
    {"bias.gradient", PROGRAM_BF16, 0, column_sum, NULL, launch_column_sum},
    {"embedding", PROGRAM_FP32, 0, embedding, NULL, launch_embedding},
    {"embedding.gradient", PROGRAM_FP32, 0, embedding_grad, NULL, launch_embedding_grad},
    {"cross_entropy", PROGRAM_FP32, 0, cross_entropy, NULL, launch_cross_entropy},
    {"cross_entropy", PROGRAM_BF16, 0, cross_entropy, NULL, launch_cross_entropy},
    {"cross_entropy.gradient", PROGRAM_FP32, 0, cross_entropy_grad, launch_cross_entropy,
     launch_cross_entropy_grad},
    {"cross_entropy.gradient", PROGRAM_BF16, 0, cross_entropy_grad, launch_cross_entropy,
     launch_cross_entropy_grad},
    {0},
};
