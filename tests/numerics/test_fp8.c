/* SPDX-License-Identifier: Apache-2.0 */

/*
 * LINEAR and its gradient with factors in fp8, against sums in double of factors that this file
 * rounds itself: it looks for the nearest of all numbers of the type.
 */
#include "libfleet/base/assert.h"
#include "libfleet/program/fp8.h"
#include "tests/numerics/kernel_data.h"

struct fp8_case {
    int64_t rows, k, m;
    bool transposed, relu;
    enum {
        PLAIN,
        TINY,
        HUGE_NUMBERS,
        WIDE, /* many binades: small elements become subnormal or zero */
        ZERO,
        KINDS
    } values;
    int64_t peak; /* the element of each tensor that is the greatest, from 1; 0: any */
};

/* Tiles have 64 rows and columns, a thread makes four codes. */
static const int64_t sizes[][3] = {{16, 16, 16}, {1, 1, 1},    {5, 7, 9},    {32, 48, 64},
                                   {64, 66, 4},  {65, 64, 67}, {130, 12, 3}, {3, 129, 68}};

/* ---- numbers of the types -------------------------------------------------------------------- */

/* Of the code with a clear sign; NAN: no number. */
static double number_of(int code, enum fp8_type type)
{
    int mantissa = type == FP8_E4M3 ? 3 : 2, bias = type == FP8_E4M3 ? 7 : 15;
    int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);

    if (code > (type == FP8_E4M3 ? 0x7e : 0x7b))
        return NAN;
    return exponent == 0 ? ldexp(fraction, 1 - bias - mantissa)
                         : ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
}

static double nearest(double x, enum fp8_type type)
{
    double best = 0, size = fabs(x);

    for (int code = 0; code < 128; code++) {
        double number = number_of(code, type), better = fabs(size - best) - fabs(size - number);
        if (better > 0 || (better == 0 && code % 2 == 0))
            best = number;
    }
    return copysign(best, x);
}

/* x in place; returns s. */
static int round_all(double *x, int64_t count, enum fp8_type type)
{
    double greatest = 0, most = type == FP8_E4M3 ? 448 : 57344;
    int s = FP8_SCALE_MAX;

    for (int64_t i = 0; i < count; i++)
        greatest = fmax(greatest, fabs(x[i]));
    if (greatest == 0)
        return 0;
    while (ldexp(greatest, s) > most)
        s--;
    for (int64_t i = 0; i < count; i++)
        x[i] = ldexp(nearest(ldexp(x[i], s), type), -s);
    return s;
}

/* ---- operands -------------------------------------------------------------------------------- */

struct tensor {
    uint16_t *half; /* as the operator reads it */
    double *rounded, *exact;
};

static struct tensor tensor(const char *name, int64_t count, const struct fp8_case *c,
                            enum fp8_type type, const uint16_t *gate)
{
    struct tensor t;
    float *x = normal(name, count);

