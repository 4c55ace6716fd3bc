/* SPDX-License-Identifier: Apache-2.0 */

/* Operators on rows: norms, softmax, losses, embeddings. */
#include "cuda/operators_internal.h"
#include "libfleet/program/ops/operand.h"

cudaError_t cuda_launch_norm(const struct launch *l)
{
    bool centred = l->call->op->kind == OP_LAYER_NORM;
    struct fleet_cuda_norm n = {.x = l->call->in[0],
                                .y = l->call->out[0],
                                .x_type = in_type(l, 0),
                                .y_type = out_type(l, 0),
                                .scale = l->call->in[1],
                                .shift = centred ? l->call->in[2] : NULL,
                                .mean = centred ? l->call->out[1] : NULL,
                                .rstd = l->call->out[centred ? 2 : 1],
                                .epsilon = (float)l->attributes->epsilon,
                                .rows = operand_rows(in(l, 0)),
                                .columns = operand_columns(in(l, 0))};

    return fleet_cuda_norm(l->stream, &n);
}

cudaError_t cuda_launch_norm_grad(const struct launch *l)
{
    bool centred = l->call->op->kind == OP_LAYER_NORM_GRAD;
    struct fleet_cuda_norm_grad n = {.d_y = l->call->in[0],
                                     .x = l->call->in[1],
                                     .d_type = in_type(l, 0),
                                     .x_type = in_type(l, 1),
                                     .out_type = out_type(l, 0),
                                     .scale = l->call->in[2],
                                     .mean = centred ? l->call->in[3] : NULL,
                                     .rstd = l->call->in[centred ? 4 : 3],
                                     .d_x = l->call->out[0],
                                     .d_scale = l->call->out[1],
                                     .d_shift = centred ? l->call->out[2] : NULL,
                                     .rows = operand_rows(in(l, 1)),
                                     .columns = operand_columns(in(l, 1)),
                                     .scratch = l->call->scratch};

    return fleet_cuda_norm_grad(l->stream, &n);
}

cudaError_t cuda_launch_column_sum(const struct launch *l, const void *x, enum program_type type,
                                   int i, int64_t rows, int64_t columns, void *scratch)
{
    struct fleet_cuda_column_sum s = {.x = x,
                                      .out = l->call->out[i],
                                      .x_type = type,
                                      .out_type = out_type(l, i),
                                      .rows = rows,
                                      .columns = columns,
                                      .scratch = scratch};

    return fleet_cuda_column_sum(l->stream, &s);
}

cudaError_t cuda_launch_add_grad_b(const struct launch *l)
{
    return cuda_launch_column_sum(l, l->call->in[0], in_type(l, 0), 0, operand_rows(in(l, 0)),
                                  operand_columns(in(l, 0)), l->call->scratch);
}

cudaError_t cuda_launch_softmax(const struct launch *l)
{
    bool back = l->call->op->kind == OP_SOFTMAX_GRAD;
    int x = back ? 1 : 0;
    struct fleet_cuda_softmax s = {.x = l->call->in[x],
                                   .d_y = back ? l->call->in[0] : NULL,
                                   .out = l->call->out[0],
                                   .x_type = in_type(l, x),
                                   .d_type = in_type(l, 0),
                                   .out_type = out_type(l, 0),
                                   .rows = operand_rows(in(l, x)),
                                   .columns = operand_columns(in(l, x))};

    return (back ? fleet_cuda_softmax_grad : fleet_cuda_softmax)(l->stream, &s);
}

/* Of a table or of logits that ranks divide. */
static int64_t first_word(const struct launch *l)
{
    return l->attributes->divided ? l->attributes->first_word : 0;
}

/* Scratch: the number of rows that count, then the loss of each row. */
static struct fleet_cuda_cross_entropy cross_entropy_of(const struct launch *l)
{
    const struct program_var *logits = in(l, 0);

    return (struct fleet_cuda_cross_entropy){.logits = l->call->in[0],
                                             .targets = l->call->in[1],
                                             .counted = l->call->scratch,
                                             .row_loss = (float *)l->call->scratch + 16,
                                             .type = logits->type,
                                             .rows = operand_rows(logits),
                                             .columns = operand_columns(logits),
                                             .ignore_index = l->attributes->ignore_index,
                                             .divided = l->attributes->divided,
                                             .first_word = first_word(l),
                                             .fault = l->context->fault};
}

