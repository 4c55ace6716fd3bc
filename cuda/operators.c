/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/operators.h"

#include <stdlib.h>

#include "libfleet/base/random.h"
#include "libfleet/program/ops/operand.h"

struct launch {
    cudaStream_t stream;
    const struct kernel_call *call;
    const struct cuda_operator_context *context;
    const struct op_attributes *attributes;
};

static const struct program_var *in(const struct launch *l, int i)
{
    return operand_in(l->call->program, l->call->op, i);
}

static const struct program_var *out(const struct launch *l, int i)
{
    return operand_out(l->call->program, l->call->op, i);
}

static enum program_type in_type(const struct launch *l, int i)
{
    return in(l, i) ? in(l, i)->type : PROGRAM_FP32;
}

static enum program_type out_type(const struct launch *l, int i)
{
    return out(l, i) ? out(l, i)->type : PROGRAM_FP32;
}

/* Bytes of an array of floats in scratch, so that what follows is aligned. */
static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- elementwise ----------------------------------------------------------------------------- */

static cudaError_t launch_elementwise(const struct launch *l,
                                      cudaError_t (*kernel)(cudaStream_t,
                                                            const struct fleet_cuda_elementwise *))
{
    struct fleet_cuda_elementwise e = {.count = program_var_elements(out(l, 0)),
                                       .number = (float)l->attributes->scale,
                                       .exact = l->attributes->exact,
                                       .relu = l->attributes->activation == OP_ACTIVATION_RELU};

    for (int i = 0; i < 3; i++) {
        e.in[i] = l->call->in[i];
        e.in_type[i] = in_type(l, i);
    }
    for (int i = 0; i < 2; i++) {
        e.out[i] = l->call->out[i];
        e.out_type[i] = out_type(l, i);
    }
    if (in(l, 1) && program_var_elements(in(l, 1)) != e.count)
        e.period = program_var_elements(in(l, 1));
    return kernel(l->stream, &e);
}

#define ELEMENTWISE(name)                                    \
    static cudaError_t launch_##name(const struct launch *l) \
    {                                                        \
        return launch_elementwise(l, fleet_cuda_##name);     \
    }
ELEMENTWISE(add)
ELEMENTWISE(scale)
ELEMENTWISE(cast)
ELEMENTWISE(fill)
ELEMENTWISE(gelu)
ELEMENTWISE(gelu_grad)
ELEMENTWISE(relu)
ELEMENTWISE(relu_grad)
ELEMENTWISE(silu)
ELEMENTWISE(silu_grad)
ELEMENTWISE(swiglu)
ELEMENTWISE(swiglu_grad)

static cudaError_t launch_dropout(const struct launch *l)
{
    const struct program_var *x = in(l, 0);
    int64_t count = program_var_elements(x), samples = l->call->program->micro_batch_size;
    struct fleet_random_key key =
        fleet_random_key(l->call->scalars->seed, "dropout", l->attributes->stream);
    struct fleet_cuda_dropout d = {.x = l->call->in[0],
                                   .y = l->call->out[0],
                                   .x_type = x->type,
                                   .y_type = out_type(l, 0),
                                   .count = count,
                                   .key = {key.word[0], key.word[1]},
                                   .rate = l->call->scalars->evaluation ? 0 : l->attributes->rate,
                                   .scalars = l->context->scalars};

    if (samples < 1)
        samples = x->shape[0];
    d.per_sample = count / samples > 0 ? count / samples : 1;
    return fleet_cuda_dropout(l->stream, &d);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static cudaError_t launch_norm(const struct launch *l)
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

static cudaError_t launch_norm_grad(const struct launch *l)
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

static cudaError_t launch_column_sum(const struct launch *l, const void *x, enum program_type type,
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

static cudaError_t launch_add_grad_b(const struct launch *l)
{
    return launch_column_sum(l, l->call->in[0], in_type(l, 0), 0, operand_rows(in(l, 0)),
                             operand_columns(in(l, 0)), l->call->scratch);
}

static cudaError_t launch_softmax(const struct launch *l)
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
                                             .fault = l->context->fault};
}

static cudaError_t launch_cross_entropy(const struct launch *l)
{
    struct fleet_cuda_cross_entropy c = cross_entropy_of(l);
    cudaError_t status;

    c.loss = l->call->out[0];
    c.lse = l->call->out[1];
    status = fleet_cuda_cross_entropy_count(l->stream, &c);
    if (status == cudaSuccess)
        status = fleet_cuda_cross_entropy_rows(l->stream, &c);
    return status == cudaSuccess ? fleet_cuda_cross_entropy_loss(l->stream, &c) : status;
}

static cudaError_t launch_cross_entropy_grad(const struct launch *l)
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

static cudaError_t launch_embedding(const struct launch *l)
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
                                     .fault = l->context->fault};

    return fleet_cuda_embedding(l->stream, &e);
}

