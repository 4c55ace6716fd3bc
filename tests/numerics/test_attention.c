/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Attention of 16-bit tensors and its gradient against the formula in double, at sizes around those
 * of the kernels' tiles. On the emulator these are the kernels on tensor cores.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"
#include "tests/numerics/kernel_rig.h"

struct attention_case {
    int64_t batch, context, heads, kv_heads, columns;
    bool causal;
};

/* Tiles have 32, 64 and 128 positions, and 64 or 128 columns. */
static const struct attention_case cases[] = {
    {1, 1, 1, 1, 64, true},    {1, 16, 1, 1, 64, false},  {2, 64, 2, 1, 64, true},
    {1, 131, 2, 2, 64, true},  {1, 131, 2, 1, 64, false}, {1, 65, 1, 1, 128, true},
    {1, 150, 4, 2, 128, true}, {2, 33, 2, 2, 128, false}, {1, 70, 3, 1, 40, true},
    {1, 37, 2, 1, 72, false},  {1, 197, 1, 1, 64, true},
};

/* Of one case; packed as the operator has them. */
struct problem {
    const struct attention_case *c;
    int64_t width;             /* of a row of qkv */
    uint16_t *qkv, *d_out;     /* rounded */
    double *out, *lse, *d_qkv; /* the formula's */
};

static int64_t rows_of(const struct attention_case *c)
{
    return c->batch * c->context;
}

static double value_of(uint16_t bits, enum program_type type)
{
    return (double)(type == PROGRAM_BF16 ? typed_of_bf16(bits) : typed_of_fp16(bits));
}

static uint16_t *random_half(const char *name, int64_t count, enum program_type type)
{
    float *x = malloc((size_t)count * sizeof(*x));
    uint16_t *out = malloc((size_t)count * sizeof(*out));

    fleet_random_normal(fleet_random_key(11, name, 0), 0, (size_t)count, 0, 1, x);
    for (int64_t i = 0; i < count; i++)
        out[i] = type == PROGRAM_BF16 ? typed_to_bf16(x[i]) : typed_to_fp16(x[i]);
    free(x);
    return out;
}

/* One query: its row of out and lse, and what it adds to d_qkv. */
static void query_formula(struct problem *p, enum program_type type, int64_t b, int64_t h,
                          int64_t query)
{
    const struct attention_case *c = p->c;
    int64_t group = h / (c->heads / c->kv_heads), d = c->columns;
    int64_t seen = c->causal ? query + 1 : c->context, row = b * c->context + query;
    int64_t q = row * p->width + h * d, out = (row * c->heads + h) * d;
    double *weight = calloc((size_t)seen, sizeof(*weight)), total = 0, dot = 0;
    double scale = 1 / sqrt((double)d);

#define AT(array, i) value_of((array)[i], type)
    for (int64_t j = 0; j < seen; j++) {
        int64_t k = (b * c->context + j) * p->width + (c->heads + group) * d;
        for (int64_t i = 0; i < d; i++)
            weight[j] += AT(p->qkv, q + i) * AT(p->qkv, k + i);
        weight[j] = exp(weight[j] * scale);
        total += weight[j];
    }
    p->lse[(b * c->heads + h) * c->context + query] = log(total);
    for (int64_t j = 0; j < seen; j++) {
        int64_t v = (b * c->context + j) * p->width + (c->heads + c->kv_heads + group) * d;
        weight[j] /= total;
        for (int64_t i = 0; i < d; i++)
            p->out[out + i] += weight[j] * AT(p->qkv, v + i);
    }
    for (int64_t i = 0; i < d; i++)
        dot += p->out[out + i] * AT(p->d_out, out + i);
    for (int64_t j = 0; j < seen; j++) {
        int64_t k = (b * c->context + j) * p->width + (c->heads + group) * d;
        int64_t v = k + c->kv_heads * d;
        double slope = -dot;
        for (int64_t i = 0; i < d; i++)
            slope += AT(p->d_out, out + i) * AT(p->qkv, v + i);
        slope *= weight[j] * scale;
        for (int64_t i = 0; i < d; i++) {
            p->d_qkv[v + i] += weight[j] * AT(p->d_out, out + i);
            p->d_qkv[k + i] += slope * AT(p->qkv, q + i);
            p->d_qkv[q + i] += slope * AT(p->qkv, k + i);
        }
    }
#undef AT
    free(weight);
}

