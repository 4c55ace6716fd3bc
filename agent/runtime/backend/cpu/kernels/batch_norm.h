/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_BATCH_NORM_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_BATCH_NORM_H

/*
 * Batch normalization of [B,C,…] per channel: a task is a channel, its sums run over the images in
 * order. Forward also gives the unbiased variance, which the host folds into the running one.
 * Backward, with x̂ = (x - mean)·rstd and n elements a channel:
 *   d_shift = Σ d_y, d_scale = Σ d_y·x̂, d_x = scale·rstd·(d_y - d_shift/n - x̂·d_scale/n).
 * Statistics of several ranks come as sums (op.h) over x minus the running mean, which is the same
 * on all ranks. So the square of a large mean does not swallow the variance.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct batch_norm {
    const void *x, *d_y;
    const void *residual; /* added to y; NULL: none */
    bool relu;            /* of y */
    const float *scale, *shift;
    float *mean, *rstd, *stat_mean, *stat_var;
    const float *running_mean, *running_var;
    bool is_evaluation; /* the running ones are used instead of the batch's own */
    void *out;          /* y, or d_x */
    float *d_scale, *d_shift;
    const float *total, *own; /* sums of all ranks, of this one; NULL: of this micro-batch alone */
    float *sums;              /* what BATCH_NORM_SUMS and BATCH_NORM_GRAD_SUMS give */
    enum program_type x_type, d_type, residual_type, out_type;
    int64_t batch, channels, plane;
    float epsilon;
};

/* The first element of a channel in an image. */
static inline int64_t batch_norm_at(const struct batch_norm *s, int64_t image, int64_t channel)
{
    return (image * s->channels + channel) * s->plane;
}

static float batch_norm_mean(const struct batch_norm *s, int64_t channel)
{
    v16 sum = v_zero();

    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->plane; i += V_LANES)
            sum = v_add(
                sum, typed_load_n(s->x, s->x_type, batch_norm_at(s, b, channel) + i, s->plane - i));
    return v_sum(sum) / (float)(s->batch * s->plane);
}

/* Σ(x - mean)², and Σ(x - mean) into *out_sum. */
static float batch_norm_squares(const struct batch_norm *s, int64_t channel, float mean,
                                float *out_sum)
{
    v16 sum = v_zero(), squares = v_zero();

    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->plane; i += V_LANES) {
            int64_t n = s->plane - i;
            v16 x = typed_load_n(s->x, s->x_type, batch_norm_at(s, b, channel) + i, n);
            x = v_sub(x, v_set(mean));
            if (n < V_LANES)
                x = v_select(v_first((int)n), x, v_zero());
            sum = v_add(sum, x);
            squares = v_fma(x, x, squares);
        }
    *out_sum = v_sum(sum);
    return v_sum(squares);
}

/* The micro-batch's own statistics of a channel, to s->mean, s->rstd and for the host. */
static void batch_norm_measure(const struct batch_norm *s, int64_t channel)
{
    float n = (float)(s->batch * s->plane), mean, squares, rest;

    if (s->total) {
        float shifted;
        n = s->total[2 * s->channels];
        shifted = s->total[channel] / n;
        mean = s->running_mean[channel] + shifted;
        squares = fmaxf(s->total[s->channels + channel] - n * shifted * shifted, 0.0f);
        if (isnan(s->total[s->channels + channel]))
            squares = NAN; /* fmaxf() hides it */
    } else {
        mean = batch_norm_mean(s, channel);
        squares = batch_norm_squares(s, channel, mean, &rest);
    }
    s->mean[channel] = mean;
    s->rstd[channel] = 1.0f / sqrtf(squares / n + s->epsilon);
    if (s->stat_mean) /* absent where it is recomputed */
        s->stat_mean[channel] = mean;
    if (s->stat_var)
        s->stat_var[channel] = squares / (n > 1.0f ? n - 1.0f : 1.0f);
}

static void batch_norm_task(void *context, int64_t channel, int thread)
{
    const struct batch_norm *s = context;
    v16 scale = v_set(s->scale[channel]), shift = v_set(s->shift[channel]);
    float mean, rstd;

    (void)thread;
    if (s->is_evaluation) {
        s->mean[channel] = s->running_mean[channel];
        s->rstd[channel] = 1.0f / sqrtf(s->running_var[channel] + s->epsilon);
    } else {
        batch_norm_measure(s, channel);
    }
    mean = s->mean[channel];
    rstd = s->rstd[channel];
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->plane; i += V_LANES) {
            int64_t at = batch_norm_at(s, b, channel) + i;
            v16 x = v_sub(typed_load_n(s->x, s->x_type, at, s->plane - i), v_set(mean));
            x = v_add(v_mul(v_mul(x, v_set(rstd)), scale), shift);
            if (s->residual)
                x = v_add(x, typed_load_n(s->residual, s->residual_type, at, s->plane - i));
            if (s->relu)
                x = v_max(v_zero(), x); /* NaN stays */
            typed_store_n(s->out, s->out_type, at, s->plane - i, x);
        }
}

/* Sizes of x in input i. */
static struct batch_norm batch_norm_of(const struct kernel_call *call, int i)
{
    const struct program_var *x = kernel_in(call, i);
    int64_t elements = program_var_elements(x);

    return (struct batch_norm){.x = call->in[i],
                               .x_type = x->type,
                               .out = call->out[0],
                               .out_type = kernel_out_type(call, 0),
                               .batch = x->shape[0],
                               .channels = x->shape[1],
                               .plane = elements ? elements / x->shape[0] / x->shape[1] : 0,
                               .epsilon = (float)call->op->attributes.epsilon};
}