    for (int64_t i = 0; i < count; i++) {
        if (c->values != PLAIN)
            x[i] *= c->values == TINY           ? 0x1p-50f
                    : c->values == HUGE_NUMBERS ? 0x1p60f
                    : c->values == ZERO         ? 0
                                                : ldexpf(1, (int)(i * 7 % 41) - 30);
    }
    if (c->peak > 0)
        x[(c->peak - 1) % count] = 300;
    t.half = narrowed(x, count, PROGRAM_BF16);
    t.rounded = malloc((size_t)count * sizeof(double));
    t.exact = malloc((size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i++)
        t.exact[i] = gate && !(typed_of_bf16(gate[i]) > 0) ? 0 : (double)x[i];
    memcpy(t.rounded, t.exact, (size_t)count * sizeof(double));
    (void)round_all(t.rounded, count, type);
    free(x);
    return t;
}

static void tensor_release(struct tensor *t)
{
    free(t->half);
    free(t->rounded);
    free(t->exact);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* cuBLASLt on a GPU sums products of fp8 with fewer bits than fp32 has. */
static bool sums_coarsely(void)
{
#if defined(RIG_DEVICE)
    const char *library = getenv("FLEET_CUBLASLT_LIBRARY");

    return !library || strcmp(library, "none") != 0;
#else
    return false;
#endif
}

static enum program_type result_type(void)
{
    return sums_coarsely() ? PROGRAM_BF16 : PROGRAM_FP32;
}

struct factor {
    const double *data;
    int64_t row, column;
};

/* Output o, [m, n], against the product of a and b; relu: of the sum. */
static void expect_product(const struct rig *rig, int o, const struct factor *a,
                           const struct factor *b, int64_t m, int64_t n, int64_t k, bool relu)
{
    double unit = sums_coarsely() ? 0x1p-8 : 4e-6;

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0, got = rig_element(rig->out[o], result_type(), i * n + j);
            for (int64_t l = 0; l < k; l++) {
                double term =
                    a->data[i * a->row + l * a->column] * b->data[l * b->row + j * b->column];
                sum += term;
                size += fabs(term);
            }
            if (!(fabs(got - (relu && sum < 0 ? 0 : sum)) <= unit * size + 1e-40))
                fail_msg("%s [%d,%d]·[%d,%d], output %d, [%d,%d]: %.9g, expected %.9g",
                         op_definition(rig->op.kind)->name, (int)m, (int)k, (int)k, (int)n, o,
                         (int)i, (int)j, got, sum);
        }
}

static void check_forward(const struct fp8_case *c, enum fleet_isa level)
{
    int64_t x_shape[2] = {c->rows, c->k}, y_shape[2] = {c->rows, c->m};
    int64_t w_shape[2] = {c->transposed ? c->m : c->k, c->transposed ? c->k : c->m};
    struct tensor x = tensor("x", c->rows * c->k, c, FP8_E4M3, NULL);
    struct tensor w = tensor("w", c->k * c->m, c, FP8_E4M3, NULL);
    struct factor a = {x.rounded, c->k, 1};
    struct factor b = {w.rounded, c->transposed ? 1 : c->m, c->transposed ? c->k : 1};
    struct rig rig;

    rig_init(&rig, OP_LINEAR);
    rig.once = c->peak > 0;
    rig.op.attributes.fp8 = true;
    rig.op.attributes.transposed = c->transposed;
    rig.op.attributes.activation = c->relu ? OP_ACTIVATION_RELU : OP_ACTIVATION_NONE;
    rig_in(&rig, PROGRAM_BF16, 2, x_shape, x.half);
    rig_in(&rig, PROGRAM_BF16, 2, w_shape, w.half);
    rig_out(&rig, result_type(), 2, y_shape);
    rig_run(&rig, level);
    expect_product(&rig, 0, &a, &b, c->rows, c->m, c->k, c->relu);
    rig_release(&rig);
    tensor_release(&x);
    tensor_release(&w);
}

/* The bias' gradient is the sum of d as it is. */
static void expect_sums(const struct rig *rig, const struct tensor *d, const struct fp8_case *c)
{
    for (int64_t j = 0; j < c->m; j++) {
        double sum = 0, size = 0, got = (double)((const float *)rig->out[2])[j];
        for (int64_t i = 0; i < c->rows; i++) {
            sum += d->exact[i * c->m + j];
            size += fabs(d->exact[i * c->m + j]);
        }
        if (!(fabs(got - sum) <= 4e-6 * size + 1e-40))
            fail_msg("bias %d: %.9g, expected %.9g", (int)j, got, sum);
    }
}

static void check_gradient(const struct fp8_case *c, int wanted, enum fleet_isa level)
{
    int64_t x_shape[2] = {c->rows, c->k}, y_shape[2] = {c->rows, c->m};
    int64_t w_shape[2] = {c->transposed ? c->m : c->k, c->transposed ? c->k : c->m};
    struct tensor x = tensor("x", c->rows * c->k, c, FP8_E4M3, NULL);
    struct tensor w = tensor("w", c->k * c->m, c, FP8_E4M3, NULL);
    struct tensor pre = tensor("pre", c->rows * c->m, c, FP8_E4M3, NULL);
    struct tensor d = tensor("d", c->rows * c->m, c, FP8_E5M2, c->relu ? pre.half : NULL);
    struct factor straight = {d.rounded, c->m, 1}, turned = {d.rounded, 1, c->m};
    struct factor weight = {w.rounded, c->transposed ? c->k : 1, c->transposed ? 1 : c->m};
    struct factor rows = {x.rounded, c->k, 1}, columns = {x.rounded, 1, c->k};
    struct rig rig;

    rig_init(&rig, OP_LINEAR_GRAD);
    rig.op.attributes.fp8 = true;
    rig.op.attributes.transposed = c->transposed;
    rig.op.attributes.activation = c->relu ? OP_ACTIVATION_RELU : OP_ACTIVATION_NONE;
    rig_in(&rig, PROGRAM_BF16, 2, y_shape, d.half);
    rig_in(&rig, PROGRAM_BF16, 2, x_shape, x.half);
    rig_in(&rig, PROGRAM_BF16, 2, w_shape, w.half);
    rig_in(&rig, PROGRAM_BF16, 2, y_shape, c->relu ? pre.half : NULL);
    rig_out(&rig, result_type(), 2, wanted & 1 ? x_shape : NULL);
    rig_out(&rig, result_type(), 2, wanted & 2 ? w_shape : NULL);
    rig_out(&rig, PROGRAM_FP32, 1, &c->m);
    rig_run(&rig, level);
    if (wanted & 1)
        expect_product(&rig, 0, &straight, &weight, c->rows, c->k, c->m, false);
    if (wanted & 2 && c->transposed)
        expect_product(&rig, 1, &turned, &rows, c->m, c->k, c->rows, false);
    if (wanted & 2 && !c->transposed)
        expect_product(&rig, 1, &columns, &straight, c->k, c->m, c->rows, false);
    expect_sums(&rig, &d, c);
    rig_release(&rig);
    tensor_release(&x);
    tensor_release(&w);
    tensor_release(&pre);
    tensor_release(&d);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void for_each(void (*check)(const struct fp8_case *c, enum fleet_isa level))
{
    EACH_LEVEL(level)
    for (size_t s = 0; s < FLEET_COUNT(sizes); s++)
        for (int form = 0; form < 4; form++) {
            struct fp8_case c = {.rows = sizes[s][0],
                                 .k = sizes[s][1],
                                 .m = sizes[s][2],
                                 .transposed = form % 2,
                                 .relu = form / 2};
            check(&c, level);
        }
}

static void test_fp8__forward_products_are_those_of_rounded_factors(void **state)
{
    (void)state;
    for_each(check_forward);
}

static void check_both_gradients(const struct fp8_case *c, enum fleet_isa level)
{
    check_gradient(c, 3, level);
}

static void test_fp8__gradients_are_those_of_rounded_factors(void **state)
{
    (void)state;
    for_each(check_both_gradients);
}

static void test_fp8__a_gradient_that_nobody_wants_is_not_made(void **state)
{
    static const struct fp8_case cases[] = {{.rows = 16, .k = 20, .m = 32},
                                            {.rows = 16, .k = 20, .m = 32, .transposed = true}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(cases); i++) {
        check_gradient(&cases[i], 1, FLEET_ISA_PLAIN);
        check_gradient(&cases[i], 2, FLEET_ISA_PLAIN);
    }
}

static void test_fp8__scales_are_those_of_the_tensor(void **state)
{
    (void)state;
    EACH_LEVEL(level)
    for (int values = PLAIN; values < KINDS; values++) {
        struct fp8_case c = {.rows = 32, .k = 48, .m = 16, .values = values};
        check_forward(&c, level);
        check_gradient(&c, 3, level);
    }
}

/* Wherever it lies. */
static void test_fp8__the_greatest_element_is_found(void **state)
{
    struct fp8_case c = {.rows = 5, .k = 7, .m = 3}, large = {.rows = 70, .k = 121, .m = 1};

    (void)state;
    for (c.peak = 1; c.peak <= c.rows * c.k; c.peak++)
        check_forward(&c, backend_level_of_machine());
    for (large.peak = 1; large.peak <= large.rows * large.k; large.peak += 605)
        check_forward(&large, backend_level_of_machine());
}

/* What is not finite does not change the scale, and is not lost: the check of the gradient must see
 * it. */
static void test_fp8__what_is_not_finite_stays_so(void **state)
{
    static const uint16_t values[] = {0x7f80, 0xff80, 0x7fc0};
    static const int64_t shape[2] = {16, 16};
    struct fp8_case c = {.rows = 16, .k = 16, .m = 16};

    (void)state;
    EACH_LEVEL(level)
    for (size_t v = 0; v < FLEET_COUNT(values); v++) {
        struct tensor x = tensor("x", 256, &c, FP8_E4M3, NULL);
        struct tensor w = tensor("w", 256, &c, FP8_E4M3, NULL);
        struct rig rig;

        x.half[5 * 16 + 3] = values[v];
        rig_init(&rig, OP_LINEAR);
        rig.op.attributes.fp8 = true;
        rig_in(&rig, PROGRAM_BF16, 2, shape, x.half);
        rig_in(&rig, PROGRAM_BF16, 2, shape, w.half);
        rig_out(&rig, result_type(), 2, shape);
        rig_run(&rig, level);
        for (int i = 0; i < 256; i++)
            assert_int_equal(isnan(rig_element(rig.out[0], result_type(), i)), i / 16 == 5);
        rig_release(&rig);
        tensor_release(&x);
        tensor_release(&w);
    }
}

/* The scale is the greatest that fits, at each power of two and around 1.75 times it. */
static void test_fp8__a_scale_is_the_greatest_that_fits(void **state)
{
    static const enum fp8_type types[] = {FP8_E4M3, FP8_E5M2};

    (void)state;
    for (size_t t = 0; t < FLEET_COUNT(types); t++)
        for (int exponent = -126; exponent < 128; exponent++)
            for (int step = -1; step <= 1; step++) {
                double x = ldexp(1.75 + step * 0x1p-23, exponent);
                uint32_t bits = typed_bits_of_float((float)x);
                int s = fp8_scale(bits, types[t]);
                double most = types[t] == FP8_E4M3 ? 448 : 57344;
                assert_true(ldexp(x, s) <= most);
                assert_true(s == FP8_SCALE_MAX || ldexp(x, s + 1) > most);
                assert_true(typed_float_of_bits(fp8_power(s)) == ldexpf(1, s));
                assert_true(typed_float_of_bits(fp8_power(-s)) == ldexpf(1, -s));
            }
    assert_int_equal(fp8_scale(0, FP8_E4M3), 0);
    assert_int_equal(fp8_scale(1, FP8_E4M3), FP8_SCALE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8__forward_products_are_those_of_rounded_factors),
        cmocka_unit_test(test_fp8__gradients_are_those_of_rounded_factors),
        cmocka_unit_test(test_fp8__a_gradient_that_nobody_wants_is_not_made),
        cmocka_unit_test(test_fp8__scales_are_those_of_the_tensor),
        cmocka_unit_test(test_fp8__the_greatest_element_is_found),
        cmocka_unit_test(test_fp8__what_is_not_finite_stays_so),
        cmocka_unit_test(test_fp8__a_scale_is_the_greatest_that_fits),
    };
    return cmocka_run_group_tests_name("fp8", tests, NULL, NULL);
}