cudaError_t cuda_launch_cross_entropy(const struct launch *l)
{
    struct fleet_cuda_cross_entropy c = cross_entropy_of(l);
    cudaError_t status;

    c.loss = l->call->out[0];
    c.lse = l->call->out[1];
    c.all_sums = l->call->in[2];
    if (c.all_sums && c.rows > 0)
        c.parts = (int)(in(l, 2)->shape[0] / c.rows);
    status = fleet_cuda_cross_entropy_count(l->stream, &c);
    if (status == cudaSuccess)
        status = c.all_sums ? fleet_cuda_cross_entropy_join(l->stream, &c)
                            : fleet_cuda_cross_entropy_rows(l->stream, &c);
    return status == cudaSuccess ? fleet_cuda_cross_entropy_loss(l->stream, &c) : status;
}

cudaError_t cuda_launch_cross_entropy_sums(const struct launch *l)
{
    struct fleet_cuda_cross_entropy c = cross_entropy_of(l);

    c.sums = l->call->out[0];
    return fleet_cuda_cross_entropy_sums(l->stream, &c);
}

cudaError_t cuda_launch_cross_entropy_grad(const struct launch *l)
{
    struct fleet_cuda_cross_entropy c = cross_entropy_of(l);
    cudaError_t status;

    c.lse = (float *)(uintptr_t)l->call->in[2]; /* read only here */
    c.d_loss = l->call->in[3];
    c.d_logits = l->call->out[0];
    c.d_type = out_type(l, 0);
    status = fleet_cuda_cross_entropy_count(l->stream, &c);
    return status == cudaSuccess ? fleet_cuda_cross_entropy_grad(l->stream, &c) : status;
}

cudaError_t cuda_launch_embedding(const struct launch *l)
{
    struct fleet_cuda_embedding e = {.ids = l->call->in[0],
                                     .table = l->call->in[1],
                                     .position = l->call->in[2],
                                     .out = l->call->out[0],
                                     .table_type = in_type(l, 1),
                                     .out_type = out_type(l, 0),
                                     .batch = in(l, 0)->shape[0],
                                     .context = in(l, 0)->shape[1],
                                     .columns = in(l, 1)->shape[1],
                                     .rows = in(l, 1)->shape[0],
                                     .divided = l->attributes->divided,
                                     .first_word = first_word(l),
                                     .fault = l->context->fault};

    return fleet_cuda_embedding(l->stream, &e);
}

cudaError_t cuda_launch_embedding_grad(const struct launch *l)
{
    struct fleet_cuda_embedding_grad e = {.ids = l->call->in[0],
                                          .d_out = l->call->in[1],
                                          .d_type = in_type(l, 1),
                                          .d_table = l->call->out[0],
                                          .d_position = l->call->out[1],
                                          .batch = in(l, 0)->shape[0],
                                          .context = in(l, 0)->shape[1],
                                          .columns = operand_columns(in(l, 1)),
                                          .rows = out(l, 0) ? out(l, 0)->shape[0] : 0,
                                          .positions = out(l, 1) ? out(l, 1)->shape[0] : 0,
                                          .scratch = l->call->scratch,
                                          .first_word = first_word(l)};

    return fleet_cuda_embedding_grad(l->stream, &e);
}

cudaError_t cuda_launch_rope(const struct launch *l)
{
    const struct program_var *x = in(l, 0);
    struct fleet_cuda_rope r = {.x = l->call->in[0],
                                .y = l->call->out[0],
                                .x_type = x->type,
                                .y_type = out_type(l, 0),
                                .batch = x->shape[0],
                                .context = x->shape[1],
                                .width = x->shape[2],
                                .heads = l->attributes->heads,
                                .head_dim = l->attributes->head_dim,
                                .base = l->attributes->base,
                                .inverse = l->attributes->inverse,
                                .scratch = l->call->scratch};

    return fleet_cuda_rope(l->stream, &r);
}
