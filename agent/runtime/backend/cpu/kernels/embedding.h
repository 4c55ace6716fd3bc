/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_EMBEDDING_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_EMBEDDING_H

/*
 * Rows of a table by token plus rows by position. Backward, a task owns some columns of the table
 * and walks all tokens in order, so a row's sum has one order on any number of threads.
 */

#include <inttypes.h>

#include "agent/runtime/backend/cpu/kernels/kernel.h"

#define EMBEDDING_WIDTH 64 /* columns of one task, backward */

struct embedding {
    const int32_t *ids;
    const void *table, *position; /* position NULL: none */
    void *out;
    const void *d_out;
    float *d_table, *d_position;
    enum program_type table_type, out_type;
    int64_t batch, context, columns, rows, positions;
    int64_t rows_of_task;
    bool divided; /* words outside first … first + rows - 1 belong to other ranks */
    int64_t first;
};

/* The row of a token; -1: another rank's. */
V_INLINE int64_t embedding_row(const struct embedding *e, int64_t token)
{
    int64_t row = e->ids[token] - e->first;

    return row >= 0 && row < e->rows ? row : -1;
}

static int embedding_check(const struct embedding *e, struct fleet_error *err)
{
    for (int64_t i = 0; i < e->batch * e->context; i++)
        if (e->ids[i] < 0 || (!e->divided && e->ids[i] >= e->rows))
            return fleet_error(err, -EINVAL,
                               "id %" PRId32 " at position %" PRId64 " of sample %" PRId64
                               ", must be 0 to %" PRId64,
                               e->ids[i], i % e->context, i / e->context, e->rows - 1);
    return 0;
}

static void embedding_task(void *context, int64_t task, int thread)
{
    const struct embedding *e = context;
    int64_t from = task * e->rows_of_task;
    int64_t to = kernel_least(from + e->rows_of_task, e->batch * e->context);

    (void)thread;
    for (int64_t i = from; i < to; i++) {
        int64_t row = embedding_row(e, i);
        for (int64_t j = 0; j < e->columns; j += V_LANES) {
            int64_t n = e->columns - j;
            v16 x =
                row < 0 ? v_zero() : typed_load_n(e->table, e->table_type, row * e->columns + j, n);
            if (e->position)
                x = v_add(x, typed_load_n(e->position, e->table_type,
                                          i % e->context * e->columns + j, n));
            typed_store_n(e->out, e->out_type, i * e->columns + j, n, x);
        }
    }
}

static int embedding_kernel(struct backend *backend, const struct kernel_call *call,
                            struct fleet_error *err)
{
    const struct program_var *ids = kernel_in(call, 0), *table = kernel_in(call, 1);
    struct embedding e = {.ids = call->in[0],
                          .table = call->in[1],
                          .position = call->in[2],
                          .out = call->out[0],
                          .table_type = table->type,
                          .out_type = kernel_out_type(call, 0),
                          .batch = ids->shape[0],
                          .context = ids->shape[1],
                          .columns = table->shape[1],
                          .rows = table->shape[0],
                          .divided = call->op->attributes.divided,
                          .first = call->op->attributes.first_word};

    if (embedding_check(&e, err) < 0)
        return -EINVAL;
    e.rows_of_task = kernel_rows_of_task(e.columns);
    cpu_parallel(cpu_backend(backend), kernel_pieces(e.batch * e.context, e.rows_of_task),
                 embedding_task, &e);
    return 0;
}

/* ---- backward -------------------------------------------------------------------------------- */

static void embedding_clear_task(void *context, int64_t task, int thread)
{
    const struct embedding *e = context;
    int64_t count = e->rows * e->columns, from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, count);

    (void)thread;
    memset(e->d_table + from, 0, (size_t)(to - from) * sizeof(float));
}

static void embedding_scatter_task(void *context, int64_t task, int thread)
{
    const struct embedding *e = context;
    int64_t first = task * EMBEDDING_WIDTH;
    int64_t end = kernel_least(first + EMBEDDING_WIDTH, e->columns);

    (void)thread;
    for (int64_t i = 0; i < e->batch * e->context; i++) {
        int64_t row = embedding_row(e, i);
        for (int64_t j = first; j < end && row >= 0; j += V_LANES) {
            float *to = e->d_table + row * e->columns + j;
            v16 d = typed_load_n(e->d_out, e->out_type, i * e->columns + j, end - j);
            v_store_n(to, end - j, v_add(v_load_n(to, end - j), d));
        }
    }
}

/* Position `task`: the sum over the batch, in order. */
static void embedding_position_task(void *context, int64_t task, int thread)
{
    const struct embedding *e = context;

    (void)thread;
    for (int64_t j = 0; j < e->columns; j += V_LANES) {
        v16 sum = v_zero();
        for (int64_t b = 0; b < e->batch && task < e->context; b++)
            sum =
                v_add(sum, typed_load_n(e->d_out, e->out_type,
                                        (b * e->context + task) * e->columns + j, e->columns - j));
        v_store_n(e->d_position + task * e->columns + j, e->columns - j, sum);
    }
}

static int embedding_grad_kernel(struct backend *backend, const struct kernel_call *call,
                                 struct fleet_error *err)
{
    struct cpu_backend *cpu = cpu_backend(backend);
    const struct program_var *ids = kernel_in(call, 0), *d_out = kernel_in(call, 1);
    const struct program_var *table = kernel_out(call, 0), *position = kernel_out(call, 1);
    struct embedding e = {.ids = call->in[0],
                          .d_out = call->in[1],
                          .d_table = call->out[0],
                          .d_position = call->out[1],
                          .out_type = d_out->type,
                          .batch = ids->shape[0],
                          .context = ids->shape[1],
                          .columns = operand_columns(d_out),
                          .rows = table ? table->shape[0] : INT32_MAX,
                          .divided = call->op->attributes.divided,
                          .first = call->op->attributes.first_word};

    if (embedding_check(&e, err) < 0)
        return -EINVAL;
    if (table) {
        cpu_parallel(cpu, kernel_pieces(e.rows * e.columns, KERNEL_TASK_ELEMENTS),
                     embedding_clear_task, &e);
        cpu_parallel(cpu, kernel_pieces(e.columns, EMBEDDING_WIDTH), embedding_scatter_task, &e);
    }
    if (position)
        cpu_parallel(cpu, position->shape[0], embedding_position_task, &e);
    return 0;
}

#endif
