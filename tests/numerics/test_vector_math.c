/* SPDX-License-Identifier: Apache-2.0 */

/*
 * exp, log, GELU as the kernels compute them, against libm in double. The plain level's code, which
 * the others share except for fused multiply-adds; those are covered by the recorded operators.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "agent/runtime/backend/cpu/vector_math.h"

static float lane(v16 a)
{
    float lanes[V_LANES];

    v_store(lanes, a);
    return lanes[7];
}

/* Distance in units of the last place of the correctly rounded result. */
static double ulps(float actual, double expected)
{
    float nearest = (float)expected;
    double unit = (double)nextafterf(fabsf(nearest), INFINITY) - (double)fabsf(nearest);

    return fabs((double)actual - expected) / unit;
}

static void test_vector_math__exp_is_within_2_ulp(void **state)
{
    double worst = 0;
    float at = 0;

    (void)state;
    for (float x = -87.0f; x < 88.7f; x += 0.000937f) {
        double distance = ulps(lane(v_exp(v_set(x))), exp((double)x));
        if (distance > worst) {
            worst = distance;
            at = x;
        }
    }
    if (!(worst <= 2))
        fail_msg("exp(%.9g) is %g ulp off, at most 2", (double)at, worst);
}

static void test_vector_math__exp_at_the_edges(void **state)
{
    (void)state;
    assert_true(lane(v_exp(v_set(-INFINITY))) == 0.0f);
    assert_true(lane(v_exp(v_set(-200.0f))) == 0.0f);
    assert_true(lane(v_exp(v_set(0.0f))) == 1.0f);
    assert_true(lane(v_exp(v_set(200.0f))) == INFINITY);
    assert_true(lane(v_exp(v_set(INFINITY))) == INFINITY);
    assert_true(isnan(lane(v_exp(v_set(NAN)))));
}

static void test_vector_math__log_is_within_2_ulp(void **state)
{
    double worst = 0;
    float at = 0;

    (void)state;
    for (float x = 1e-37f; x < 1e38f; x *= 1.00037f) {
        double distance = ulps(lane(v_log(v_set(x))), log((double)x));
        if (distance > worst) {
            worst = distance;
            at = x;
        }
    }
    if (!(worst <= 2))
        fail_msg("log(%.9g) is %g ulp off, at most 2", (double)at, worst);
    assert_true(lane(v_log(v_set(1.0f))) == 0.0f);
    assert_true(lane(v_log(v_set(INFINITY))) == INFINITY);
    assert_true(isnan(lane(v_log(v_set(NAN)))));
}

/* exp's argument is rounded: for |2u| = 8 that is 5e-7 of the result. */
static void test_vector_math__gelu_and_its_slope(void **state)
{
    const double root = sqrt(2 / M_PI);

    (void)state;
    for (float x = -12.0f; x < 12.0f; x += 0.00173f) {
        double u = root * ((double)x + 0.044715 * pow((double)x, 3)), t = tanh(u);
        double gelu = 0.5 * (double)x * (1 + t);
        double slope = 0.5 * (1 + t) + 0.5 * (double)x * (1 - t * t) * root *
                                           (1 + 3 * 0.044715 * (double)x * (double)x);
        double got = (double)lane(v_gelu(v_set(x))),
               got_slope = (double)lane(v_gelu_slope(v_set(x)));
        if (!(fabs(got - gelu) <= 2e-6 * fmax(fabs(gelu), 1e-3)) ||
            !(fabs(got_slope - slope) <= 2e-6))
            fail_msg("gelu(%.9g) = %.9g, slope %.9g, expected %.9g and %.9g", (double)x, got,
                     got_slope, gelu, slope);
    }
}

/* Where 1 + erf cancels, the error is that of erf, 2e-7, times x. */
static void test_vector_math__erf_and_the_gelu_of_it(void **state)
{
    (void)state;
    for (float x = -12.0f; x < 12.0f; x += 0.00173f) {
        double below = 0.5 * (1 + erf((double)x / sqrt(2)));
        double slope = below + (double)x * exp(-0.5 * (double)x * (double)x) / sqrt(2 * M_PI);
        double got = (double)lane(v_gelu_exact(v_set(x))),
               got_slope = (double)lane(v_gelu_exact_slope(v_set(x)));
        if (!(fabs((double)lane(v_erf(v_set(x))) - erf((double)x)) <= 2e-7))
            fail_msg("erf(%.9g) = %.9g, expected %.9g", (double)x, (double)lane(v_erf(v_set(x))),
                     erf((double)x));
        if (!(fabs(got - (double)x * below) <= 2e-7 * fmax(fabs((double)x), 1)) ||
            !(fabs(got_slope - slope) <= 1e-6))
            fail_msg("gelu(%.9g) = %.9g, slope %.9g, expected %.9g and %.9g", (double)x, got,
                     got_slope, (double)x * below, slope);
    }
    assert_true(isnan(lane(v_erf(v_set(NAN)))));
}

/* All 65 536 halves: widened exactly, and back to themselves. */
static void test_vector_math__halves_survive_the_way_to_float_and_back(void **state)
{
    static const enum program_type types[] = {PROGRAM_BF16, PROGRAM_FP16};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (uint32_t bits = 0; bits < 65536; bits++) {
            uint16_t half = (uint16_t)bits, back = 0;
            v16 wide = typed_load_halves(&half, types[t], 1);
            float lanes[V_LANES];
            v_store(lanes, wide);
            typed_store_halves(&back, types[t], 1, wide);
            if (isnan(lanes[0]) ? (back & 0x7f80) == 0 : back != half)
                fail_msg("%s %04x became %.9g and then %04x", program_type_name(types[t]), bits,
                         (double)lanes[0], back);
        }
}

static void test_vector_math__narrowing_rounds_to_nearest_even(void **state)
{
    static const struct {
        float x;
        uint16_t bf16, fp16;
    } cases[] = {
        {1.0f, 0x3f80, 0x3c00},        {1.00390625f, 0x3f80, 0x3c04}, /* tie in bf16, to even */
        {1.01171875f, 0x3f82, 0x3c0c}, {65504.0f, 0x4780, 0x7bff},    {65520.0f, 0x4780, 0x7c00},
        {1e-8f, 0x322c, 0x0000},       {6e-8f, 0x3381, 0x0001},       {-0.0f, 0x8000, 0x8000},
        {3.4e38f, 0x7f80, 0x7c00},     {INFINITY, 0x7f80, 0x7c00},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint16_t bf16 = typed_to_bf16(cases[i].x), fp16 = typed_to_fp16(cases[i].x);
        if (bf16 != cases[i].bf16 || fp16 != cases[i].fp16)
            fail_msg("%.9g: bf16 %04x, expected %04x; fp16 %04x, expected %04x", (double)cases[i].x,
                     bf16, cases[i].bf16, fp16, cases[i].fp16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vector_math__exp_is_within_2_ulp),
        cmocka_unit_test(test_vector_math__exp_at_the_edges),
        cmocka_unit_test(test_vector_math__log_is_within_2_ulp),
        cmocka_unit_test(test_vector_math__gelu_and_its_slope),
        cmocka_unit_test(test_vector_math__erf_and_the_gelu_of_it),
        cmocka_unit_test(test_vector_math__halves_survive_the_way_to_float_and_back),
        cmocka_unit_test(test_vector_math__narrowing_rounds_to_nearest_even),
    };

    return cmocka_run_group_tests_name("vector_math", tests, NULL, NULL);
}
