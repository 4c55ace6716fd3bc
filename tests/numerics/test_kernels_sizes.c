/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Kernels whose results depend on types and on how an operand is cut: 16-bit operands, large matrix
 * products, rows of many vectors. At every level.
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
#include "tests/numerics/kernel_data.h"

/* ---- 16 bits --------------------------------------------------------------------------------- */

/* An operator on [6,37] tensors, first in fp32 on rounded inputs, then in 16 bits. */
struct half_case {
    enum op_kind kind;
    int inputs, vectors; /* vectors: fp32 inputs [37] after them */
    int statistics;      /* fp32 outputs [6] after the first */
};

static const struct half_case half_cases[] = {
    {OP_ADD, 2, 0, 0},       {OP_GELU, 1, 0, 0},    {OP_GELU_GRAD, 2, 0, 0},
    {OP_SILU, 1, 0, 0},      {OP_SWIGLU, 2, 0, 0},  {OP_RELU, 1, 0, 0},
    {OP_SOFTMAX, 1, 0, 0},   {OP_SCALE, 1, 0, 0},   {OP_LAYER_NORM, 1, 2, 2},
    {OP_RMS_NORM, 1, 1, 1},  {OP_RESHAPE, 1, 0, 0}, {OP_SOFTMAX_GRAD, 2, 0, 0},
    {OP_RELU_GRAD, 2, 0, 0},
};

static void run_half_case(const struct half_case *h, enum program_type type, enum fleet_isa level)
{
    static const int64_t shape[2] = {6, 37};
    double unit = type == PROGRAM_BF16 ? 0x1p-8 : 0x1p-11; /* half a step, relative */
    float *x[2] = {normal("a", 6 * 37), normal("b", 6 * 37)};
    float *v[2] = {normal("c", 37), normal("d", 37)};
    uint16_t *half[2] = {narrowed(x[0], 6 * 37, type), narrowed(x[1], 6 * 37, type)};
    struct rig wide, narrow, *const rigs[2] = {&wide, &narrow};

    for (int r = 0; r < 2; r++) {
        enum program_type t = r ? type : PROGRAM_FP32;
        rig_init(rigs[r], h->kind);
        rigs[r]->op.attributes.epsilon = 1e-5;
        rigs[r]->op.attributes.scale = 0.3;
        for (int i = 0; i < h->inputs; i++)
            rig_in(rigs[r], t, 2, shape, r ? (void *)half[i] : (void *)x[i]);
        for (int i = 0; i < h->vectors; i++)
            rig_in(rigs[r], PROGRAM_FP32, 1, &shape[1], v[i]);
        rig_out(rigs[r], t, 2, shape);
        for (int i = 0; i < h->statistics; i++)
            rig_out(rigs[r], PROGRAM_FP32, 1, &shape[0]);
        rig_run(rigs[r], level);
    }
    for (int i = 0; i < 6 * 37; i++) {
        uint16_t bits = ((uint16_t *)narrow.out[0])[i];
        double got = (double)(type == PROGRAM_BF16 ? typed_of_bf16(bits) : typed_of_fp16(bits));
        double expected = (double)((float *)wide.out[0])[i];
        if (!(fabs(got - expected) <= unit * fabs(expected) + 0x1p-25))
            fail_msg("%s in %s at level %s, [%d]: %.9g, expected %.9g",
                     op_definition(h->kind)->name, program_type_name(type), fleet_isa_names[level],
                     i, got, expected);
    }
    for (int i = 0; i < h->statistics; i++)
        assert_memory_equal(wide.out[1 + i], narrow.out[1 + i], 6 * sizeof(float));
    for (int i = 0; i < 2; i++) {
        rig_release(rigs[i]);
        free(x[i]);
        free(v[i]);
        free(half[i]);
    }
}

static void test_kernels__sixteen_bits_are_fp32_rounded_once(void **state)
{
    (void)state;
    EACH_LEVEL(level)
    for (size_t i = 0; i < FLEET_COUNT(half_cases); i++) {
        run_half_case(&half_cases[i], PROGRAM_BF16, level);
        run_half_case(&half_cases[i], PROGRAM_FP16, level);
    }
}

