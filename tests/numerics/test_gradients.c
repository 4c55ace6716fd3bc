/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operators against formulas in double: the forward kernel against the formula, the backward kernel
 * against the formula's central differences, element by element. Shapes are odd on purpose and
 * cross the edges of vectors and tiles. At every level.
 *
 * Tolerances: fp32 sums of n terms are off by about √n · 6e-8 of their size; differences in double
 * with h = 1e-4 by 1e-8. 2e-5 of the largest element covers both for the sums of up to 70 terms
 * here.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"
#include "tests/numerics/gradient_formulas.h"
#include "tests/numerics/kernel_rig.h"

#define STEP      1e-4
#define TOLERANCE 2e-5

/* ---- the harness ----------------------------------------------------------------------------- */

struct check {
    const struct formula *f;
    enum fleet_isa level;
    float *in[INPUTS_MAX];
    double *wide[INPUTS_MAX];
    int32_t *ids;     /* input f->integers */
    float *cotangent; /* d_y */
    double *y;
};

static void give_input(struct rig *rig, const struct check *c, int i)
{
    const int64_t *shape = c->f->in[i];
    bool integers = i == c->f->integers;

    rig_in(rig, integers ? PROGRAM_INT32 : PROGRAM_FP32, ndim_of(shape), shape,
           integers ? (void *)c->ids : (void *)c->in[i]);
}

static void compare(const struct check *c, const char *what, const float *actual,
                    const double *expected, int64_t count)
{
    double largest = 1e-3;

    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)actual[i] - expected[i]) <= TOLERANCE * largest))
            fail_msg("%s at level %s, %s[%ld]: %.9g, expected %.9g ± %g", c->f->name,
                     fleet_isa_names[c->level], what, (long)i, (double)actual[i], expected[i],
                     TOLERANCE * largest);
}

static double scalar_of(const struct check *c)
{
    double sum = 0;

    c->f->forward(c->f, c->wide, c->y);
    for (int64_t i = 0; i < count_of(c->f->out[0]); i++)
        sum += (double)c->cotangent[i] * c->y[i];
    return sum;
}

static void run_forward(const struct check *c, struct rig *rig)
{
    const struct formula *f = c->f;
    float zeros[64] = {0};
    int64_t channels = f->in[0][1];

    rig_init(rig, f->kind);
    rig->op.attributes = f->attributes;
    for (int i = 0; i < inputs_of(f); i++)
        give_input(rig, c, i);
    if (f->kind == OP_BATCH_NORM) { /* running statistics, which training leaves alone */
        rig_in(rig, PROGRAM_FP32, 1, &channels, zeros);
        rig_in(rig, PROGRAM_FP32, 1, &channels, zeros);
    }
    rig_out(rig, PROGRAM_FP32, ndim_of(f->out[0]), f->out[0]);
    for (int i = 0; i < (f->kind == OP_BATCH_NORM ? 4 : f->kept); i++)
        rig_out(rig, PROGRAM_FP32, ndim_of(f->out[1]), f->out[1]);
    rig_run(rig, c->level);
    f->forward(f, c->wide, c->y);
    compare(c, "y", rig->out[0], c->y, count_of(f->out[0]));
}

static void run_backward(const struct check *c, const struct rig *forward, struct rig *rig)
{
    const struct formula *f = c->f;
    bool loss_last = f->kind == OP_CROSS_ENTROPY;
    int inputs = inputs_of(f);

    rig_init(rig, f->grad);
    rig->op.attributes = f->attributes;
    rig->op.attributes.inverse = f->kind == OP_ROPE;
    if (!loss_last)
        rig_in(rig, PROGRAM_FP32, ndim_of(f->out[0]), f->out[0], c->cotangent);
    /* Of linear and the norms: without the bias or shift. */
    if (f->kind == OP_LINEAR || f->kind == OP_LAYER_NORM || f->kind == OP_BATCH_NORM)
        inputs = 2;
    for (int i = 0; i < inputs && f->grad_reads_inputs; i++)
        give_input(rig, c, i);
    if (f->grad_reads_output)
        rig_in(rig, PROGRAM_FP32, ndim_of(f->out[0]), f->out[0], forward->out[0]);
    for (int i = 0; i < f->kept; i++)
        rig_in(rig, PROGRAM_FP32, ndim_of(f->out[1]), f->out[1], forward->out[1 + i]);
    if (loss_last)
        rig_in(rig, PROGRAM_FP32, ndim_of(f->out[0]), f->out[0], c->cotangent);
    for (int i = 0; i < f->gradients; i++)
        rig_out(rig, PROGRAM_FP32, ndim_of(f->in[i]), f->in[i]);
    rig_run(rig, c->level);
}