static cudaError_t launch_embedding_grad(const struct launch *l)
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
                                          .scratch = l->call->scratch};

    return fleet_cuda_embedding_grad(l->stream, &e);
}

static cudaError_t launch_rope(const struct launch *l)
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

/* ---- places ---------------------------------------------------------------------------------- */

static cudaError_t launch_transpose(const struct launch *l)
{
    const struct program_var *x = in(l, 0);
    struct fleet_cuda_transpose t = {
        .x = l->call->in[0], .y = l->call->out[0], .type = x->type, .shape = {1, 1, 1, 1}};
    int64_t stride[PROGRAM_DIMS_MAX], step = 1;
    int first = PROGRAM_DIMS_MAX - x->ndim;

    for (int i = x->ndim - 1; i >= 0; i--) {
        stride[i] = step;
        step *= x->shape[i];
    }
    for (int i = 0; i < x->ndim; i++) {
        t.shape[first + i] = x->shape[l->attributes->order[i]];
        t.stride[first + i] = stride[l->attributes->order[i]];
    }
    return fleet_cuda_transpose(l->stream, &t);
}

static cudaError_t launch_concat(const struct launch *l)
{
    bool is_split = l->call->op->kind == OP_SPLIT;
    const struct program_var *whole = is_split ? in(l, 0) : out(l, 0);
    struct fleet_cuda_concat c = {
        .whole = is_split ? (void *)(uintptr_t)l->call->in[0] : l->call->out[0],
        .whole_type = whole->type,
        .part_count = is_split ? l->call->op->output_count : l->call->op->input_count,
        .rows = operand_rows(whole)};

    for (int i = 0; i < c.part_count; i++) {
        const struct program_var *part = is_split ? out(l, i) : in(l, i);
        c.parts[i].data = is_split ? l->call->out[i] : (void *)(uintptr_t)l->call->in[i];
        c.parts[i].type = part->type;
        c.parts[i].columns = operand_columns(part);
    }
    return (is_split ? fleet_cuda_split : fleet_cuda_concat)(l->stream, &c);
}

static cudaError_t launch_reduce(const struct launch *l)
{
    bool back = l->call->op->kind == OP_REDUCE_GRAD;
    const struct program_var *whole = back ? out(l, 0) : in(l, 0);
    const struct program_var *part = back ? in(l, 0) : out(l, 0);
    struct fleet_cuda_reduce r = {.x = l->call->in[0],
                                  .out = l->call->out[0],
                                  .x_type = in_type(l, 0),
                                  .out_type = out_type(l, 0),
                                  .rows = program_var_elements(part),
                                  .mean = l->attributes->mean};

    r.columns = r.rows > 0 ? program_var_elements(whole) / r.rows : 1;
    return (back ? fleet_cuda_reduce_grad : fleet_cuda_reduce)(l->stream, &r);
}

/* ---- products -------------------------------------------------------------------------------- */

/* A [rows, columns] matrix as it lies, or turned. */
static struct fleet_cuda_matrix matrix(const void *data, enum program_type type, int64_t columns,
                                       bool turned)
{
    return (struct fleet_cuda_matrix){
        .data = data, .type = type, .row = turned ? 1 : columns, .column = turned ? columns : 1};
}

static cudaError_t launch_linear(const struct launch *l)
{
    bool turned = l->attributes->transposed;
    int64_t n = operand_columns(out(l, 0)), k = operand_columns(in(l, 0));
    struct fleet_cuda_gemm g = {.m = operand_rows(in(l, 0)),
                                .n = n,
                                .k = k,
                                .batch = 1,
                                .a = matrix(l->call->in[0], in_type(l, 0), k, false),
                                .b = matrix(l->call->in[1], in_type(l, 1), turned ? k : n, turned),
                                .c = l->call->out[0],
                                .bias = l->call->in[2],
                                .pre = l->call->out[1],
                                .c_type = out_type(l, 0),
                                .bias_type = in_type(l, 2),
                                .activation = l->attributes->activation};

    return fleet_cuda_gemm(l->stream, &g);
}

