/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_NORM_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_NORM_H

/*
 * layer_norm and rms_norm over the last dimension C. With x̂ = (x - mean)·rstd (mean 0 for
 * rms_norm), y = x̂·scale + shift; backward, with g = d_y·scale,
 *   d_x = rstd·(g - mean(g) - x̂·mean(g·x̂)), without the first mean for rms_norm;
 *   d_scale = Σ d_y·x̂, d_shift = Σ d_y over rows.
 * The variance is taken in a second pass over the row, about its mean.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct norm {
    const void *x, *d_y;
    const float *scale, *shift;
    float *mean, *rstd; /* mean NULL: rms_norm */
    void *y;            /* backward: d_x */
    float *d_scale, *d_shift;
    enum program_type x_type, y_type, d_type;
    float epsilon;
    int64_t rows, columns;
    int64_t rows_of_task;
};

V_INLINE float norm_sum(const struct norm *s, enum program_type type, int64_t at)
{
    v16 sum = v_zero();

    for (int64_t j = 0; j < s->columns; j += V_LANES)
        sum = v_add(sum, typed_load_n(s->x, type, at + j, s->columns - j));
    return v_sum(sum);
}

V_INLINE float norm_squares(const struct norm *s, enum program_type type, int64_t at, float mean)
{
    v16 sum = v_zero(), shift = v_set(mean);

    for (int64_t j = 0; j < s->columns; j += V_LANES) {
        v16 x = v_sub(typed_load_n(s->x, type, at + j, s->columns - j), shift);
        if (s->columns - j < V_LANES)
            x = v_select(v_first((int)(s->columns - j)), x, v_zero());
        sum = v_fma(x, x, sum);
    }
    return v_sum(sum);
}

V_INLINE void norm_row(const struct norm *s, enum program_type x_type, enum program_type y_type,
                       int64_t row)
{
    int64_t at = row * s->columns;
    float mean = s->mean ? norm_sum(s, x_type, at) / (float)s->columns : 0.0f;
    float variance = norm_squares(s, x_type, at, mean) / (float)s->columns;
    float rstd = 1.0f / sqrtf(variance + s->epsilon);

    if (s->mean)
        s->mean[row] = mean;
    s->rstd[row] = rstd;
    for (int64_t j = 0; j < s->columns; j += V_LANES) {
        int64_t n = s->columns - j;
        v16 x = v_sub(typed_load_n(s->x, x_type, at + j, n), v_set(mean));
        x = v_mul(v_mul(x, v_set(rstd)), v_load_n(s->scale + j, n));
        if (s->shift)
            x = v_add(x, v_load_n(s->shift + j, n));
        typed_store_n(s->y, y_type, at + j, n, x);
    }
}

static void norm_task(void *context, int64_t task, int thread)
{
    const struct norm *s = context;
    int64_t from = task * s->rows_of_task, to = kernel_least(from + s->rows_of_task, s->rows);

    (void)thread;
    for (int64_t row = from; row < to; row++)
        if (s->x_type == PROGRAM_FP32 && s->y_type == PROGRAM_FP32)
            norm_row(s, PROGRAM_FP32, PROGRAM_FP32, row);
        else
            norm_row(s, s->x_type, s->y_type, row);
}

static int norm_forward(struct backend *backend, const struct kernel_call *call, bool centred)
{
    const struct program_var *x = kernel_in(call, 0);
    struct norm s = {.x = call->in[0],
                     .scale = call->in[1],
                     .shift = centred ? call->in[2] : NULL,
                     .mean = centred ? call->out[1] : NULL,
                     .rstd = call->out[centred ? 2 : 1],
                     .y = call->out[0],
                     .x_type = x->type,
                     .y_type = kernel_out_type(call, 0),
                     .epsilon = (float)call->op->attributes.epsilon,
                     .rows = operand_rows(x),
                     .columns = operand_columns(x)};

    s.rows_of_task = kernel_rows_of_task(s.columns);
    cpu_parallel(cpu_backend(backend), kernel_pieces(s.rows, s.rows_of_task), norm_task, &s);
    return 0;
}

/* ---- backward -------------------------------------------------------------------------------- */

V_INLINE void norm_grad_row(const struct norm *s, enum program_type x_type,
                            enum program_type d_type, enum program_type y_type, int64_t row)
{
    int64_t at = row * s->columns;
    v16 mean = v_set(s->mean ? s->mean[row] : 0.0f), rstd = v_set(s->rstd[row]);
    v16 sum = v_zero(), dot = v_zero(), mean_g, mean_dot;

