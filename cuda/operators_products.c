/* SPDX-License-Identifier: Apache-2.0 */

/* Matrix products and attention. */
#include <assert.h>

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

/* ---- factors in fp8 -------------------------------------------------------------------------- */

static_assert(sizeof(struct fleet_cuda_fp8_scale) == 16 &&
                  FLEET_CUDA_FP8_TENSORS * sizeof(struct fleet_cuda_fp8_scale) <= GPU_SCRATCH_FP8,
              "scales fit in front of the codes");

/* Factors of LINEAR or LINEAR_GRAD: codes lie in scratch, behind the scales. */
struct codes {
    struct fleet_cuda_fp8 made;
    char *at; /* the next codes */
};

static struct codes codes_begin(const struct launch *l)
{
    char *first = (char *)l->call->scratch + gpu_scratch_before_fp8(l->call->program, l->call->op);

    return (struct codes){.made.tensors[0].scale = (struct fleet_cuda_fp8_scale *)(void *)first,
                          .at = first + GPU_SCRATCH_FP8};
}

static uint8_t *codes_room(struct codes *c, int64_t count, bool is_wanted)
{
    uint8_t *room = (uint8_t *)c->at;

    if (!is_wanted)
        return NULL;
    c->at += gpu_scratch_fp8(count, 1);
    return room;
}

/* Add a matrix as input i has it; returns its number. */
static int codes_add(struct codes *c, const struct launch *l, int i, const void *data,
                     enum program_type data_type, enum fp8_type type, bool straight, bool turned)
{
    int64_t rows = operand_rows(in(l, i)), columns = operand_columns(in(l, i));
    int number = c->made.count++;

    c->made.tensors[number].x = data;
    c->made.tensors[number].x_type = data_type;
    c->made.tensors[number].rows = rows;
    c->made.tensors[number].columns = columns;
    c->made.tensors[number].type = type;
    c->made.tensors[number].straight = codes_room(c, rows * columns, straight);
    c->made.tensors[number].turned = codes_room(c, rows * columns, turned);
    c->made.tensors[number].scale = c->made.tensors[0].scale + number;
    return number;
}

/* A factor whose rows (a) or columns (b) lie in memory one behind the other, `k` long: products of
 * fp8 have no other. */
static struct fleet_cuda_matrix code_matrix(const struct codes *c, int number, bool turned,
                                            int64_t k, bool is_b)
{
    return (struct fleet_cuda_matrix){.data = turned ? c->made.tensors[number].turned
                                                     : c->made.tensors[number].straight,
                                      .type = PROGRAM_UINT8,
                                      .row = is_b ? 1 : k,
                                      .column = is_b ? k : 1,
                                      .fp8 = c->made.tensors[number].type,
                                      .scale = &c->made.tensors[number].scale->down};
}

static struct codes linear_codes(const struct launch *l, struct fleet_cuda_gemm *g)
{
    bool turned = l->attributes->transposed;
    struct codes c = codes_begin(l);
    int x = codes_add(&c, l, 0, l->call->in[0], in_type(l, 0), FP8_E4M3, true, false);
    int w = codes_add(&c, l, 1, l->call->in[1], in_type(l, 1), FP8_E4M3, turned, !turned);

    g->a = code_matrix(&c, x, false, g->k, false);
    g->b = code_matrix(&c, w, !turned, g->k, true);
    return c;
}

/* x's gradient is d · weight', the weight's is x' · d or, transposed, d' · x. */
static struct codes linear_grad_codes(const struct launch *l, const void *d, enum program_type type,
                                      struct fleet_cuda_gemm g[2])
{
    bool turned = l->attributes->transposed, has_x = g[0].c != NULL, has_weight = g[1].c != NULL;
    struct codes c = codes_begin(l);
    int slope = codes_add(&c, l, 0, d, type, FP8_E5M2, has_x, has_weight);
    int x = -1, w = -1;

    if (has_weight)
        x = codes_add(&c, l, 1, l->call->in[1], in_type(l, 1), FP8_E4M3, false, true);
    if (has_x)
        w = codes_add(&c, l, 2, l->call->in[2], in_type(l, 2), FP8_E4M3, !turned, turned);
    if (has_x) {
        g[0].a = code_matrix(&c, slope, false, g[0].k, false);
        g[0].b = code_matrix(&c, w, turned, g[0].k, true);
    }
    if (has_weight) {
        g[1].a = code_matrix(&c, turned ? slope : x, true, g[1].k, false);
        g[1].b = code_matrix(&c, turned ? x : slope, true, g[1].k, true);
    }
    return c;
}