static cudaError_t launch_product(const struct launch *l, int i, int64_t m, int64_t n, int64_t k,
                                  struct fleet_cuda_matrix a, struct fleet_cuda_matrix b)
{
    struct fleet_cuda_gemm g = {.m = m,
                                .n = n,
                                .k = k,
                                .batch = 1,
                                .a = a,
                                .b = b,
                                .c = l->call->out[i],
                                .c_type = out_type(l, i)};

    return l->call->out[i] ? fleet_cuda_gemm(l->stream, &g) : cudaSuccess;
}

/* Scratch: the gradient before the activation, then what the sum over rows needs. */
static cudaError_t launch_linear_grad(const struct launch *l)
{
    bool turned = l->attributes->transposed, is_slope = l->attributes->activation != 0;
    int64_t rows = operand_rows(in(l, 1)), k = operand_columns(in(l, 1));
    int64_t m = operand_columns(in(l, 0));
    enum program_type type = is_slope ? PROGRAM_FP32 : in_type(l, 0);
    const void *d = is_slope ? l->call->scratch : l->call->in[0];
    struct fleet_cuda_elementwise slope = {.in = {l->call->in[0], l->call->in[3]},
                                           .in_type = {in_type(l, 0), in_type(l, 3)},
                                           .out = {l->call->scratch},
                                           .count = rows * m};
    size_t used = is_slope ? rounded((size_t)(rows * m) * sizeof(float)) : 0;
    cudaError_t status = cudaSuccess;

    if (is_slope)
        status = (l->attributes->activation == OP_ACTIVATION_GELU
                      ? fleet_cuda_gelu_grad
                      : fleet_cuda_relu_grad)(l->stream, &slope);
    if (status == cudaSuccess)
        status = launch_product(l, 0, rows, k, m, matrix(d, type, m, false),
                                matrix(l->call->in[2], in_type(l, 2), turned ? k : m, !turned));
    if (status == cudaSuccess && turned)
        status = launch_product(l, 1, m, k, rows, matrix(d, type, m, true),
                                matrix(l->call->in[1], in_type(l, 1), k, false));
    if (status == cudaSuccess && !turned)
        status = launch_product(l, 1, k, m, rows, matrix(l->call->in[1], in_type(l, 1), k, true),
                                matrix(d, type, m, false));
    if (status == cudaSuccess && l->call->out[2])
        status = launch_column_sum(l, d, type, 2, rows, m, (char *)l->call->scratch + used);
    return status;
}

/* Matrices of operand i, turned or not. */
static struct fleet_cuda_matrix batched(const struct launch *l, int i, bool turned)
{
    const struct program_var *x = in(l, i);
    struct fleet_cuda_matrix m = matrix(l->call->in[i], x->type, x->shape[x->ndim - 1], turned);

    m.batch = x->shape[x->ndim - 1] * x->shape[x->ndim - 2];
    return m;
}

static cudaError_t launch_matmul(const struct launch *l)
{
    const struct program_var *y = out(l, 0), *a = in(l, 0);
    bool turned = l->attributes->transposed_a;
    struct fleet_cuda_gemm g = {.m = y->shape[y->ndim - 2],
                                .n = y->shape[y->ndim - 1],
                                .k = a->shape[a->ndim - (turned ? 2 : 1)],
                                .a = batched(l, 0, turned),
                                .b = batched(l, 1, l->attributes->transposed),
                                .c = l->call->out[0],
                                .c_type = y->type};

    g.batch = g.m * g.n > 0 ? program_var_elements(y) / (g.m * g.n) : 0;
    return fleet_cuda_gemm(l->stream, &g);
}

static struct fleet_cuda_attention attention_of(const struct program *program,
                                                const struct program_op *op, int i)
{
    const struct program_var *qkv = operand_in(program, op, i);

    return (struct fleet_cuda_attention){
        .type = qkv->type,
        .batch = qkv->shape[0],
        .context = qkv->shape[1],
        .heads = op->attributes.heads,
        .kv_heads = op->attributes.kv_heads,
        .head_dim = qkv->shape[2] / (op->attributes.heads + 2 * op->attributes.kv_heads),
        .causal = op->attributes.causal};
}

