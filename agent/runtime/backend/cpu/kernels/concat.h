/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_CONCAT_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_CONCAT_H

/* Columns put side by side, or taken apart; a task is some rows of all parts. */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct concat {
    const void *whole_in; /* split */
    void *whole_out;      /* concat */
    enum program_type whole_type;
    struct concat_part {
        const void *in;
        void *out;
        enum program_type type;
        int64_t first, columns; /* within the whole */
    } parts[OP_INPUTS_MAX > OP_OUTPUTS_MAX ? OP_INPUTS_MAX : OP_OUTPUTS_MAX];
    int part_count;
    int64_t rows, columns, rows_of_task;
};

static void concat_row(const struct concat *c, const struct concat_part *part, int64_t row)
{
    int64_t whole = row * c->columns + part->first, own = row * part->columns;

    for (int64_t j = 0; j < part->columns; j += V_LANES) {
        int64_t n = part->columns - j;
        if (c->whole_out)
            typed_store_n(c->whole_out, c->whole_type, whole + j, n,
                          typed_load_n(part->in, part->type, own + j, n));
        else
            typed_store_n(part->out, part->type, own + j, n,
                          typed_load_n(c->whole_in, c->whole_type, whole + j, n));
    }
}

static void concat_task(void *context, int64_t task, int thread)
{
    const struct concat *c = context;
    int64_t from = task * c->rows_of_task, to = kernel_least(from + c->rows_of_task, c->rows);

    (void)thread;
    for (int64_t row = from; row < to; row++)
        for (int i = 0; i < c->part_count; i++)
            concat_row(c, &c->parts[i], row);
}

static void concat_run(struct backend *backend, struct concat *c, const struct program_var *whole)
{
    c->whole_type = whole->type;
    c->rows = operand_rows(whole);
    c->columns = operand_columns(whole);
    c->rows_of_task = kernel_rows_of_task(c->columns);
    cpu_parallel(cpu_backend(backend), kernel_pieces(c->rows, c->rows_of_task), concat_task, c);
}

static int concat_kernel(struct backend *backend, const struct kernel_call *call,
                         struct fleet_error *err)
{
    struct concat c = {.whole_out = call->out[0], .part_count = call->op->input_count};
    int64_t first = 0;

    (void)err;
    for (int i = 0; i < c.part_count; i++) {
        c.parts[i] = (struct concat_part){.in = call->in[i],
                                          .type = kernel_in_type(call, i),
                                          .first = first,
                                          .columns = operand_columns(kernel_in(call, i))};
        first += c.parts[i].columns;
    }
    concat_run(backend, &c, kernel_out(call, 0));
    return 0;
}

static int split_kernel(struct backend *backend, const struct kernel_call *call,
                        struct fleet_error *err)
{
    struct concat c = {.whole_in = call->in[0], .part_count = call->op->output_count};
    int64_t first = 0;

    (void)err;
    for (int i = 0; i < c.part_count; i++) {
        c.parts[i] = (struct concat_part){.out = call->out[i],
                                          .type = kernel_out_type(call, i),
                                          .first = first,
                                          .columns = operand_columns(kernel_out(call, i))};
        first += c.parts[i].columns;
    }
    concat_run(backend, &c, kernel_in(call, 0));
    return 0;
}

#endif
