/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_CROSS_ENTROPY_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_CROSS_ENTROPY_H

/*
 * The loss is the mean of log Σ - (logits[target] - max) over the rows that count, with Σ = Σ_j
 * exp(logits[j] - max). A row counts unless its target is `ignored`. The gradient of logit j is
 * (exp(logits[j] - max - log Σ) - [j = target]) · d_loss / rows that count. It may overwrite the
 * logits. If no row counts, loss and gradient are 0.
 */

#include <inttypes.h>

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct cross_entropy {
    const void *logits;
    const int32_t *targets;
    float *row_loss;
    float *lse; /* [rows][2]: max, log Σ */
    void *d_logits;
    enum program_type type, d_type;
    int64_t rows, columns, ignored; /* ignored: the value of a target that does not count */
    int64_t rows_of_task;
    float scale;   /* d_loss / rows that count */
    bool divided;  /* ranks divide the vocabulary; `logits` has the columns from `first` on */
    int64_t first; /* 0 if not divided */
    float *sums;   /* out of the sums kernel: [rows][3]: max, Σ, target's logit */
    const float *all_sums; /* [parts][rows][3]: the sums of all ranks; NULL: not an operand */
    int64_t parts;         /* ranks that divide the vocabulary */
};

/* The column of a row's target; -1: it is another rank's, or the row does not count. */
V_INLINE int64_t cross_entropy_column(const struct cross_entropy *c, int64_t row)
{
    int64_t column = c->targets[row] - c->first;

    return c->targets[row] != c->ignored && column >= 0 && column < c->columns ? column : -1;
}

/* Number of rows that count. -EINVAL: a target is out of range. If `divided`, only negative targets
 * are found. */
static int64_t cross_entropy_count(const struct cross_entropy *c, struct fleet_error *err)
{
    int64_t count = 0;

    for (int64_t i = 0; i < c->rows; i++) {
        if (c->targets[i] == c->ignored)
            continue;
        if (c->targets[i] < 0 || (!c->divided && c->targets[i] >= c->columns))
            return fleet_error(err, -EINVAL,
                               "target %" PRId32 " of row %" PRId64 ", must be 0 to %" PRId64
                               " or %" PRId64 " to ignore the row",
                               c->targets[i], i, c->columns - 1, c->ignored);
        count++;
    }
    return count;
}

/* out[0] = the greatest logit of the row, out[1] = Σ exp(logit - out[0]). */
V_INLINE void cross_entropy_sum(const struct cross_entropy *c, enum program_type type, int64_t row,
                                float out[2])
{
    int64_t at = row * c->columns;
    v16 greatest = v_set(-INFINITY), sum = v_zero();

    for (int64_t j = 0; j < c->columns; j += V_LANES) {
        v16 x = typed_load_n(c->logits, type, at + j, c->columns - j);
        if (c->columns - j < V_LANES)
            x = v_select(v_first((int)(c->columns - j)), x, v_set(-INFINITY));
        greatest = v_max(x, greatest);
    }
    out[0] = v_greatest(greatest);
    for (int64_t j = 0; j < c->columns; j += V_LANES) {
        v16 x = typed_load_n(c->logits, type, at + j, c->columns - j);
        x = v_exp(v_sub(x, v_set(out[0])));
        if (c->columns - j < V_LANES)
            x = v_select(v_first((int)(c->columns - j)), x, v_zero());
        sum = v_add(sum, x);
    }
    out[1] = v_sum(sum);
}

static float cross_entropy_log(float x)
{
    return kernel_lane(v_log(v_set(x)));
}

/* Join the sums of all ranks, in the order of the ranks; returns the target's logit. */
static float cross_entropy_join(const struct cross_entropy *c, int64_t row, float lse[2])
{
    float greatest = -INFINITY, sum = 0, hit = 0;

    for (int64_t p = 0; p < c->parts; p++)
        greatest = fmaxf(greatest, c->all_sums[3 * (p * c->rows + row)]);
    for (int64_t p = 0; p < c->parts; p++) {
        const float *of = &c->all_sums[3 * (p * c->rows + row)];
        sum += of[1] * kernel_lane(v_exp(v_set(of[0] - greatest)));
        hit += of[2];
    }
    lse[0] = greatest;
    lse[1] = cross_entropy_log(sum);
    return hit;
}

/* Max and log Σ of a row; returns the target's logit, 0 if the row does not count. */
static float cross_entropy_row(const struct cross_entropy *c, int64_t row, float lse[2])
{
    int64_t column = cross_entropy_column(c, row);

    if (c->all_sums)
        return cross_entropy_join(c, row, lse);
    if (c->type == PROGRAM_FP32)
        cross_entropy_sum(c, PROGRAM_FP32, row, lse);
    else
        cross_entropy_sum(c, c->type, row, lse);
    lse[1] = cross_entropy_log(lse[1]);
    return column < 0 ? 0.0f
                      : kernel_lane(typed_load_n(c->logits, c->type, row * c->columns + column, 1));
}

static void cross_entropy_task(void *context, int64_t task, int thread)
{
    const struct cross_entropy *c = context;
    int64_t from = task * c->rows_of_task, to = kernel_least(from + c->rows_of_task, c->rows);

    (void)thread;
    for (int64_t row = from; row < to; row++) {
        float *lse = c->lse + 2 * row, hit = cross_entropy_row(c, row, lse);

        c->row_loss[row] = c->targets[row] == c->ignored ? 0.0f : lse[1] - (hit - lse[0]);
    }
}