static cudaError_t launch_attention(const struct launch *l)
{
    struct fleet_cuda_attention a = attention_of(l->call->program, l->call->op, 0);

    a.qkv = l->call->in[0];
    a.out = l->call->out[0];
    a.out_type = out_type(l, 0);
    a.lse = l->call->out[1];
    return fleet_cuda_attention(l->stream, &a);
}

static cudaError_t launch_attention_grad(const struct launch *l)
{
    struct fleet_cuda_attention a = attention_of(l->call->program, l->call->op, 1);

    a.d_out = l->call->in[0];
    a.d_type = in_type(l, 0);
    a.qkv = l->call->in[1];
    a.out = (void *)(uintptr_t)l->call->in[2]; /* read only here, as is lse */
    a.out_type = in_type(l, 2);
    a.lse = (float *)(uintptr_t)l->call->in[3];
    a.d_qkv = l->call->out[0];
    a.d_qkv_type = out_type(l, 0);
    a.scratch = l->call->scratch;
    return fleet_cuda_attention_grad(l->stream, &a);
}

/* ---- images ---------------------------------------------------------------------------------- */

static struct fleet_cuda_conv2d conv2d_of(const struct launch *l, int x, int weight,
                                          const struct program_var *y)
{
    const struct program_var *image = in(l, x), *w = in(l, weight);
    const struct op_attributes *a = l->attributes;

    return (struct fleet_cuda_conv2d){.x = l->call->in[x],
                                      .weight = l->call->in[weight],
                                      .x_type = image->type,
                                      .weight_type = w->type,
                                      .y_type = y->type,
                                      .batch = image->shape[0],
                                      .in = image->shape[1],
                                      .out = w->shape[0],
                                      .h = image->shape[2],
                                      .w = image->shape[3],
                                      .out_h = y->shape[2],
                                      .out_w = y->shape[3],
                                      .window = {w->shape[2], w->shape[3]},
                                      .stride = {a->stride[0], a->stride[1]},
                                      .padding = {a->padding[0], a->padding[1]}};
}

static cudaError_t launch_conv2d(const struct launch *l)
{
    struct fleet_cuda_conv2d c = conv2d_of(l, 0, 1, out(l, 0));

    c.y = l->call->out[0];
    return fleet_cuda_conv2d(l->stream, &c);
}

static cudaError_t launch_conv2d_grad(const struct launch *l)
{
    struct fleet_cuda_conv2d c = conv2d_of(l, 1, 2, in(l, 0));
    cudaError_t status = cudaSuccess;

    c.d_y = l->call->in[0];
    c.d_x = l->call->out[0];
    c.d_weight = l->call->out[1];
    c.d_x_type = out_type(l, 0);
    c.d_weight_type = out_type(l, 1);
    if (c.d_x)
        status = fleet_cuda_conv2d_grad_x(l->stream, &c);
    if (status == cudaSuccess && c.d_weight)
        status = fleet_cuda_conv2d_grad_weight(l->stream, &c);
    return status;
}

/* Sizes of x in input i. */
static struct fleet_cuda_batch_norm batch_norm_of(const struct launch *l, int i)
{
    const struct program_var *x = in(l, i);

    return (struct fleet_cuda_batch_norm){.x = l->call->in[i],
                                          .x_type = x->type,
                                          .out_type = out_type(l, 0),
                                          .batch = x->shape[0],
                                          .channels = x->shape[1],
                                          .plane =
                                              program_var_elements(x) / x->shape[0] / x->shape[1],
                                          .epsilon = (float)l->attributes->epsilon};
}

static cudaError_t launch_batch_norm(const struct launch *l)
{
    struct fleet_cuda_batch_norm b = batch_norm_of(l, 0);

    if (l->call->in[6]) /* the sums of all ranks */
        return cudaErrorInvalidValue;
    b.scale = l->call->in[1];
    b.shift = l->call->in[2];
    b.running_mean = l->call->scalars->evaluation ? l->call->in[3] : NULL;
    b.running_var = l->call->in[4];
    b.residual = l->call->in[5];
    b.residual_type = in_type(l, 5);
    b.relu = l->attributes->activation == OP_ACTIVATION_RELU;
    b.y = l->call->out[0];
    b.mean = l->call->out[1];
    b.rstd = l->call->out[2];
    b.stat_mean = l->call->out[3];
    b.stat_var = l->call->out[4];
    return fleet_cuda_batch_norm(l->stream, &b);
}

