/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_BATCH_NORM_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_BATCH_NORM_H

/*
 * Batch normalization of [B,C,…] per channel: a task is a channel, its sums run over the images in
 * order. Forward also gives the unbiased variance, which the host folds into the running one.
 * Backward, with x̂ = (x - mean)·rstd and n elements a channel:
 *   d_shift = Σ d_y, d_scale = Σ d_y·x̂, d_x = scale·rstd·(d_y - d_shift/n - x̂·d_scale/n).
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct batch_norm {
    const void *x, *d_y;
    const void *residual; /* added to y; NULL: none */
    bool relu;            /* of y */
    const float *scale, *shift;
    float *mean, *rstd, *stat_mean, *stat_var;
    const float *running_mean, *running_var; /* evaluation: used instead of the batch's own */
    void *out;                               /* y, or d_x */
    float *d_scale, *d_shift;
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

static float batch_norm_squares(const struct batch_norm *s, int64_t channel, float mean)
{
    v16 sum = v_zero();

    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->plane; i += V_LANES) {
            int64_t n = s->plane - i;
            v16 x = typed_load_n(s->x, s->x_type, batch_norm_at(s, b, channel) + i, n);
            x = v_sub(x, v_set(mean));
            if (n < V_LANES)
                x = v_select(v_first((int)n), x, v_zero());
            sum = v_fma(x, x, sum);
        }
    return v_sum(sum);
}

/* The micro-batch's own statistics of a channel, to s->mean, s->rstd and for the host. */
static void batch_norm_measure(const struct batch_norm *s, int64_t channel)
{
    int64_t n = s->batch * s->plane;
    float mean = batch_norm_mean(s, channel), squares = batch_norm_squares(s, channel, mean);

    s->mean[channel] = mean;
    s->rstd[channel] = 1.0f / sqrtf(squares / (float)n + s->epsilon);
    if (s->stat_mean) /* absent where it is recomputed */
        s->stat_mean[channel] = mean;
    if (s->stat_var)
        s->stat_var[channel] = squares / (float)(n > 1 ? n - 1 : 1);
}

static void batch_norm_task(void *context, int64_t channel, int thread)
{
    const struct batch_norm *s = context;
    v16 scale = v_set(s->scale[channel]), shift = v_set(s->shift[channel]);
    float mean, rstd;

    (void)thread;
    if (s->running_mean) {
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
    s.running_mean = call->scalars->evaluation ? call->in[3] : NULL;
    s.running_var = call->in[4];
    s.residual = call->in[5];
    s.residual_type = kernel_in_type(call, 5);
    s.relu = call->op->attributes.activation == OP_ACTIVATION_RELU;
    s.mean = call->out[1];
    s.rstd = call->out[2];
    s.stat_mean = call->out[3];
    s.stat_var = call->out[4];
    cpu_parallel(cpu_backend(backend), s.channels, batch_norm_task, &s);
    return 0;
}

static void batch_norm_grad_task(void *context, int64_t channel, int thread)
{
    const struct batch_norm *s = context;
    v16 mean = v_set(s->mean[channel]), rstd = v_set(s->rstd[channel]);
    v16 sum = v_zero(), dot = v_zero();
    float d_shift, d_scale, n = (float)(s->batch * s->plane);

    (void)thread;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->plane; i += V_LANES) {
            int64_t at = batch_norm_at(s, b, channel) + i;
            v16 x = v_mul(v_sub(typed_load_n(s->x, s->x_type, at, s->plane - i), mean), rstd);
            v16 d = typed_load_n(s->d_y, s->d_type, at, s->plane - i);
            sum = v_add(sum, d);
            dot = v_fma(d, x, dot); /* lanes past the end: d is 0 */
        }
    d_shift = v_sum(sum);
    d_scale = v_sum(dot);
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
        s->d_scale[channel] = d_scale;
    if (s->d_shift)
        s->d_shift[channel] = d_shift;
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
    cpu_parallel(cpu_backend(backend), s.channels, batch_norm_grad_task, &s);
    return 0;
}

#endif