static void cross_entropy_sums_task(void *context, int64_t task, int thread)
{
    const struct cross_entropy *c = context;
    int64_t from = task * c->rows_of_task, to = kernel_least(from + c->rows_of_task, c->rows);

    (void)thread;
    for (int64_t row = from; row < to; row++) {
        int64_t column = cross_entropy_column(c, row);
        float *sums = c->sums + 3 * row;

        cross_entropy_sum(c, c->type, row, sums);
        sums[2] = column < 0
                      ? 0.0f
                      : kernel_lane(typed_load_n(c->logits, c->type, row * c->columns + column, 1));
    }
}

static int cross_entropy_sums_kernel(struct backend *backend, const struct kernel_call *call,
                                     struct fleet_error *err)
{
    const struct program_var *logits = kernel_in(call, 0);
    struct cross_entropy c = {.logits = call->in[0],
                              .targets = call->in[1],
                              .sums = call->out[0],
                              .type = logits->type,
                              .rows = operand_rows(logits),
                              .columns = operand_columns(logits),
                              .ignored = call->op->attributes.ignore_index,
                              .divided = call->op->attributes.divided,
                              .first = call->op->attributes.first_word};

    if (cross_entropy_count(&c, err) < 0)
        return -EINVAL;
    c.rows_of_task = kernel_rows_of_task(c.columns);
    cpu_parallel(cpu_backend(backend), kernel_pieces(c.rows, c.rows_of_task),
                 cross_entropy_sums_task, &c);
    return 0;
}

static int cross_entropy_kernel(struct backend *backend, const struct kernel_call *call,
                                struct fleet_error *err)
{
    const struct program_var *logits = kernel_in(call, 0);
    struct cross_entropy c = {.logits = call->in[0],
                              .targets = call->in[1],
                              .row_loss = call->scratch,
                              .lse = call->out[1],
                              .type = logits->type,
                              .rows = operand_rows(logits),
                              .columns = operand_columns(logits),
                              .ignored = call->op->attributes.ignore_index,
                              .divided = call->op->attributes.divided,
                              .first = call->op->attributes.first_word,
                              .all_sums = call->in[2]};
    int64_t count = cross_entropy_count(&c, err);
    double sum = 0;

    if (count < 0)
        return -EINVAL;
    if (c.all_sums)
        c.parts = kernel_in(call, 2)->shape[0] / c.rows;
    c.rows_of_task = kernel_rows_of_task(c.columns);
    cpu_parallel(cpu_backend(backend), kernel_pieces(c.rows, c.rows_of_task), cross_entropy_task,
                 &c);
    for (int64_t i = 0; i < c.rows; i++)
        sum += (double)c.row_loss[i];
    *(float *)call->out[0] = count > 0 ? (float)(sum / (double)count) : 0.0f;
    return 0;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The softmax probabilities of logits x: exp(x - max - log Σ). */
V_INLINE v16 cross_entropy_p(v16 x, const float lse[2])
{
    return v_exp(v_sub(v_sub(x, v_set(lse[0])), v_set(lse[1])));
}

V_INLINE void cross_entropy_grad_row(const struct cross_entropy *c, enum program_type type,
                                     enum program_type d_type, int64_t row)
{
    v16 scale = v_set(c->targets[row] != c->ignored ? c->scale : 0.0f);
    const float *lse = c->lse + 2 * row;
    int64_t at = row * c->columns, column = cross_entropy_column(c, row);
    float hit = 0;

    if (column >= 0) /* before d_logits overwrites it */
        hit = (kernel_lane(cross_entropy_p(typed_load_n(c->logits, type, at + column, 1), lse)) -
               1.0f) *
              c->scale;
    for (int64_t j = 0; j < c->columns; j += V_LANES) {
        int64_t n = c->columns - j;
        v16 p = cross_entropy_p(typed_load_n(c->logits, type, at + j, n), lse);
        typed_store_n(c->d_logits, d_type, at + j, n, v_mul(p, scale));
    }
    if (column >= 0)
        typed_store_n(c->d_logits, d_type, at + column, 1, v_set(hit));
}

static void cross_entropy_grad_task(void *context, int64_t task, int thread)
{
    const struct cross_entropy *c = context;
    int64_t from = task * c->rows_of_task, to = kernel_least(from + c->rows_of_task, c->rows);

    (void)thread;
    for (int64_t row = from; row < to; row++)
        if (c->type == PROGRAM_FP32 && c->d_type == PROGRAM_FP32)
            cross_entropy_grad_row(c, PROGRAM_FP32, PROGRAM_FP32, row);
        else
            cross_entropy_grad_row(c, c->type, c->d_type, row);
}

static int cross_entropy_grad_kernel(struct backend *backend, const struct kernel_call *call,
                                     struct fleet_error *err)
{
    const struct program_var *logits = kernel_in(call, 0);
    struct cross_entropy c = {.logits = call->in[0],
                              .targets = call->in[1],
                              .lse = (float *)(uintptr_t)call->in[2], /* read only here */
                              .d_logits = call->out[0],
                              .type = logits->type,
                              .d_type = kernel_out_type(call, 0),
                              .rows = operand_rows(logits),
                              .columns = operand_columns(logits),
                              .ignored = call->op->attributes.ignore_index,
                              .divided = call->op->attributes.divided,
                              .first = call->op->attributes.first_word};
    int64_t count = cross_entropy_count(&c, err);

    if (count < 0)
        return -EINVAL;
    if (count > 0)
        c.scale = (call->in[3] ? *(const float *)call->in[3] : 1.0f) / (float)count;
    c.rows_of_task = kernel_rows_of_task(c.columns);
    cpu_parallel(cpu_backend(backend), kernel_pieces(c.rows, c.rows_of_task),
                 cross_entropy_grad_task, &c);
    return 0;
}

#endif