static void test_kernels__cast_there_and_back(void **state)
{
    static const int64_t shape[1] = {101};
    float *x = normal("cast", 101);
    uint16_t *half = narrowed(x, 101, PROGRAM_BF16);

    (void)state;
    EACH_LEVEL(level)
    {
        struct rig down, up;
        rig_init(&down, OP_CAST);
        rig_in(&down, PROGRAM_FP32, 1, shape, x);
        rig_out(&down, PROGRAM_BF16, 1, shape);
        rig_run(&down, level);
        assert_memory_equal(down.out[0], half, 101 * sizeof(*half));
        rig_init(&up, OP_CAST);
        rig_in(&up, PROGRAM_BF16, 1, shape, half);
        rig_out(&up, PROGRAM_FP32, 1, shape);
        rig_run(&up, level);
        assert_memory_equal(up.out[0], x, 101 * sizeof(*x));
        rig_release(&down);
        rig_release(&up);
    }
    free(x);
    free(half);
}

/* ---- matrix products that are cut into blocks ------------------------------------------------ */

/* Under a sanitizer these take minutes: there they run once, and not with the slow plain loops,
 * whose blocks are those of the others. */
static bool is_brief(void)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "release") != 0;
}

#define EACH_LARGE_LEVEL(level)                                                            \
    for (enum fleet_isa level = is_brief() ? backend_level_of_machine() : FLEET_ISA_PLAIN; \
         level <= backend_level_of_machine(); level++)

/* More than a packed block holds; with CUDA more than a tile does. */
#if defined(RIG_CUDA)
enum {
    LARGE_ROWS = 131,
    LARGE_DEPTH = 37,
    LARGE_COLUMNS = 70,
    LARGE_STEP = 1
};
#else
enum {
    LARGE_ROWS = 1930,
    LARGE_DEPTH = 790,
    LARGE_COLUMNS = 1045,
    LARGE_STEP = 613
};
#endif

/* y = x·W; some elements are checked. */
static void run_large_product(bool transposed, enum fleet_isa level)
{
    const int64_t rows = LARGE_ROWS, k = LARGE_DEPTH, m = LARGE_COLUMNS;
    int64_t x_shape[2] = {rows, k}, y_shape[2] = {rows, m};
    int64_t w_shape[2] = {transposed ? m : k, transposed ? k : m};
    float *x = normal("x", rows * k), *w = normal("w", k * m);
    uint16_t *x_half = narrowed(x, rows * k, PROGRAM_BF16),
             *w_half = narrowed(w, k * m, PROGRAM_BF16);
    struct rig rig;

    rig_init(&rig, OP_LINEAR);
    rig.once = is_brief();
    rig.op.attributes.transposed = transposed;
    rig_in(&rig, PROGRAM_BF16, 2, x_shape, x_half);
    rig_in(&rig, PROGRAM_BF16, 2, w_shape, w_half);
    rig_out(&rig, PROGRAM_BF16, 2, y_shape);
    rig_run(&rig, level);
    for (int64_t i = 0; i < rows * m; i += LARGE_STEP) {
        double sum = 0, got = (double)typed_of_bf16(((uint16_t *)rig.out[0])[i]);
        for (int64_t p = 0; p < k; p++)
            sum += (double)x[i / m * k + p] * (double)w[transposed ? i % m * k + p : p * m + i % m];
        /* 790 terms of size 1: fp32 is off by 1e-4 at most; bf16 by half of its last place. */
        if (!(fabs(got - sum) <= 1e-4 + fabs(sum) * 0x1p-8))
            fail_msg("bf16 product at level %s, [%ld]: %.9g, expected %.9g", fleet_isa_names[level],
                     (long)i, got, sum);
    }
    rig_release(&rig);
    free(x);
    free(w);
    free(x_half);
    free(w_half);
}