static struct problem problem_of(const struct attention_case *c, enum program_type type)
{
    struct problem p = {.c = c, .width = (c->heads + 2 * c->kv_heads) * c->columns};
    int64_t outs = rows_of(c) * c->heads * c->columns;

    p.qkv = random_half("qkv", rows_of(c) * p.width, type);
    p.d_out = random_half("d_out", outs, type);
    p.out = calloc((size_t)outs, sizeof(double));
    p.lse = calloc((size_t)(rows_of(c) * c->heads), sizeof(double));
    p.d_qkv = calloc((size_t)(rows_of(c) * p.width), sizeof(double));
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t q = 0; q < c->context; q++)
                query_formula(&p, type, b, h, q);
    return p;
}

static void release(struct problem *p)
{
    free(p->qkv);
    free(p->d_out);
    free(p->out);
    free(p->lse);
    free(p->d_qkv);
}

/* The root of the mean square error, by that of the expected numbers; and no single one far off. */
static void check(const char *what, const struct attention_case *c, enum program_type type,
                  const void *got, enum program_type got_type, const double *expected,
                  int64_t count)
{
    double unit = type == PROGRAM_BF16 ? 0x1p-8 : 0x1p-11, error = 0, size = 0, worst = 0;

    for (int64_t i = 0; i < count; i++) {
        double x = got_type == PROGRAM_FP32 ? (double)((const float *)got)[i]
                                            : value_of(((const uint16_t *)got)[i], got_type);
        double off = fabs(x - expected[i]);
        if (!(off <= worst))
            worst = off;
        error += off * off;
        size += expected[i] * expected[i];
    }
    error = sqrt(error / (size + 1e-30));
    /* p and d_s are rounded, and the result: 0.3 units each. A gradient that cancels to 0 (one
     * key) has the error of its parts. */
    if (!(error <= unit) && !(sqrt(size) < 1e-9 && worst <= 2 * unit))
        fail_msg("%s of %s, context %d, %d heads of %d, %scausal: off by %.3g (worst %.3g)", what,
                 program_type_name(type), (int)c->context, (int)c->heads, (int)c->columns,
                 c->causal ? "" : "not ", error, worst);
}

static void run_case(const struct attention_case *c, enum program_type type, enum fleet_isa level)
{
    struct problem p = problem_of(c, type);
    int64_t qkv_shape[3] = {c->batch, c->context, p.width};
    int64_t out_shape[3] = {c->batch, c->context, c->heads * c->columns};
    int64_t lse_shape[3] = {c->batch, c->heads, c->context};
    struct rig forward, backward;

    rig_init(&forward, OP_ATTENTION);
    rig_init(&backward, OP_ATTENTION_GRAD);
    forward.op.attributes.heads = backward.op.attributes.heads = (int)c->heads;
    forward.op.attributes.kv_heads = backward.op.attributes.kv_heads = (int)c->kv_heads;
    forward.op.attributes.causal = backward.op.attributes.causal = c->causal;
    rig_in(&forward, type, 3, qkv_shape, p.qkv);
    rig_out(&forward, type, 3, out_shape);
    rig_out(&forward, PROGRAM_FP32, 3, lse_shape);
    rig_run(&forward, level);
    check("out", c, type, forward.out[0], type, p.out, rows_of(c) * c->heads * c->columns);
    check("lse", c, type, forward.out[1], PROGRAM_FP32, p.lse, rows_of(c) * c->heads);

    rig_in(&backward, type, 3, out_shape, p.d_out);
    rig_in(&backward, type, 3, qkv_shape, p.qkv);
    rig_in(&backward, type, 3, out_shape, forward.out[0]);
    rig_in(&backward, PROGRAM_FP32, 3, lse_shape, forward.out[1]);
    rig_out(&backward, type, 3, qkv_shape);
    rig_run(&backward, level);
    check("d_qkv", c, type, backward.out[0], type, p.d_qkv, rows_of(c) * p.width);
    rig_release(&forward);
    rig_release(&backward);
    release(&p);
}

static void test_attention__is_the_formula(void **state)
{
    (void)state;
    EACH_LEVEL(level)
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        run_case(&cases[i], PROGRAM_BF16, level);
        run_case(&cases[i], PROGRAM_FP16, level);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention__is_the_formula),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