static void check_slopes(const struct check *c, const struct rig *rig)
{
    for (int i = 0; i < c->f->gradients; i++) {
        int64_t count = count_of(c->f->in[i]);
        double *slopes = malloc((size_t)count * sizeof(*slopes));
        char what[16];
        for (int64_t e = 0; e < count; e++) {
            double x = c->wide[i][e], up, down;
            c->wide[i][e] = x + STEP;
            up = scalar_of(c);
            c->wide[i][e] = x - STEP;
            down = scalar_of(c);
            c->wide[i][e] = x;
            slopes[e] = (up - down) / (2 * STEP);
        }
        (void)snprintf(what, sizeof(what), "d_in%d", i);
        compare(c, what, rig->out[i], slopes, count);
        free(slopes);
    }
}

static void fill(struct check *c)
{
    const struct formula *f = c->f;

    for (int i = 0; i < inputs_of(f); i++) {
        int64_t count = count_of(f->in[i]);
        c->in[i] = malloc((size_t)count * sizeof(float));
        c->wide[i] = malloc((size_t)count * sizeof(double));
        fleet_random_normal(fleet_random_key(3, f->name, (uint64_t)i), 0, (size_t)count, 0, 1,
                            c->in[i]);
        if (i == f->integers) {
            c->ids = malloc((size_t)count * sizeof(int32_t));
            for (int64_t e = 0; e < count; e++) {
                c->ids[e] =
                    (int32_t)(e % 5 == 4 ? f->attributes.ignore_index : e * 7 % f->in[0][1]);
                c->in[i][e] = (float)c->ids[e];
            }
        }
        for (int64_t e = 0; e < count; e++) {
            /* Not within a step of relu's edge. */
            if (i != f->integers && fabsf(c->in[i][e]) < 1e-2f)
                c->in[i][e] = 0.5f;
            c->wide[i][e] = (double)c->in[i][e];
        }
    }
    c->cotangent = malloc((size_t)count_of(f->out[0]) * sizeof(float));
    c->y = malloc((size_t)count_of(f->out[0]) * sizeof(double));
    fleet_random_normal(fleet_random_key(4, f->name, 0), 0, (size_t)count_of(f->out[0]), 0, 1,
                        c->cotangent);
}

static void run_formula(const struct formula *f, enum fleet_isa level)
{
    struct check c = {.f = f, .level = level};
    struct rig forward, backward;

    fill(&c);
    run_forward(&c, &forward);
    run_backward(&c, &forward, &backward);
    check_slopes(&c, &backward);
    rig_release(&forward);
    rig_release(&backward);
    for (int i = 0; i < INPUTS_MAX; i++) {
        free(c.in[i]);
        free(c.wide[i]);
    }
    free(c.ids);
    free(c.cotangent);
    free(c.y);
}

