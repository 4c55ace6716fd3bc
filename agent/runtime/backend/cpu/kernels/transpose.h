/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_TRANSPOSE_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_TRANSPOSE_H

/*
 * Any order of up to four dimensions. A task is a range of rows of the output. A row that is also a
 * row of the input is copied as a whole.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct transpose {
    const char *x;
    char *y;
    size_t size;                      /* bytes of an element */
    int64_t shape[PROGRAM_DIMS_MAX];  /* of y, ones in front */
    int64_t stride[PROGRAM_DIMS_MAX]; /* in x, of a step along y's dimension */
    int64_t rows, rows_of_task;
};

static void transpose_row(const struct transpose *t, int64_t row)
{
    int64_t columns = t->shape[3], left = row, at = 0;
    char *to = t->y + (size_t)(row * columns) * t->size;

    for (int i = 2; i >= 0; i--) {
        at += left % t->shape[i] * t->stride[i];
        left /= t->shape[i];
    }
    if (t->stride[3] == 1) {
        memcpy(to, t->x + (size_t)at * t->size, (size_t)columns * t->size);
        return;
    }
    for (int64_t j = 0; j < columns; j++)
        if (t->size == 4)
            memcpy(to + j * 4, t->x + (at + j * t->stride[3]) * 4, 4);
        else
            memcpy(to + j * 2, t->x + (at + j * t->stride[3]) * 2, 2);
}

static void transpose_task(void *context, int64_t task, int thread)
{
    const struct transpose *t = context;
    int64_t to = kernel_least((task + 1) * t->rows_of_task, t->rows);

    (void)thread;
    for (int64_t row = task * t->rows_of_task; row < to; row++)
        transpose_row(t, row);
}

static int transpose_kernel(struct backend *backend, const struct kernel_call *call,
                            struct fleet_error *err)
{
    const struct program_var *x = kernel_in(call, 0);
    struct transpose t = {.x = call->in[0],
                          .y = call->out[0],
                          .size = program_type_size(x->type),
                          .shape = {1, 1, 1, 1}};
    int64_t stride[PROGRAM_DIMS_MAX], step = 1;
    int first = PROGRAM_DIMS_MAX - x->ndim;

    (void)err;
    for (int i = x->ndim - 1; i >= 0; i--, step *= x->shape[i + 1])
        stride[i] = step;
    for (int i = 0; i < x->ndim; i++) {
        t.shape[first + i] = x->shape[call->op->attributes.order[i]];
        t.stride[first + i] = stride[call->op->attributes.order[i]];
    }
    t.rows = program_var_elements(x) / t.shape[3];
    t.rows_of_task = kernel_rows_of_task(t.shape[3]);
    cpu_parallel(cpu_backend(backend), kernel_pieces(t.rows, t.rows_of_task), transpose_task, &t);
    return 0;
}

#endif