/* ---- linear ---------------------------------------------------------------------------------- */

cudaError_t cuda_launch_linear(const struct launch *l)
{
    struct fleet_cuda_gemm g = linear_of(l);
    cudaError_t status = cudaSuccess;

    if (l->attributes->fp8) {
        struct codes c = linear_codes(l, &g);
        status = fleet_cuda_fp8(l->stream, &c.made);
    }
    return status == cudaSuccess
               ? products_run(l->context->products, l->stream, &g, l->call->scratch)
               : status;
}

/* The gradient before the activation: of the operands' type if cuBLASLt multiplies them, which
 * wants two of the same type, and if it is rounded to fp8. */
static enum program_type slope_type(const struct launch *l)
{
    return l->context->products || l->attributes->fp8 ? in_type(l, 1) : PROGRAM_FP32;
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

/* Scratch: the gradient before the activation, what the sum over rows needs, factors in fp8. */
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
    if (l->attributes->fp8) {
        struct codes c = linear_grad_codes(l, d, type, g);
        if (status == cudaSuccess)
            status = fleet_cuda_fp8(l->stream, &c.made);
    }
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

static bool multiplies(enum op_kind kind)
{
    return kind == OP_LINEAR || kind == OP_LINEAR_GRAD || kind == OP_MATMUL ||
           kind == OP_LINEAR_CROSS_ENTROPY;
}

/* The products of the first chunk, of those that add to it, and of a smaller last one. */
static int plan_classifier(struct products *products, const struct launch *l,
                           struct fleet_error *err)
{
    int64_t rows = operand_rows(in(l, 0)), last = rows % GPU_CLASSIFIER_ROWS;
    const struct {
        int64_t first, rows;
    } chunks[] = {
        {0, rows < GPU_CLASSIFIER_ROWS ? 0 : GPU_CLASSIFIER_ROWS},
        {GPU_CLASSIFIER_ROWS, rows < 2 * GPU_CLASSIFIER_ROWS ? 0 : GPU_CLASSIFIER_ROWS},
        {rows - last, last},
    };
    struct fleet_cuda_gemm g[3];
    int rc = 0;

    for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
        if (chunks[c].rows == 0)
            continue;
        cuda_classifier_products(l, chunks[c].first, chunks[c].rows, g);
        for (int i = 0; i < 3 && rc == 0; i++)
            if (g[i].c)
                rc = products_prepare(products, &g[i], err);
    }
    return rc;
}

int cuda_operator_plan(struct products *products, const struct program *program,
                       const struct program_op *op, struct fleet_error *err)
{
    struct kernel_call call = {.program = program, .op = op};
    struct cuda_operator_context context = {.products = products};
    struct launch l = {.call = &call, .context = &context, .attributes = &op->attributes};
    bool is_slope = op->attributes.activation != OP_ACTIVATION_NONE;
    enum program_type type;
    struct fleet_cuda_gemm g[2];
    int count = 1, rc = 0;

    if (!products || !multiplies(op->kind))
        return 0;
    for (int i = 0; i < op->input_count; i++)
        call.in[i] = planned(operand_in(program, op, i));
    for (int i = 0; i < op->output_count; i++)
        call.out[i] = planned(operand_out(program, op, i));
    call.scratch = (void *)(uintptr_t)PROGRAM_ALIGNMENT;
    if (op->kind == OP_LINEAR_CROSS_ENTROPY)
        return plan_classifier(products, &l, err);
    if (op->kind == OP_LINEAR) {
        g[0] = linear_of(&l);
        if (op->attributes.fp8)
            (void)linear_codes(&l, &g[0]);
    } else if (op->kind == OP_MATMUL) {
        g[0] = matmul_of(&l);
    } else {
        type = is_slope ? slope_type(&l) : in_type(&l, 0);
        linear_grad_of(&l, call.in[0], type, g);
        if (op->attributes.fp8)
            (void)linear_grad_codes(&l, call.in[0], type, g);
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
