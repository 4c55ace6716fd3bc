/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_ROPE_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_ROPE_H

/*
 * Rotary positions: elements i and i + D/2 of a head are turned by position · base^(-2i/D); turning
 * back is the gradient. Angles are counted in turns and in double, so that a late position is as
 * exact as an early one; sine and cosine of the rest of a turn are series of our own.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct rope {
    const void *x;
    void *y;
    float *cosines, *sines; /* [context][half] */
    double *turns;          /* per position, of each pair */
    enum program_type x_type, y_type;
    int64_t batch, context, width, heads, half;
    bool inverse;
};

/* e^x for x <= 0 in double: 2^n · series of the rest. libm's differs between machines. */
static double rope_exp(double x)
{
    double n = -floor(-x * 1.4426950408889634 + 0.5), r, sum = 1, term = 1;

    r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    for (int i = 1; i < 18; i++) {
        term *= r / i;
        sum += term;
    }
    return ldexp(sum, (int)n);
}

/* ln x for x > 1: 2·artanh((m - 1)/(m + 1)) and the exponent. */
static double rope_log(double x)
{
    int exponent;
    double m = frexp(x, &exponent), s, square, sum = 0;

    s = (m - 1) / (m + 1); /* m in [0.5, 1): |s| <= 1/3 */
    square = s * s;
    for (int i = 39; i >= 1; i -= 2)
        sum = sum * square + 1.0 / i;
    return 2 * s * sum + exponent * 0.693147180559945309417;
}

/* Cosine and sine of `turns`. */
static void rope_turn(double turns, float *cosine, float *sine)
{
    double rest = turns - floor(turns + 0.5); /* [-1/2, 1/2) */
    double quarter = floor(4 * rest + 0.5), a = (rest - quarter / 4) * 6.283185307179586, z = a * a;
    double s = a * (1 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z / 362880))));
    double c = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z / 3628800))));

    switch ((int)quarter & 3) {
    case 0:
        *cosine = (float)c, *sine = (float)s;
        return;
    case 1:
        *cosine = (float)-s, *sine = (float)c;
        return;
    case 2:
        *cosine = (float)-c, *sine = (float)-s;
        return;
    default:
        *cosine = (float)s, *sine = (float)-c;
        return;
    }
}

static void rope_table_task(void *context, int64_t position, int thread)
{
    const struct rope *r = context;

    (void)thread;
    for (int64_t i = 0; i < r->half; i++) {
        int64_t at = position * r->half + i;
        rope_turn((double)position * r->turns[i], &r->cosines[at], &r->sines[at]);
        if (r->inverse)
            r->sines[at] = -r->sines[at];
    }
}

/* One position of one sample: heads turned, the rest copied. */
static void rope_task(void *context, int64_t row, int thread)
{
    const struct rope *r = context;
    const float *cosines = r->cosines + row % r->context * r->half;
    const float *sines = r->sines + row % r->context * r->half;
    int64_t turned = r->heads * r->half * 2;

    (void)thread;
    for (int64_t at = row * r->width; at < row * r->width + turned; at += 2 * r->half)
        for (int64_t i = 0; i < r->half; i += V_LANES) {
            int64_t n = r->half - i;
            v16 a = typed_load_n(r->x, r->x_type, at + i, n), c = v_load_n(cosines + i, n);
            v16 b = typed_load_n(r->x, r->x_type, at + r->half + i, n), s = v_load_n(sines + i, n);
            typed_store_n(r->y, r->y_type, at + i, n, v_sub(v_mul(a, c), v_mul(b, s)));
            typed_store_n(r->y, r->y_type, at + r->half + i, n, v_add(v_mul(b, c), v_mul(a, s)));
        }
    for (int64_t j = turned; j < r->width && r->x != r->y; j += V_LANES)
        typed_store_n(r->y, r->y_type, row * r->width + j, r->width - j,
                      typed_load_n(r->x, r->x_type, row * r->width + j, r->width - j));
}

static int rope_kernel(struct backend *backend, const struct kernel_call *call,
                       struct fleet_error *err)
{
    const struct program_var *x = kernel_in(call, 0);
    const struct op_attributes *a = &call->op->attributes;
    struct rope r = {.x = call->in[0],
                     .y = call->out[0],
                     .x_type = x->type,
                     .y_type = kernel_out_type(call, 0),
                     .batch = x->shape[0],
                     .context = x->shape[1],
                     .width = x->shape[2],
                     .heads = a->heads,
                     .half = a->head_dim / 2,
                     .inverse = a->inverse};
    double log_base = rope_log(a->base);

    (void)err;
    r.turns = call->scratch;
    r.cosines = (float *)(r.turns + r.half);
    r.sines = r.cosines + r.context * r.half;
    for (int64_t i = 0; i < r.half; i++)
        r.turns[i] = rope_exp(-log_base * (double)i / (double)r.half) / 6.283185307179586;
    cpu_parallel(cpu_backend(backend), r.context, rope_table_task, &r);
    cpu_parallel(cpu_backend(backend), r.batch * r.context, rope_task, &r);
    return 0;
}

#endif
