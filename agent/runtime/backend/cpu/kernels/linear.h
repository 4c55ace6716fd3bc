/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_LINEAR_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_LINEAR_H

/*
 * y = activation(x·W + bias) and its gradients, as matrix products whose last pass over each tile
 * adds bias and activation while the tile is in the cache.
 */

#include "agent/runtime/backend/cpu/kernels/column_sum.h"
#include "agent/runtime/backend/cpu/kernels/fp8.h"
#include "agent/runtime/backend/cpu/kernels/gemm.h"
#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct linear_finish {
    const void *bias; /* NULL: none */
    void *y, *pre;    /* pre NULL: not kept */
    enum program_type bias_type, y_type;
    enum op_activation activation;
    int64_t columns;
};

V_INLINE v16 linear_activate(v16 x, enum op_activation activation)
{
    if (activation == OP_ACTIVATION_GELU)
        return v_gelu(x);
    return activation == OP_ACTIVATION_RELU ? v_max(v_zero(), x) : x;
}

static void linear_finish_row(const void *context, int64_t row, int64_t from, int64_t to,
                              float *sums)
{
    const struct linear_finish *f = context;

    for (int64_t j = from; j < to; j += V_LANES, sums += V_LANES) {
        v16 x = v_load_n(sums, to - j);
        if (f->bias)
            x = v_add(x, typed_load_n(f->bias, f->bias_type, j, to - j));
        if (f->pre)
            typed_store_n(f->pre, f->y_type, row * f->columns + j, to - j, x);
        x = linear_activate(x, f->activation);
        typed_store_n(f->y, f->y_type, row * f->columns + j, to - j, x);
    }
}

/* A [rows, columns] matrix as it lies, or turned. */
static struct gemm_operand linear_operand(const void *data, enum program_type type, int64_t columns,
                                          bool turned)
{
    return (struct gemm_operand){
        .data = data, .type = type, .row = turned ? 1 : columns, .column = turned ? columns : 1};
}

/* Input i as a factor: itself, or rounded to e4m3 behind `room`. */
static const void *linear_factor(struct cpu_backend *cpu, const struct kernel_call *call, int i,
                                 char **room)
{
    const struct program_var *var = kernel_in(call, i);

    if (!call->op->attributes.fp8)
        return call->in[i];
    return fp8_round(cpu, call->in[i], var->type, program_var_elements(var), false, FP8_E4M3, room);
}

/* fp32 sums of a product with a 16-bit result lie in front of rounded factors. */
static size_t linear_sums_bytes(const struct program_var *result)
{
    if (!result || result->type == PROGRAM_FP32)
        return 0;
    return (size_t)operand_rows(result) * OPERAND_PRODUCT_COLUMNS * sizeof(float);
}

static int linear_kernel(struct backend *backend, const struct kernel_call *call,
                         struct fleet_error *err)
{
    const struct program_var *x = kernel_in(call, 0), *y = kernel_out(call, 0);
    bool transposed = call->op->attributes.transposed;
    int64_t n = operand_columns(y), k = operand_columns(x);
    char *room = (char *)call->scratch + linear_sums_bytes(y);
    const void *a = linear_factor(cpu_backend(backend), call, 0, &room);
    const void *b = linear_factor(cpu_backend(backend), call, 1, &room);
    struct linear_finish finish = {.bias = call->in[2],
                                   .y = call->out[0],
                                   .pre = call->out[1],
                                   .bias_type = kernel_in_type(call, 2),
                                   .y_type = y->type,
                                   .activation = call->op->attributes.activation,
                                   .columns = n};
    struct gemm gemm = {
        .m = operand_rows(x),
        .n = n,
        .k = k,
        .a = linear_operand(a, x->type, k, false),
        .b = linear_operand(b, kernel_in_type(call, 1), transposed ? k : n, transposed),
        .c = call->out[0],
        .ldc = n,
        .wide = y->type == PROGRAM_FP32 ? NULL : call->scratch,
        .finish_context = &finish};

    (void)err;
    if (finish.bias || finish.pre || finish.activation != OP_ACTIVATION_NONE || gemm.wide)
        gemm.finish = linear_finish_row;
    gemm_run(cpu_backend(backend), &gemm);
    return 0;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* d_pre = d_y · activation'(pre), fp32. */
struct linear_slope {
    const void *d_y, *pre;
    float *d_pre;
    enum program_type d_y_type, pre_type;
    enum op_activation activation;
    int64_t count;
};

static void linear_slope_task(void *context, int64_t task, int thread)
{
    const struct linear_slope *s = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, s->count);

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) {
        v16 d = typed_load_n(s->d_y, s->d_y_type, i, to - i);
        v16 x = typed_load_n(s->pre, s->pre_type, i, to - i);
        d = s->activation == OP_ACTIVATION_GELU ? v_mul(d, v_gelu_slope(x))
                                                : v_select(v_less(v_zero(), x), d, v_zero());
        v_store_n(s->d_pre + i, to - i, d);
    }
}

