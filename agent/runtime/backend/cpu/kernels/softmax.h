/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_SOFTMAX_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_SOFTMAX_H

/* Softmax over the last dimension; backward d_x = y·(d_y - Σ d_y·y). Both may run in place. */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct softmax {
    const void *x, *d_y; /* backward: x is y */
    void *out;
    enum program_type x_type, d_type, out_type;
    int64_t rows, columns, rows_of_task;
};

/* exp(x - max) of sixteen columns; lanes past the end 0. */
V_INLINE v16 softmax_power(const struct softmax *s, int64_t at, int64_t n, float max)
{
    v16 p = v_exp(v_sub(typed_load_n(s->x, s->x_type, at, n), v_set(max)));

    return n < V_LANES ? v_select(v_first((int)n), p, v_zero()) : p;
}

static void softmax_row(const struct softmax *s, int64_t row)
{
    int64_t at = row * s->columns;
    v16 greatest = v_set(-INFINITY), sum = v_zero();
    float max, total;

    for (int64_t j = 0; j < s->columns; j += V_LANES) {
        v16 x = typed_load_n(s->x, s->x_type, at + j, s->columns - j);
        if (s->columns - j < V_LANES)
            x = v_select(v_first((int)(s->columns - j)), x, v_set(-INFINITY));
        greatest = v_max(x, greatest);
    }
    max = v_greatest(greatest);
    for (int64_t j = 0; j < s->columns; j += V_LANES)
        sum = v_add(sum, softmax_power(s, at + j, s->columns - j, max));
    total = v_sum(sum);
    for (int64_t j = 0; j < s->columns; j += V_LANES)
        typed_store_n(s->out, s->out_type, at + j, s->columns - j,
                      v_div(softmax_power(s, at + j, s->columns - j, max), v_set(total)));
}

static void softmax_grad_row(const struct softmax *s, int64_t row)
{
    int64_t at = row * s->columns;
    v16 dot = v_zero();

    for (int64_t j = 0; j < s->columns; j += V_LANES)
        dot = v_fma(typed_load_n(s->x, s->x_type, at + j, s->columns - j),
                    typed_load_n(s->d_y, s->d_type, at + j, s->columns - j), dot);
    dot = v_set(v_sum(dot));
    for (int64_t j = 0; j < s->columns; j += V_LANES) {
        v16 y = typed_load_n(s->x, s->x_type, at + j, s->columns - j);
        v16 d = typed_load_n(s->d_y, s->d_type, at + j, s->columns - j);
        typed_store_n(s->out, s->out_type, at + j, s->columns - j, v_mul(y, v_sub(d, dot)));
    }
}

static void softmax_task(void *context, int64_t task, int thread)
{
    const struct softmax *s = context;
    int64_t from = task * s->rows_of_task, to = kernel_least(from + s->rows_of_task, s->rows);

    (void)thread;
    for (int64_t row = from; row < to; row++)
        if (s->d_y)
            softmax_grad_row(s, row);
        else
            softmax_row(s, row);
}

static int softmax_run(struct backend *backend, const struct kernel_call *call, int x, int d)
{
    const struct program_var *var = kernel_in(call, x);
    struct softmax s = {.x = call->in[x],
                        .d_y = d < 0 ? NULL : call->in[d],
                        .out = call->out[0],
                        .x_type = var->type,
                        .d_type = d < 0 ? PROGRAM_FP32 : kernel_in_type(call, d),
                        .out_type = kernel_out_type(call, 0),
                        .rows = operand_rows(var),
                        .columns = operand_columns(var)};

    s.rows_of_task = kernel_rows_of_task(s.columns);
    cpu_parallel(cpu_backend(backend), kernel_pieces(s.rows, s.rows_of_task), softmax_task, &s);
    return 0;
}

static int softmax_kernel(struct backend *backend, const struct kernel_call *call,
                          struct fleet_error *err)
{
    (void)err;
    return softmax_run(backend, call, 0, -1);
}

static int softmax_grad_kernel(struct backend *backend, const struct kernel_call *call,
                               struct fleet_error *err)
{
    (void)err;
    return softmax_run(backend, call, 1, 0);
}

#endif