static cudaError_t launch_batch_norm_grad(const struct launch *l)
{
    struct fleet_cuda_batch_norm b = batch_norm_of(l, 1);

    if (l->call->in[5] || l->call->in[6]) /* the sums of all ranks, and its own */
        return cudaErrorInvalidValue;
    b.d_y = l->call->in[0];
    b.d_type = in_type(l, 0);
    b.scale = l->call->in[2];
    b.mean = (float *)(uintptr_t)l->call->in[3]; /* read only here, as is rstd */
    b.rstd = (float *)(uintptr_t)l->call->in[4];
    b.d_x = l->call->out[0];
    b.d_scale = l->call->out[1];
    b.d_shift = l->call->out[2];
    return fleet_cuda_batch_norm_grad(l->stream, &b);
}

static cudaError_t launch_pool(const struct launch *l, bool back,
                               cudaError_t (*kernel)(cudaStream_t, const struct fleet_cuda_pool *))
{
    const struct program_var *x = back ? out(l, 0) : in(l, 0), *y = back ? in(l, 0) : out(l, 0);
    const struct op_attributes *a = l->attributes;
    struct fleet_cuda_pool p = {.from = l->call->in[0],
                                .to = l->call->out[0],
                                .indices =
                                    back ? (int32_t *)(uintptr_t)l->call->in[2] : l->call->out[1],
                                .from_type = in_type(l, 0),
                                .to_type = out_type(l, 0),
                                .planes = x->shape[0] * x->shape[1],
                                .h = x->shape[2],
                                .w = x->shape[3],
                                .out_h = y->shape[2],
                                .out_w = y->shape[3],
                                .window = {a->kernel[0], a->kernel[1]},
                                .stride = {a->stride[0], a->stride[1]},
                                .padding = {a->padding[0], a->padding[1]},
                                .exclude_padding = a->exclude_padding};

    return kernel(l->stream, &p);
}