static void test_kernels__large_products_in_bf16(void **state)
{
    (void)state;
    EACH_LARGE_LEVEL(level)
    {
        run_large_product(false, level);
        run_large_product(true, level);
    }
}

/* fp32 apart: its operands are not rounded. */
static void test_kernels__large_products_in_fp32(void **state)
{
    const int64_t rows = LARGE_ROWS, k = LARGE_DEPTH, m = LARGE_COLUMNS;
    int64_t x_shape[2] = {rows, k}, y_shape[2] = {rows, m}, w_shape[2] = {k, m};
    float *x = normal("x", rows * k), *w = normal("w", k * m);

    (void)state;
    EACH_LARGE_LEVEL(level)
    {
        struct rig rig;
        rig_init(&rig, OP_LINEAR);
        rig.once = is_brief();
        rig_in(&rig, PROGRAM_FP32, 2, x_shape, x);
        rig_in(&rig, PROGRAM_FP32, 2, w_shape, w);
        rig_out(&rig, PROGRAM_FP32, 2, y_shape);
        rig_run(&rig, level);
        for (int64_t i = 0; i < rows * m; i += LARGE_STEP) {
            double sum = 0, got = (double)((float *)rig.out[0])[i];
            for (int64_t p = 0; p < k; p++)
                sum += (double)x[i / m * k + p] * (double)w[p * m + i % m];
            if (!(fabs(got - sum) <= 1e-4))
                fail_msg("product at level %s, [%ld]: %.9g, expected %.9g ± 1e-4",
                         fleet_isa_names[level], (long)i, got, sum);
        }
        rig_release(&rig);
    }
    free(x);
    free(w);
}

/* ---- rows of many vectors -------------------------------------------------------------------- */

static const enum program_type float_types[] = {PROGRAM_FP32, PROGRAM_BF16, PROGRAM_FP16};

/* `values` as `type`, rounded in place; the caller frees `half`. */
static const void *as_type(float *values, int64_t count, enum program_type type, uint16_t **half)
{
    *half = type == PROGRAM_FP32 ? NULL : narrowed(values, count, type);
    return *half ? (const void *)*half : values;
}

/* Layer norm over whole vectors, the last run of rows not full; and its shift's slope in double. */
static void run_wide_norm(enum program_type type, enum fleet_isa level)
{
    static const int64_t shape[2] = {70, 328};
    float *x = normal("x", 70 * 328), *d = normal("d", 70 * 328), *v = normal("v", 328);
    uint16_t *half[2];
    const void *in[2] = {as_type(x, 70 * 328, type, &half[0]),
                         as_type(d, 70 * 328, type, &half[1])};
    struct rig y, g;

    rig_init(&y, OP_LAYER_NORM);
    y.op.attributes.epsilon = 1e-5;
    rig_in(&y, type, 2, shape, in[0]);
    rig_in(&y, PROGRAM_FP32, 1, &shape[1], v);
    rig_in(&y, PROGRAM_FP32, 1, &shape[1], v);
    rig_out(&y, type, 2, shape);
    rig_out(&y, PROGRAM_FP32, 1, &shape[0]);
    rig_out(&y, PROGRAM_FP32, 1, &shape[0]);
    rig_run(&y, level);
    rig_init(&g, OP_LAYER_NORM_GRAD);
    rig_in(&g, type, 2, shape, in[1]);
    rig_in(&g, type, 2, shape, in[0]);
    rig_in(&g, PROGRAM_FP32, 1, &shape[1], v);
    rig_in(&g, PROGRAM_FP32, 1, &shape[0], y.out[1]);
    rig_in(&g, PROGRAM_FP32, 1, &shape[0], y.out[2]);
    rig_out(&g, type, 2, shape);
    rig_out(&g, PROGRAM_FP32, 1, &shape[1]);
    rig_out(&g, PROGRAM_FP32, 1, &shape[1]);
    rig_run(&g, level);
    for (int j = 0; j < 328; j++) {
        double sum = 0;
        for (int r = 0; r < 70; r++)
            sum += (double)d[r * 328 + j];
        assert_true(fabs((double)((float *)g.out[2])[j] - sum) < 1e-4);
    }
    rig_release(&y);
    rig_release(&g);
    free(half[0]);
    free(half[1]);
    free(x);
    free(d);
    free(v);
}

