/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_COLUMN_SUM_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_COLUMN_SUM_H

/*
 * Sums over the rows of a matrix, one for each column. A task owns some columns and walks all rows:
 * blocks of COLUMN_SUM_ROWS are summed first, then the blocks, both in order.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

#define COLUMN_SUM_ROWS    64
#define COLUMN_SUM_VECTORS 4
#define COLUMN_SUM_WIDTH   (COLUMN_SUM_VECTORS * V_LANES)

struct column_sum {
    const void *x;
    void *out;
    enum program_type x_type, out_type;
    int64_t rows, columns;
};

/* sum[…] += rows [from, to) of columns first … */
V_INLINE void column_sum_block(const struct column_sum *s, enum program_type type, int64_t from,
                               int64_t to, int64_t first, v16 total[COLUMN_SUM_VECTORS])
{
    v16 sum[COLUMN_SUM_VECTORS];

#pragma GCC unroll 4
    for (int j = 0; j < COLUMN_SUM_VECTORS; j++)
        sum[j] = v_zero();
    for (int64_t i = from; i < to; i++)
#pragma GCC unroll 4
        for (int j = 0; j < COLUMN_SUM_VECTORS; j++) {
            int64_t column = first + j * V_LANES;
            if (column < s->columns)
                sum[j] = v_add(
                    sum[j], typed_load_n(s->x, type, i * s->columns + column, s->columns - column));
        }
#pragma GCC unroll 4
    for (int j = 0; j < COLUMN_SUM_VECTORS; j++)
        total[j] = v_add(total[j], sum[j]);
}

static void column_sum_task(void *context, int64_t task, int thread)
{
    const struct column_sum *s = context;
    int64_t first = task * COLUMN_SUM_WIDTH;
    v16 total[COLUMN_SUM_VECTORS];

    (void)thread;
    for (int j = 0; j < COLUMN_SUM_VECTORS; j++)
        total[j] = v_zero();
    for (int64_t i = 0; i < s->rows; i += COLUMN_SUM_ROWS) {
        int64_t to = kernel_least(i + COLUMN_SUM_ROWS, s->rows);
        if (s->x_type == PROGRAM_FP32)
            column_sum_block(s, PROGRAM_FP32, i, to, first, total);
        else
            column_sum_block(s, s->x_type, i, to, first, total);
    }
    for (int j = 0; j < COLUMN_SUM_VECTORS; j++)
        if (first + j * V_LANES < s->columns)
            typed_store_n(s->out, s->out_type, first + j * V_LANES,
                          s->columns - first - j * V_LANES, total[j]);
}

/* out[columns] = sums over rows of x[rows, columns]. */
static void column_sum(struct cpu_backend *cpu, const void *x, enum program_type x_type,
                       int64_t rows, int64_t columns, void *out, enum program_type out_type)
{
    struct column_sum s = {x, out, x_type, out_type, rows, columns};

    cpu_parallel(cpu, kernel_pieces(columns, COLUMN_SUM_WIDTH), column_sum_task, &s);
}

static int add_grad_b_kernel(struct backend *backend, const struct kernel_call *call,
                             struct fleet_error *err)
{
    const struct program_var *d = kernel_in(call, 0);

    (void)err;
    column_sum(cpu_backend(backend), call->in[0], d->type, operand_rows(d), operand_columns(d),
               call->out[0], kernel_out_type(call, 0));
    return 0;
}

#endif
