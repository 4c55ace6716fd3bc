/* SPDX-License-Identifier: Apache-2.0 */

/*
 * LINEAR_CROSS_ENTROPY, in chunks of GPU_CLASSIFIER_ROWS rows: the logits of a chunk lie in
 * scratch, their gradient takes their place, and both products read it there. The weight's gradient
 * is summed over the chunks in the order of the rows. If our own kernels multiply, nothing of a row
 * depends on the chunk that it is in.
 */
#include "cuda/operators_internal.h"
#include "cuda/products.h"
#include "libfleet/program/ops/operand.h"

/* Row `first` of [rows, columns], as it lies or turned. */
static struct fleet_cuda_matrix rows_of(const void *data, enum program_type type, int64_t columns,
                                        int64_t first, bool turned)
{
    const char *from = data;

    return (struct fleet_cuda_matrix){.data = from +
                                              (size_t)(first * columns) * program_type_size(type),
                                      .type = type,
                                      .row = turned ? 1 : columns,
                                      .column = turned ? columns : 1};
}

static int64_t words_of(const struct launch *l)
{
    return in(l, 1)->shape[l->attributes->transposed ? 0 : 1];
}

static void *logits_of(const struct launch *l)
{
    return (char *)l->call->scratch + gpu_scratch_before_logits(operand_rows(in(l, 0)));
}

/* An evaluation wants the loss alone. */
static bool wants(const struct launch *l, int output)
{
    return l->call->out[output] != NULL && !(l->call->scalars && l->call->scalars->evaluation);
}

void cuda_classifier_products(const struct launch *l, int64_t first, int64_t rows,
                              struct fleet_cuda_gemm out[3])
{
    bool turned = l->attributes->transposed;
    int64_t k = operand_columns(in(l, 0)), words = words_of(l);
    enum program_type type = in_type(l, 0), d_type = out_type(l, 1);
    struct fleet_cuda_matrix x = rows_of(l->call->in[0], type, k, first, false);
    struct fleet_cuda_matrix x_turned = rows_of(l->call->in[0], type, k, first, true);
    struct fleet_cuda_matrix logits = rows_of(logits_of(l), type, words, 0, false);
    struct fleet_cuda_matrix d_turned = rows_of(logits_of(l), type, words, 0, true);
    const void *w = l->call->in[1];
    int64_t width = turned ? k : words; /* of a row of the weight */

    out[0] = (struct fleet_cuda_gemm){.m = rows,
                                      .n = words,
                                      .k = k,
                                      .a = x,
                                      .b = rows_of(w, type, width, 0, turned),
                                      .c = logits_of(l),
                                      .c_type = type};
    out[1] = (struct fleet_cuda_gemm){.m = rows,
                                      .n = k,
                                      .k = words,
                                      .a = logits,
                                      .b = rows_of(w, type, width, 0, !turned),
                                      .c_type = d_type};
    out[2] = (struct fleet_cuda_gemm){.m = turned ? words : k,
                                      .n = turned ? k : words,
                                      .k = rows,
                                      .a = turned ? d_turned : x_turned,
                                      .b = turned ? x : logits,
                                      .c_type = PROGRAM_FP32,
                                      .accumulates = first > 0};
    for (int i = 0; i < 3; i++)
        out[i].batch = 1;
    if (wants(l, 1))
        out[1].c = (char *)l->call->out[1] + (size_t)(first * k) * program_type_size(d_type);
    if (wants(l, 2))
        out[2].c = l->call->out[2];
}

/* Of `rows` rows from row `first` on. Scratch: the number of rows that count, the loss of each row,
 * what a chunk knows of its rows, its logits. */
static struct fleet_cuda_cross_entropy chunk_of(const struct launch *l, int64_t first, int64_t rows)
{
    float *row_loss = (float *)l->call->scratch + GPU_SCRATCH_LOSS_FRONT;

    return (struct fleet_cuda_cross_entropy){.logits = logits_of(l),
                                             .targets = (const int32_t *)l->call->in[2] + first,
                                             .counted = l->call->scratch,
                                             .lse = row_loss + operand_rows(in(l, 0)),
                                             .row_loss = row_loss + first,
                                             .loss = l->call->out[0],
                                             .d_loss = l->call->in[3],
                                             .d_logits = logits_of(l),
                                             .type = in_type(l, 0),
                                             .d_type = in_type(l, 0),
                                             .rows = rows,
                                             .columns = words_of(l),
                                             .ignore_index = l->attributes->ignore_index,
                                             .fault = l->context->fault};
}

static cudaError_t run_chunk(const struct launch *l, int64_t first, int64_t rows)
{
    struct fleet_cuda_cross_entropy c = chunk_of(l, first, rows);
    struct fleet_cuda_gemm g[3];
    cudaError_t status;

    cuda_classifier_products(l, first, rows, g);
    status = products_run(l->context->products, l->stream, &g[0], NULL);
    if (status == cudaSuccess)
        status = fleet_cuda_cross_entropy_rows(l->stream, &c);
    if (status == cudaSuccess && (g[1].c || g[2].c))
        status = fleet_cuda_cross_entropy_grad(l->stream, &c);
    for (int i = 1; i < 3; i++)
        if (status == cudaSuccess && g[i].c)
            status = products_run(l->context->products, l->stream, &g[i], NULL);
    return status;
}

cudaError_t cuda_launch_classifier(const struct launch *l)
{
    int64_t rows = operand_rows(in(l, 0));
    struct fleet_cuda_cross_entropy whole = chunk_of(l, 0, rows);
    cudaError_t status = fleet_cuda_cross_entropy_count(l->stream, &whole);

    for (int64_t first = 0; first < rows && status == cudaSuccess; first += GPU_CLASSIFIER_ROWS)
        status = run_chunk(l, first,
                           rows - first < GPU_CLASSIFIER_ROWS ? rows - first : GPU_CLASSIFIER_ROWS);
    return status == cudaSuccess ? fleet_cuda_cross_entropy_loss(l->stream, &whole) : status;
}