/* A result in 16 bits is made from fp32 sums. */
static void linear_narrow_row(const void *context, int64_t row, int64_t from, int64_t to,
                              float *sums)
{
    const struct linear_finish *f = context;

    for (int64_t j = from; j < to; j += V_LANES, sums += V_LANES)
        typed_store_n(f->y, f->y_type, row * f->columns + j, to - j, v_load_n(sums, to - j));
}

static void linear_product(struct cpu_backend *cpu, struct gemm *gemm, void *out,
                           enum program_type type, float *wide)
{
    struct linear_finish narrow = {.y = out, .y_type = type, .columns = gemm->n};

    gemm->c = out;
    gemm->ldc = gemm->n;
    if (type != PROGRAM_FP32) {
        gemm->wide = wide;
        gemm->finish = linear_narrow_row;
        gemm->finish_context = &narrow;
    }
    gemm_run(cpu, gemm);
}

/* The gradient before the activation: d_y itself, or made in scratch. */
static struct gemm_operand linear_before_activation(struct cpu_backend *cpu,
                                                    const struct kernel_call *call, float **scratch)
{
    struct linear_slope slope = {.d_y = call->in[0],
                                 .pre = call->in[3],
                                 .d_pre = *scratch,
                                 .d_y_type = kernel_in_type(call, 0),
                                 .pre_type = kernel_in_type(call, 3),
                                 .activation = call->op->attributes.activation,
                                 .count = program_var_elements(kernel_in(call, 0))};
    int64_t columns = operand_columns(kernel_in(call, 0));

    if (slope.activation == OP_ACTIVATION_NONE)
        return linear_operand(slope.d_y, slope.d_y_type, columns, false);
    cpu_parallel(cpu, kernel_pieces(slope.count, KERNEL_TASK_ELEMENTS), linear_slope_task, &slope);
    *scratch += (slope.count + V_LANES - 1) / V_LANES * V_LANES;
    return linear_operand(slope.d_pre, PROGRAM_FP32, columns, false);
}

/* What the gradients' products multiply. */
struct linear_factors {
    struct gemm_operand d;
    const void *x, *weight;
};

/* With fp8 they are rounded behind the sums, which begin at `scratch`. */
static struct linear_factors linear_grad_factors(struct cpu_backend *cpu,
                                                 const struct kernel_call *call,
                                                 struct gemm_operand d, float *scratch)
{
    size_t d_x = linear_sums_bytes(kernel_out(call, 0));
    size_t d_weight = linear_sums_bytes(kernel_out(call, 1));
    bool is_slope = call->op->attributes.activation != OP_ACTIVATION_NONE;
    char *room = (char *)scratch + (d_x > d_weight ? d_x : d_weight);

    if (call->op->attributes.fp8) {
        d.data = fp8_round(cpu, d.data, d.type, program_var_elements(kernel_in(call, 0)), is_slope,
                           FP8_E5M2, &room);
        d.type = PROGRAM_BF16;
    }
    return (struct linear_factors){.d = d,
                                   .x = linear_factor(cpu, call, 1, &room),
                                   .weight = linear_factor(cpu, call, 2, &room)};
}

static int linear_grad_kernel(struct backend *backend, const struct kernel_call *call,
                              struct fleet_error *err)
{
    struct cpu_backend *cpu = cpu_backend(backend);
    const struct program_var *x = kernel_in(call, 1);
    int64_t rows = operand_rows(x), k = operand_columns(x);
    int64_t m = operand_columns(kernel_in(call, 0));
    bool transposed = call->op->attributes.transposed;
    enum program_type weight_type = kernel_in_type(call, 2);
    float *scratch = call->scratch;
    struct gemm_operand whole = linear_before_activation(cpu, call, &scratch);
    struct linear_factors f = linear_grad_factors(cpu, call, whole, scratch);
    struct gemm_operand d = f.d, d_turned = f.d;

    (void)err;
    d_turned.row = d.column;
    d_turned.column = d.row;
    if (call->out[0]) {
        struct gemm gemm = {
            .m = rows,
            .n = k,
            .k = m,
            .a = d,
            .b = linear_operand(f.weight, weight_type, transposed ? k : m, !transposed)};
        linear_product(cpu, &gemm, call->out[0], kernel_out_type(call, 0), scratch);
    }
    if (call->out[1]) {
        struct gemm gemm = {.m = transposed ? m : k, .n = transposed ? k : m, .k = rows};
        gemm.a = transposed ? d_turned : linear_operand(f.x, x->type, k, true);
        gemm.b = transposed ? linear_operand(f.x, x->type, k, false) : d;
        linear_product(cpu, &gemm, call->out[1], kernel_out_type(call, 1), scratch);
    }
    if (call->out[2])
        column_sum(cpu, whole.data, whole.type, rows, m, call->out[2], kernel_out_type(call, 2));
    return 0;
}

#endif