static const struct formula formulas[] = {
    {"linear, [K,M], gelu",
     OP_LINEAR,
     OP_LINEAR_GRAD,
     {.activation = OP_ACTIVATION_GELU},
     {{19, 21}, {21, 37}, {37}},
     {{19, 37}, {19, 37}},
     1,
     true,
     false,
     -1,
     3,
     linear_formula},
    {"linear, [M,K], relu",
     OP_LINEAR,
     OP_LINEAR_GRAD,
     {.activation = OP_ACTIVATION_RELU, .transposed = true},
     {{9, 5}, {35, 5}, {35}},
     {{9, 35}, {9, 35}},
     1,
     true,
     false,
     -1,
     3,
     linear_formula},
    {"linear, [K,M]",
     OP_LINEAR,
     OP_LINEAR_GRAD,
     {.heads = 0},
     {{1, 17}, {17, 1}, {1}},
     {{1, 1}, {0}},
     0,
     true,
     false,
     -1,
     3,
     linear_formula},
    {"layer_norm",
     OP_LAYER_NORM,
     OP_LAYER_NORM_GRAD,
     {.epsilon = 1e-5},
     {{7, 37}, {37}, {37}},
     {{7, 37}, {7}},
     2,
     true,
     false,
     -1,
     3,
     norm_formula},
    {"rms_norm",
     OP_RMS_NORM,
     OP_RMS_NORM_GRAD,
     {.epsilon = 1e-5},
     {{70, 18}, {18}},
     {{70, 18}, {70}},
     1,
     true,
     false,
     -1,
     2,
     norm_formula},
    {"batch_norm",
     OP_BATCH_NORM,
     OP_BATCH_NORM_GRAD,
     {.epsilon = 1e-5, .momentum = 0.1},
     {{3, 4, 5, 7}, {4}, {4}},
     {{3, 4, 5, 7}, {4}},
     2,
     true,
     false,
     -1,
     3,
     batch_norm_formula},
    {"gelu",
     OP_GELU,
     OP_GELU_GRAD,
     {.heads = 0},
     {{5, 13}},
     {{5, 13}},
     0,
     true,
     false,
     -1,
     1,
     elementwise_formula},
    {"relu",
     OP_RELU,
     OP_RELU_GRAD,
     {.heads = 0},
     {{5, 13}},
     {{5, 13}},
     0,
     true,
     false,
     -1,
     1,
     elementwise_formula},
    {"silu",
     OP_SILU,
     OP_SILU_GRAD,
     {.heads = 0},
     {{5, 13}},
     {{5, 13}},
     0,
     true,
     false,
     -1,
     1,
     elementwise_formula},
    {"swiglu",
     OP_SWIGLU,
     OP_SWIGLU_GRAD,
     {.heads = 0},
     {{5, 13}, {5, 13}},
     {{5, 13}},
     0,
     true,
     false,
     -1,
     2,
     elementwise_formula},
    {"softmax",
     OP_SOFTMAX,
     OP_SOFTMAX_GRAD,
     {.heads = 0},
     {{4, 37}},
     {{4, 37}},
     0,
     false,
     true,
     -1,
     1,
     softmax_formula},
    {"rope, part of the columns",
     OP_ROPE,
     OP_ROPE,
     {.heads = 2, .head_dim = 6, .base = 10000},
     {{2, 9, 15}},
     {{2, 9, 15}},
     0,
     false,
     false,
     -1,
     1,
     rope_formula},
    {"rope, wide heads",
     OP_ROPE,
     OP_ROPE,
     {.heads = 1, .head_dim = 34, .base = 500},
     {{1, 5, 34}},
     {{1, 5, 34}},
     0,
     false,
     false,
     -1,
     1,
     rope_formula},
    {"attention, causal, shared keys",
     OP_ATTENTION,
     OP_ATTENTION_GRAD,
     {.heads = 2, .kv_heads = 1, .causal = true},
     {{1, 67, 12}},
     {{1, 67, 6}, {1, 2, 67}},
     1,
     true,
     true,
     -1,
     1,
     attention_formula},
    {"attention, two groups of heads",
     OP_ATTENTION,
     OP_ATTENTION_GRAD,
     {.heads = 4, .kv_heads = 2, .causal = true},
     {{1, 9, 24}},
     {{1, 9, 12}, {1, 4, 9}},
     1,
     true,
     true,
     -1,
     1,
     attention_formula},
    {"attention, everything seen",
     OP_ATTENTION,
     OP_ATTENTION_GRAD,
     {.heads = 2, .kv_heads = 2},
     {{2, 21, 30}},
     {{2, 21, 10}, {2, 2, 21}},
     1,
     true,
     true,
     -1,
     1,
     attention_formula},
    {"cross_entropy",
     OP_CROSS_ENTROPY,
     OP_CROSS_ENTROPY_GRAD,
     {.ignore_index = -7},
     {{11, 37}, {11}},
     {{1}, {11, 2}},
     1,
     true,
     false,
     1,
     1,
     cross_entropy_formula},
    {"conv2d, stride 2 and 1",
     OP_CONV2D,
     OP_CONV2D_GRAD,
     {.stride = {2, 1}, .padding = {1, 2}},
     {{2, 3, 7, 6}, {5, 3, 3, 4}},
     {{2, 5, 4, 7}},
     0,
     true,
     false,
     -1,
     2,
     conv2d_formula},
    {"conv2d, more padding than window",
     OP_CONV2D,
     OP_CONV2D_GRAD,
     {.stride = {1, 2}, .padding = {1, 3}},
     {{2, 3, 4, 5}, {5, 3, 1, 2}},
     {{2, 5, 6, 5}},
     0,
     true,
     false,
     -1,
     2,
     conv2d_formula},
    {"conv2d, stride 1",
     OP_CONV2D,
     OP_CONV2D_GRAD,
     {.stride = {1, 1}, .padding = {1, 1}},
     {{1, 2, 6, 9}, {9, 2, 3, 3}},
     {{1, 9, 6, 9}},
     0,
     true,
     false,
     -1,
     2,
     conv2d_formula},
};

static void test_gradients__are_the_formulas_slopes(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(formulas); i++)
        for (int level = 0; level <= (int)backend_level_of_machine(); level++)
            run_formula(&formulas[i], (enum fleet_isa)level);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients__are_the_formulas_slopes),
    };

    for (int level = (int)backend_level_of_machine() + 1; level < FLEET_ISA_COUNT; level++)
        printf("level %s is skipped: the machine lacks it\n", fleet_isa_names[level]);
    return cmocka_run_group_tests_name("gradients", tests, NULL, NULL);
}
