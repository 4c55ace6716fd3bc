/* SPDX-License-Identifier: Apache-2.0 */

/* Matrix products and attention. */
#include "cuda/operators_internal.h"
#include "cuda/products.h"
#include "libfleet/program/ops/operand.h"

/* A [rows, columns] matrix as it lies, or turned. */
static struct fleet_cuda_matrix matrix(const void *data, enum program_type type, int64_t columns,
                                       bool turned)
{
    return (struct fleet_cuda_matrix){
        .data = data, .type = type, .row = turned ? 1 : columns, .column = turned ? columns : 1};
}

static struct fleet_cuda_gemm linear_of(const struct launch *l)
{
    bool turned = l->attributes->transposed;
    int64_t n = operand_columns(out(l, 0)), k = operand_columns(in(l, 0));

    return (struct fleet_cuda_gemm){
        .m = operand_rows(in(l, 0)),
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
}

cudaError_t cuda_launch_linear(const struct launch *l)
{
    struct fleet_cuda_gemm g = linear_of(l);

    return products_run(l->context->products, l->stream, &g, l->call->scratch);
}

/* The gradient before the activation: of the operands' type if cuBLASLt multiplies them, which
 * wants two of the same type. */
static enum program_type slope_type(const struct launch *l)
{
    return l->context->products ? in_type(l, 1) : PROGRAM_FP32;
}

/* The products of x's and the weight's gradients from the gradient d before the activation; c is
 * NULL where the gradient is not wanted. */
static void linear_grad_of(const struct launch *l, const void *d, enum program_type type,
                           struct fleet_cuda_gemm g[2])
{
    bool turned = l->attributes->transposed;
    int64_t rows = operand_rows(in(l, 1)), k = operand_columns(in(l, 1));
    int64_t m = operand_columns(in(l, 0));
    struct fleet_cuda_matrix x = matrix(l->call->in[1], in_type(l, 1), k, !turned);
    struct fleet_cuda_matrix slope = matrix(d, type, m, turned);

    g[0] = (struct fleet_cuda_gemm){
        .m = rows,
        .n = k,
        .k = m,
        .a = matrix(d, type, m, false),
        .b = matrix(l->call->in[2], in_type(l, 2), turned ? k : m, !turned)};
    g[1] = (struct fleet_cuda_gemm){.m = turned ? m : k,
                                    .n = turned ? k : m,
                                    .k = rows,
                                    .a = turned ? slope : x,
                                    .b = turned ? x : slope};
    for (int i = 0; i < 2; i++) {
        g[i].batch = 1;
        g[i].c = l->call->out[i];
        g[i].c_type = out_type(l, i);
    }
}

/* Scratch: the gradient before the activation, then what the sum over rows needs. */
cudaError_t cuda_launch_linear_grad(const struct launch *l)
{
    bool is_slope = l->attributes->activation != OP_ACTIVATION_NONE;
    int64_t rows = operand_rows(in(l, 1)), m = operand_columns(in(l, 0));
    enum program_type type = is_slope ? slope_type(l) : in_type(l, 0);
    const void *d = is_slope ? l->call->scratch : l->call->in[0];
    struct fleet_cuda_elementwise slope = {.in = {l->call->in[0], l->call->in[3]},
                                           .in_type = {in_type(l, 0), in_type(l, 3)},
                                           .out = {l->call->scratch},
                                           .out_type = {type},
                                           .count = rows * m};
    size_t used = is_slope ? rounded((size_t)(rows * m) * sizeof(float)) : 0;
    cudaError_t status = cudaSuccess;
    struct fleet_cuda_gemm g[2];

    if (is_slope)
        status = (l->attributes->activation == OP_ACTIVATION_GELU
                      ? fleet_cuda_gelu_grad
                      : fleet_cuda_relu_grad)(l->stream, &slope);
    linear_grad_of(l, d, type, g);
    for (int i = 0; i < 2; i++)
        if (status == cudaSuccess && g[i].c)
            status = products_run(l->context->products, l->stream, &g[i], NULL);
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

static struct fleet_cuda_gemm matmul_of(const struct launch *l)
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
    return g;
}

cudaError_t cuda_launch_matmul(const struct launch *l)
{
    struct fleet_cuda_gemm g = matmul_of(l);

    return products_run(l->context->products, l->stream, &g, NULL);
}

/* Operands that the choice of an algorithm knows only by being there. */
static void *planned(const struct program_var *var)
{
    return var ? (void *)(uintptr_t)PROGRAM_FLAT_ALIGNMENT : NULL;
}

int cuda_operator_plan(struct products *products, const struct program *program,
                       const struct program_op *op, struct fleet_error *err)
{
    struct kernel_call call = {.program = program, .op = op};
    struct cuda_operator_context context = {.products = products};
    struct launch l = {.call = &call, .context = &context, .attributes = &op->attributes};
    bool is_slope = op->attributes.activation != OP_ACTIVATION_NONE;
    struct fleet_cuda_gemm g[2];
    int count = 1, rc = 0;

    if (!products || (op->kind != OP_LINEAR && op->kind != OP_LINEAR_GRAD && op->kind != OP_MATMUL))
        return 0;
    for (int i = 0; i < op->input_count; i++)
        call.in[i] = planned(operand_in(program, op, i));
    for (int i = 0; i < op->output_count; i++)
        call.out[i] = planned(operand_out(program, op, i));
    if (op->kind == OP_LINEAR) {
        g[0] = linear_of(&l);
    } else if (op->kind == OP_MATMUL) {
        g[0] = matmul_of(&l);
    } else {
        linear_grad_of(&l, call.in[0], is_slope ? slope_type(&l) : in_type(&l, 0), g);
        count = 2;
    }
    for (int i = 0; i < count && rc == 0; i++)
        if (g[i].c)
            rc = products_prepare(products, &g[i], err);
    return rc;
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
