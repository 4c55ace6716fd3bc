/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_REDUCE_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_REDUCE_H

/*
 * Sums and means of rows: sixteen lanes a block of REDUCE_BLOCK elements, blocks in order, so that
 * the error grows with the number of blocks and not of elements. Backward: the row's gradient to
 * each of its elements.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

#define REDUCE_BLOCK 4096

struct reduce {
    const void *x; /* backward: d_y */
    void *out;
    enum program_type x_type, out_type;
    int64_t rows, columns, rows_of_task;
    float factor; /* 1, or of the mean */
};

static void reduce_row(const struct reduce *r, int64_t row)
{
    float total = 0;

    for (int64_t from = 0; from < r->columns; from += REDUCE_BLOCK) {
        int64_t to = kernel_least(from + REDUCE_BLOCK, r->columns);
        v16 sum = v_zero();
        for (int64_t j = from; j < to; j += V_LANES)
            sum = v_add(sum, typed_load_n(r->x, r->x_type, row * r->columns + j, to - j));
        total += v_sum(sum);
    }
    typed_store_n(r->out, r->out_type, row, 1, v_set(total * r->factor));
}

static void reduce_grad_row(const struct reduce *r, int64_t row)
{
    v16 d = v_set(kernel_lane(typed_load_n(r->x, r->x_type, row, 1)) * r->factor);

    for (int64_t j = 0; j < r->columns; j += V_LANES)
        typed_store_n(r->out, r->out_type, row * r->columns + j, r->columns - j, d);
}

static void reduce_task(void *context, int64_t task, int thread)
{
    const struct reduce *r = context;
    int64_t to = kernel_least((task + 1) * r->rows_of_task, r->rows);

    (void)thread;
    for (int64_t row = task * r->rows_of_task; row < to; row++)
        reduce_row(r, row);
}

static void reduce_grad_task(void *context, int64_t task, int thread)
{
    const struct reduce *r = context;
    int64_t to = kernel_least((task + 1) * r->rows_of_task, r->rows);

    (void)thread;
    for (int64_t row = task * r->rows_of_task; row < to; row++)
        reduce_grad_row(r, row);
}

/* `whole` is the operand that has all elements. */
static struct reduce reduce_of(const struct kernel_call *call, const struct program_var *whole,
                               int64_t rows)
{
    struct reduce r = {.x = call->in[0],
                       .out = call->out[0],
                       .x_type = kernel_in_type(call, 0),
                       .out_type = kernel_out_type(call, 0),
                       .rows = rows,
                       .columns = program_var_elements(whole) / rows,
                       .factor = 1};

    r.rows_of_task = kernel_rows_of_task(r.columns);
    if (call->op->attributes.mean)
        r.factor = 1.0f / (float)r.columns;
    return r;
}

static int reduce_kernel(struct backend *backend, const struct kernel_call *call,
                         struct fleet_error *err)
{
    struct reduce r =
        reduce_of(call, kernel_in(call, 0), program_var_elements(kernel_out(call, 0)));

    (void)err;
    cpu_parallel(cpu_backend(backend), kernel_pieces(r.rows, r.rows_of_task), reduce_task, &r);
    return 0;
}

static int reduce_grad_kernel(struct backend *backend, const struct kernel_call *call,
                              struct fleet_error *err)
{
    struct reduce r =
        reduce_of(call, kernel_out(call, 0), program_var_elements(kernel_in(call, 0)));

    (void)err;
    cpu_parallel(cpu_backend(backend), kernel_pieces(r.rows, r.rows_of_task), reduce_grad_task, &r);
    return 0;
}

#endif