#define POOL(name, back)                                     \
    static cudaError_t launch_##name(const struct launch *l) \
    {                                                        \
        return launch_pool(l, back, fleet_cuda_##name);      \
    }
POOL(max_pool2d, false)
POOL(avg_pool2d, false)
POOL(adaptive_avg_pool2d, false)
POOL(max_pool2d_grad, true)
POOL(avg_pool2d_grad, true)
POOL(adaptive_avg_pool2d_grad, true)

/* ---- the whole gradient, updates ------------------------------------------------------------- */

static int64_t blocks_of(int64_t count)
{
    return (count + FLEET_CUDA_BLOCK - 1) / FLEET_CUDA_BLOCK;
}

int cuda_operator_gradients(const struct program *program, const float *gradients,
                            struct fleet_cuda_gradient *table, int room, int64_t *out_blocks)
{
    int *parameters, count = program_parameters(program, true, &parameters);

    *out_blocks = 0;
    for (int i = 0; i < count && i < room; i++) {
        const struct program_var *var = &program->vars[parameters[i]];
        table[i] = (struct fleet_cuda_gradient){.data = gradients + var->flat_offset,
                                                .count = program_var_elements(var),
                                                .first_block = *out_blocks};
        *out_blocks += blocks_of(table[i].count);
    }
    free(parameters);
    return count <= room ? count : -1;
}

static int64_t gradient_blocks(const struct program *program, int *out_count)
{
    int64_t blocks = 0;
    int *parameters;

    *out_count = program_parameters(program, true, &parameters);
    for (int i = 0; i < *out_count; i++)
        blocks += blocks_of(program_var_elements(&program->vars[parameters[i]]));
    free(parameters);
    return blocks;
}

static cudaError_t launch_grad_norm(const struct launch *l)
{
    struct fleet_cuda_grad_norm n = {.tensors = l->context->gradients,
                                     .scalars = l->context->scalars,
                                     .norms = l->call->out[0],
                                     .scratch = l->call->scratch};

    n.block_count = gradient_blocks(l->call->program, &n.tensor_count);
    return fleet_cuda_grad_norm(l->stream, &n);
}

static cudaError_t launch_check_finite(const struct launch *l)
{
    struct fleet_cuda_check_finite c = {.x = (float *)(uintptr_t)l->call->in[0], /* only read */
                                        .count = l->call->program->flat_count,
                                        .flag = l->call->out[0]};

    return fleet_cuda_check_finite(l->stream, &c);
}

static int states_of(enum op_kind kind)
{
    static const int states[OP_KIND_COUNT] = {
        [OP_MOMENTUM] = 1, [OP_ADAM] = 2, [OP_ADAMW] = 2, [OP_LAMB] = 2, [OP_LARS] = 1};

    return states[kind];
}

struct fleet_cuda_parameter cuda_operator_parameter(const struct kernel_call *call)
{
    const struct op_attributes *a = &call->op->attributes;
    struct fleet_cuda_parameter p = {
        .param = call->out[0],
        .gradient = call->in[1],
        .count = program_var_elements(operand_out(call->program, call->op, 0)),
        .beta1 = a->optimizer.beta1,
        .beta2 = a->optimizer.beta2,
        .epsilon = a->optimizer.epsilon,
        .momentum = a->optimizer.momentum,
        .coefficient = a->optimizer.coefficient,
        .decay = a->optimizer.decay,
        .lambda = a->optimizer.lambda,
        .rescale = a->optimizer.rescale,
        .clip_limit = a->optimizer.clip_limit,
        .decay_kind = a->optimizer.decay_kind,
        .clip = a->optimizer.clip,
        .norm_index = a->optimizer.norm_index,
        .nesterov = a->optimizer.nesterov,
        .always_adapt = a->optimizer.always_adapt};

    for (int i = 0; i < states_of(call->op->kind); i++)
        p.state[i] = call->out[1 + i];
    return p;
}

static cudaError_t launch_optimizer(const struct launch *l)
{
    int norms = 2 + states_of(l->call->op->kind);
    struct fleet_cuda_optimizer o = {.kind = l->call->op->kind,
                                     .parameters = l->context->parameter,
                                     .parameter_count = 1,
                                     .block_count = blocks_of(program_var_elements(out(l, 0))),
                                     .scalars = l->context->scalars,
                                     .scratch = l->call->scratch};

    if (norms < l->call->op->input_count && in(l, norms)) {
        o.norms = l->call->in[norms];
        o.norm_count = (int)program_var_elements(in(l, norms));
    }
    return fleet_cuda_optimizer(l->stream, &o);
}

/* ---- the table ------------------------------------------------------------------------------- */

static cudaError_t (*const launches[OP_KIND_COUNT])(const struct launch *l) = {
    [OP_EMBEDDING] = launch_embedding,
    [OP_EMBEDDING_GRAD] = launch_embedding_grad,
    [OP_LAYER_NORM] = launch_norm,
    [OP_LAYER_NORM_GRAD] = launch_norm_grad,
    [OP_RMS_NORM] = launch_norm,
    [OP_RMS_NORM_GRAD] = launch_norm_grad,
    [OP_LINEAR] = launch_linear,
    [OP_LINEAR_GRAD] = launch_linear_grad,
    [OP_MATMUL] = launch_matmul,
    [OP_ATTENTION] = launch_attention,
    [OP_ATTENTION_GRAD] = launch_attention_grad,
    [OP_CROSS_ENTROPY] = launch_cross_entropy,
    [OP_CROSS_ENTROPY_GRAD] = launch_cross_entropy_grad,
    [OP_ADD] = launch_add,
    [OP_ADD_GRAD_B] = launch_add_grad_b,
    [OP_SCALE] = launch_scale,
    [OP_GELU] = launch_gelu,
    [OP_GELU_GRAD] = launch_gelu_grad,
    [OP_RELU] = launch_relu,
    [OP_RELU_GRAD] = launch_relu_grad,
    [OP_SILU] = launch_silu,
    [OP_SILU_GRAD] = launch_silu_grad,
    [OP_SWIGLU] = launch_swiglu,
    [OP_SWIGLU_GRAD] = launch_swiglu_grad,
    [OP_ROPE] = launch_rope,
    [OP_DROPOUT] = launch_dropout,
    [OP_SOFTMAX] = launch_softmax,
    [OP_SOFTMAX_GRAD] = launch_softmax,
    [OP_CAST] = launch_cast,
    [OP_TRANSPOSE] = launch_transpose,
    [OP_REDUCE] = launch_reduce,
    [OP_REDUCE_GRAD] = launch_reduce,
    [OP_CONCAT] = launch_concat,
    [OP_SPLIT] = launch_concat,
    [OP_CONV2D] = launch_conv2d,
    [OP_CONV2D_GRAD] = launch_conv2d_grad,
    [OP_BATCH_NORM] = launch_batch_norm,
    [OP_BATCH_NORM_GRAD] = launch_batch_norm_grad,
    [OP_MAX_POOL2D] = launch_max_pool2d,
    [OP_MAX_POOL2D_GRAD] = launch_max_pool2d_grad,
    [OP_AVG_POOL2D] = launch_avg_pool2d,
    [OP_AVG_POOL2D_GRAD] = launch_avg_pool2d_grad,
    [OP_ADAPTIVE_AVG_POOL2D] = launch_adaptive_avg_pool2d,
    [OP_ADAPTIVE_AVG_POOL2D_GRAD] = launch_adaptive_avg_pool2d_grad,
    [OP_FILL] = launch_fill,
    [OP_GRAD_NORM] = launch_grad_norm,
    [OP_CHECK_FINITE] = launch_check_finite,
    [OP_SGD] = launch_optimizer,
    [OP_MOMENTUM] = launch_optimizer,
    [OP_ADAM] = launch_optimizer,
    [OP_ADAMW] = launch_optimizer,
    [OP_LAMB] = launch_optimizer,
    [OP_LARS] = launch_optimizer,
};

cudaError_t cuda_operator_launch(cudaStream_t stream, const struct kernel_call *call,
                                 const struct cuda_operator_context *context)
{
    struct launch l = {
        .stream = stream, .call = call, .context = context, .attributes = &call->op->attributes};

    return launches[call->op->kind] ? launches[call->op->kind](&l) : cudaErrorInvalidValue;
}

static size_t linear_grad_scratch(const struct program *program, const struct program_op *op)
{
    const struct program_var *d = operand_in(program, op, 0);
    size_t slope = op->attributes.activation == OP_ACTIVATION_NONE
                       ? 0
                       : rounded((size_t)program_var_elements(d) * sizeof(float));

    return slope + fleet_cuda_column_sum_scratch(operand_rows(d), operand_columns(d));
}

size_t cuda_operator_scratch(const struct program *program, const struct program_op *op)
{
    const struct program_var *x = operand_in(program, op, 0), *y = operand_out(program, op, 0);
    struct fleet_cuda_attention attention;
    int64_t blocks;
    int count;

    switch (op->kind) {
    case OP_LAYER_NORM_GRAD:
    case OP_RMS_NORM_GRAD:
        return fleet_cuda_norm_grad_scratch(operand_rows(x), operand_columns(x));
    case OP_ADD_GRAD_B:
        return fleet_cuda_column_sum_scratch(operand_rows(x), operand_columns(x));
    case OP_LINEAR_GRAD:
        return linear_grad_scratch(program, op);
    case OP_EMBEDDING_GRAD:
        return y ? fleet_cuda_embedding_grad_scratch(x->shape[0], x->shape[1], y->shape[0]) : 0;
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_GRAD:
        return (size_t)(16 + operand_rows(x)) * sizeof(float);
    case OP_ROPE:
        return fleet_cuda_rope_scratch(x->shape[1], op->attributes.head_dim);
    case OP_ATTENTION_GRAD:
        attention = attention_of(program, op, 1);
        return fleet_cuda_attention_grad_scratch(&attention);
    case OP_GRAD_NORM:
        blocks = gradient_blocks(program, &count);
        return (size_t)(blocks + count) * sizeof(double);
    case OP_SGD:
    case OP_MOMENTUM:
    case OP_ADAM:
    case OP_ADAMW:
    case OP_LAMB:
    case OP_LARS:
        return fleet_cuda_optimizer_scratch(1, blocks_of(program_var_elements(y)));
    default:
        return 0;
    }
}