/* Cross-entropy of rows that begin at each place within 16 bytes; and its loss in double. */
static void run_wide_cross_entropy(enum program_type type, enum fleet_isa level)
{
    static const int64_t shape[2] = {9, 2309}, lse_shape[2] = {9, 2}, one = 1;
    static const int32_t classes[9] = {0, 2308, 7, 8, 1200, -100, 3, 2304, 2047};
    static const float d_loss = 3;
    float *x = normal("logits", 9 * 2309);
    uint16_t *half;
    const void *logits = as_type(x, 9 * 2309, type, &half);
    struct rig y, d;
    double loss = 0;

    rig_init(&y, OP_CROSS_ENTROPY);
    y.op.attributes.ignore_index = -100;
    rig_in(&y, type, 2, shape, logits);
    rig_in(&y, PROGRAM_INT32, 1, &shape[0], classes);
    rig_out(&y, PROGRAM_FP32, 1, &one);
    rig_out(&y, PROGRAM_FP32, 2, lse_shape);
    rig_run(&y, level);
    for (int r = 0; r < 9; r++) {
        double sum = 0;
        for (int j = 0; j < 2309; j++)
            sum += exp((double)x[r * 2309 + j]);
        loss += classes[r] < 0 ? 0 : (log(sum) - (double)x[r * 2309 + classes[r]]) / 8;
    }
    assert_true(fabs((double)*(float *)y.out[0] - loss) < 1e-5);
    rig_init(&d, OP_CROSS_ENTROPY_GRAD);
    d.op.attributes.ignore_index = -100;
    rig_in(&d, type, 2, shape, logits);
    rig_in(&d, PROGRAM_INT32, 1, &shape[0], classes);
    rig_in(&d, PROGRAM_FP32, 2, lse_shape, y.out[1]);
    rig_in(&d, PROGRAM_FP32, 1, &one, &d_loss);
    rig_out(&d, type, 2, shape);
    rig_run(&d, level);
    rig_release(&y);
    rig_release(&d);
    free(half);
    free(x);
}

static void run_wide_sum(enum program_type type, int64_t rows, enum fleet_isa level)
{
    const int64_t shape[2] = {rows, 24};
    float *x = normal("rows", rows * 24);
    uint16_t *half;
    const void *in = as_type(x, rows * 24, type, &half);
    struct rig sum;

    rig_init(&sum, OP_ADD_GRAD_B);
    rig_in(&sum, type, 2, shape, in);
    rig_out(&sum, PROGRAM_FP32, 1, &shape[1]);
    rig_run(&sum, level);
    for (int j = 0; j < 24; j++) {
        double expected = 0;
        for (int64_t r = 0; r < rows; r++)
            expected += (double)x[r * 24 + j];
        assert_true(fabs((double)((float *)sum.out[0])[j] - expected) < 1e-3);
    }
    rig_release(&sum);
    free(half);
    free(x);
}

static void test_kernels__rows_of_many_vectors(void **state)
{
    (void)state;
    EACH_LEVEL(level)
    for (int t = 0; t < 3; t++) {
        run_wide_norm(float_types[t], level);
        run_wide_cross_entropy(float_types[t], level);
        run_wide_sum(float_types[t], 4200, level);
        run_wide_sum(float_types[t], 197, level); /* the last run of rows has an odd number */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels__sixteen_bits_are_fp32_rounded_once),
        cmocka_unit_test(test_kernels__cast_there_and_back),
        cmocka_unit_test(test_kernels__large_products_in_bf16),
        cmocka_unit_test(test_kernels__large_products_in_fp32),
        cmocka_unit_test(test_kernels__rows_of_many_vectors),
    };

    return cmocka_run_group_tests_name("kernels by type and size", tests, NULL, NULL);
}
