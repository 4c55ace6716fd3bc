/* SPDX-License-Identifier: Apache-2.0 */

/* Matrix products and attention. */
#include "cuda/operators_internal.h"
#include "libfleet/program/ops/operand.h"

/* A [rows, columns] matrix as it lies, or turned. */
static struct fleet_cuda_matrix matrix(const void *data, enum program_type type, int64_t columns,
                                       bool turned)
{
    return (struct fleet_cuda_matrix){
        .data = data, .type = type, .row = turned ? 1 : columns, .column = turned ? columns : 1};
}

cudaError_t cuda_launch_linear(const struct launch *l)
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
cudaError_t cuda_launch_linear_grad(const struct launch *l)
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
        status = cuda_launch_column_sum(l, d, type, 2, rows, m, (char *)l->call->scratch + used);
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

cudaError_t cuda_launch_matmul(const struct launch *l)
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

struct fleet_cuda_attention cuda_attention_of(const struct program *program,
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

cudaError_t cuda_launch_attention(const struct launch *l)
{
    struct fleet_cuda_attention a = cuda_attention_of(l->call->program, l->call->op, 0);

    a.qkv = l->call->in[0];
    a.out = l->call->out[0];
    a.out_type = out_type(l, 0);
    a.lse = l->call->out[1];
    return fleet_cuda_attention(l->stream, &a);
}

cudaError_t cuda_launch_attention_grad(const struct launch *l)
{
    struct fleet_cuda_attention a = cuda_attention_of(l->call->program, l->call->op, 1);

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

size_t cuda_linear_grad_scratch(const struct program *program, const struct program_op *op)
{
    const struct program_var *d = operand_in(program, op, 0);
    size_t slope = op->attributes.activation == OP_ACTIVATION_NONE
                       ? 0
                       : rounded((size_t)program_var_elements(d) * sizeof(float));

    return slope + fleet_cuda_column_sum_scratch(operand_rows(d), operand_columns(d));
}