static int batch_norm_kernel(struct backend *backend, const struct kernel_call *call,
                             struct fleet_error *err)
{
    struct batch_norm s = batch_norm_of(call, 0);

    (void)err;
    s.scale = call->in[1];
    s.shift = call->in[2];
    s.is_evaluation = call->scalars->evaluation;
    s.running_mean = call->in[3];
    s.running_var = call->in[4];
    s.residual = call->in[5];
    s.residual_type = kernel_in_type(call, 5);
    s.total = call->in[6];
    s.relu = call->op->attributes.activation == OP_ACTIVATION_RELU;
    s.mean = call->out[1];
    s.rstd = call->out[2];
    s.stat_mean = call->out[3];
    s.stat_var = call->out[4];
    cpu_parallel(cpu_backend(backend), s.channels, batch_norm_task, &s);
    return 0;
}

/* Σ d_y, and Σ d_y·x̂ into *out_dot. */
static float batch_norm_d_sums(const struct batch_norm *s, int64_t channel, float *out_dot)
{
    v16 mean = v_set(s->mean[channel]), rstd = v_set(s->rstd[channel]);
    v16 sum = v_zero(), dot = v_zero();

    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->plane; i += V_LANES) {
            int64_t at = batch_norm_at(s, b, channel) + i;
            v16 x = v_mul(v_sub(typed_load_n(s->x, s->x_type, at, s->plane - i), mean), rstd);
            v16 d = typed_load_n(s->d_y, s->d_type, at, s->plane - i);
            sum = v_add(sum, d);
            dot = v_fma(d, x, dot); /* lanes past the end: d is 0 */
        }
    *out_dot = v_sum(dot);
    return v_sum(sum);
}

static void batch_norm_grad_task(void *context, int64_t channel, int thread)
{
    const struct batch_norm *s = context;
    v16 mean = v_set(s->mean[channel]), rstd = v_set(s->rstd[channel]);
    float d_shift, d_scale, n = (float)(s->batch * s->plane);

    (void)thread;
    if (s->total) {
        d_shift = s->total[channel];
        d_scale = s->total[s->channels + channel];
        n = s->total[2 * s->channels];
    } else {
        d_shift = batch_norm_d_sums(s, channel, &d_scale);
    }
    for (int64_t b = 0; b < s->batch && s->out; b++)
        for (int64_t i = 0; i < s->plane; i += V_LANES) {
            int64_t at = batch_norm_at(s, b, channel) + i;
            v16 x = v_mul(v_sub(typed_load_n(s->x, s->x_type, at, s->plane - i), mean), rstd);
            v16 d = typed_load_n(s->d_y, s->d_type, at, s->plane - i);
            d = v_sub(v_sub(d, v_set(d_shift / n)), v_mul(x, v_set(d_scale / n)));
            d = v_mul(d, v_mul(v_set(s->scale[channel]), rstd));
            typed_store_n(s->out, s->out_type, at, s->plane - i, d);
        }
    if (s->d_scale)
        s->d_scale[channel] = s->own ? s->own[s->channels + channel] : d_scale;
    if (s->d_shift)
        s->d_shift[channel] = s->own ? s->own[channel] : d_shift;
}

static int batch_norm_grad_kernel(struct backend *backend, const struct kernel_call *call,
                                  struct fleet_error *err)
{
    struct batch_norm s = batch_norm_of(call, 1);

    (void)err;
    s.d_y = call->in[0];
    s.d_type = kernel_in_type(call, 0);
    s.scale = call->in[2];
    s.mean = (float *)(uintptr_t)call->in[3]; /* read only here, as is rstd */
    s.rstd = (float *)(uintptr_t)call->in[4];
    s.d_scale = call->out[1];
    s.d_shift = call->out[2];
    s.total = call->in[5];
    s.own = call->in[6];
    cpu_parallel(cpu_backend(backend), s.channels, batch_norm_grad_task, &s);
    return 0;
}

static void batch_norm_sums_task(void *context, int64_t channel, int thread)
{
    const struct batch_norm *s = context;

    (void)thread;
    s->sums[s->channels + channel] =
        batch_norm_squares(s, channel, s->running_mean[channel], &s->sums[channel]);
}

static int batch_norm_sums_kernel(struct backend *backend, const struct kernel_call *call,
                                  struct fleet_error *err)
{
    struct batch_norm s = batch_norm_of(call, 0);

    (void)err;
    s.running_mean = call->in[1];
    s.sums = call->out[0];
    cpu_parallel(cpu_backend(backend), s.channels, batch_norm_sums_task, &s);
    s.sums[2 * s.channels] = (float)(s.batch * s.plane);
    return 0;
}

static void batch_norm_grad_sums_task(void *context, int64_t channel, int thread)
{
    const struct batch_norm *s = context;

    (void)thread;
    s->sums[channel] = batch_norm_d_sums(s, channel, &s->sums[s->channels + channel]);
}

static int batch_norm_grad_sums_kernel(struct backend *backend, const struct kernel_call *call,
                                       struct fleet_error *err)
{
    struct batch_norm s = batch_norm_of(call, 1);

    (void)err;
    s.d_y = call->in[0];
    s.d_type = kernel_in_type(call, 0);
    s.mean = (float *)(uintptr_t)call->in[2]; /* read only here, as is rstd */
    s.rstd = (float *)(uintptr_t)call->in[3];
    s.sums = call->out[0];
    cpu_parallel(cpu_backend(backend), s.channels, batch_norm_grad_sums_task, &s);
    s.sums[2 * s.channels] = (float)(s.batch * s.plane);
    return 0;
}

#endif