    for (int64_t j = 0; j < s->columns; j += V_LANES) {
        int64_t n = s->columns - j;
        v16 x = v_mul(v_sub(typed_load_n(s->x, x_type, at + j, n), mean), rstd);
        v16 g = v_mul(typed_load_n(s->d_y, d_type, at + j, n), v_load_n(s->scale + j, n));
        sum = v_add(sum, g);
        dot = v_fma(g, x, dot); /* lanes past the end: g is 0 */
    }
    mean_g = v_set(s->mean ? v_sum(sum) / (float)s->columns : 0.0f);
    mean_dot = v_set(v_sum(dot) / (float)s->columns);
    for (int64_t j = 0; j < s->columns; j += V_LANES) {
        int64_t n = s->columns - j;
        v16 x = v_mul(v_sub(typed_load_n(s->x, x_type, at + j, n), mean), rstd);
        v16 g = v_mul(typed_load_n(s->d_y, d_type, at + j, n), v_load_n(s->scale + j, n));
        g = v_sub(v_sub(g, mean_g), v_mul(x, mean_dot));
        typed_store_n(s->y, y_type, at + j, n, v_mul(g, rstd));
    }
}

static void norm_grad_task(void *context, int64_t task, int thread)
{
    const struct norm *s = context;
    int64_t from = task * s->rows_of_task, to = kernel_least(from + s->rows_of_task, s->rows);

    (void)thread;
    for (int64_t row = from; row < to; row++)
        if (s->x_type == PROGRAM_FP32 && s->y_type == PROGRAM_FP32 && s->d_type == PROGRAM_FP32)
            norm_grad_row(s, PROGRAM_FP32, PROGRAM_FP32, PROGRAM_FP32, row);
        else
            norm_grad_row(s, s->x_type, s->d_type, s->y_type, row);
}

#define NORM_BLOCK_ROWS 64

/* d_scale and d_shift of sixteen columns: blocks of rows first, then the blocks. */
V_INLINE void norm_grad_columns(const struct norm *s, enum program_type x_type,
                                enum program_type d_type, int64_t column)
{
    int64_t n = s->columns - column;
    v16 scale = v_zero(), shift = v_zero();

    for (int64_t from = 0; from < s->rows; from += NORM_BLOCK_ROWS) {
        int64_t to = kernel_least(from + NORM_BLOCK_ROWS, s->rows);
        v16 block_scale = v_zero(), block_shift = v_zero();
        for (int64_t row = from; row < to; row++) {
            int64_t at = row * s->columns + column;
            v16 mean = v_set(s->mean ? s->mean[row] : 0.0f), rstd = v_set(s->rstd[row]);
            v16 d = typed_load_n(s->d_y, d_type, at, n);
            v16 x = v_mul(v_sub(typed_load_n(s->x, x_type, at, n), mean), rstd);
            block_scale = v_fma(d, x, block_scale);
            block_shift = v_add(d, block_shift);
        }
        scale = v_add(scale, block_scale);
        shift = v_add(shift, block_shift);
    }
    v_store_n(s->d_scale + column, n, scale);
    if (s->d_shift)
        v_store_n(s->d_shift + column, n, shift);
}

static void norm_grad_columns_task(void *context, int64_t task, int thread)
{
    const struct norm *s = context;

    (void)thread;
    if (s->x_type == PROGRAM_FP32 && s->d_type == PROGRAM_FP32)
        norm_grad_columns(s, PROGRAM_FP32, PROGRAM_FP32, task * V_LANES);
    else
        norm_grad_columns(s, s->x_type, s->d_type, task * V_LANES);
}

static int norm_backward(struct backend *backend, const struct kernel_call *call, bool centred)
{
    struct cpu_backend *cpu = cpu_backend(backend);
    const struct program_var *x = kernel_in(call, 1);
    struct norm s = {.x = call->in[1],
                     .d_y = call->in[0],
                     .scale = call->in[2],
                     .mean = centred ? (float *)(uintptr_t)call->in[3] : NULL, /* read only here */
                     .rstd = (float *)(uintptr_t)call->in[centred ? 4 : 3],
                     .y = call->out[0],
                     .d_scale = call->out[1],
                     .d_shift = centred ? call->out[2] : NULL,
                     .x_type = x->type,
                     .y_type = kernel_out_type(call, 0),
                     .d_type = kernel_in_type(call, 0),
                     .rows = operand_rows(x),
                     .columns = operand_columns(x)};

    s.rows_of_task = kernel_rows_of_task(s.columns);
    /* Sums first: d_x may lie over d_y. */
    if (s.d_scale)
        cpu_parallel(cpu, kernel_pieces(s.columns, V_LANES), norm_grad_columns_task, &s);
    if (s.y)
        cpu_parallel(cpu, kernel_pieces(s.rows, s.rows_of_task), norm_grad_task, &s);
    return 0;
}

static int layer_norm_kernel(struct backend *backend, const struct kernel_call *call,
                             struct fleet_error *err)
{
    (void)err;
    return norm_forward(backend, call, true);
}

static int layer_norm_grad_kernel(struct backend *backend, const struct kernel_call *call,
                                  struct fleet_error *err)
{
    (void)err;
    return norm_backward(backend, call, true);
}

static int rms_norm_kernel(struct backend *backend, const struct kernel_call *call,
                           struct fleet_error *err)
{
    (void)err;
    return norm_forward(backend, call, false);
}

static int rms_norm_grad_kernel(struct backend *backend, const struct kernel_call *call,
                                struct fleet_error *err)
{
    (void)err;
    return norm_backward(backend, call, false);
}

#endif
