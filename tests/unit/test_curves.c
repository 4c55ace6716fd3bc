/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Goal: losses come from every file that a run leaves, are averaged without bias, and get the axis
 * that shows them. Method: small tables of losses; records and event files as text and bytes, sound
 * and damaged.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cli/curves/comparison.h"
#include "cli/curves/curve.h"
#include "cli/curves/loss_range.h"
#include "cli/curves/smooth.h"
#include "cli/drawing/axis.h"
#include "libfleet/base/strbuf.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- a curve --------------------------------------------------------------------------------- */

static void test_curve__a_step_made_again_replaces_what_was_after_it(void **state)
{
    struct curve curve = {0};

    (void)state;
    curve_add_mark(&curve, CURVE_RESTART, -1);
    for (int i = 11; i <= 20; i++)
        curve_add(&curve, i, i);
    curve_add_evaluation(&curve, 15, 1);
    curve_add_evaluation(&curve, 20, 2);
    curve_add_evaluation(&curve, 20, 3);
    assert_int_equal(curve.marks[0].step, 10); /* before the first step */
    assert_int_equal(curve.evaluations.count, 2);
    assert_true(curve.evaluations.points[1].loss == 3);
    curve_add(&curve, 16, 99);
    assert_int_equal(curve.losses.count, 6);
    assert_true(curve.losses.points[5].loss == 99);
    assert_int_equal(curve.evaluations.count, 1);
    curve_add_mark(&curve, CURVE_RESUME, 16);
    curve_cut(&curve, 16);
    assert_int_equal(curve.losses.count, 5);
    assert_int_equal(curve.mark_count, 1);
    curve_release(&curve);
}

/* ---- the average ----------------------------------------------------------------------------- */

/* Neither lag nor a leaning to the first loss: a straight line is met everywhere, however wide
 * the window. */
static void test_smooth__a_straight_line_is_met_from_end_to_end(void **state)
{
    struct smooth_point points[300];

    (void)state;
    for (int i = 0; i < 300; i++)
        points[i] = (struct smooth_point){1e6 + 3.0 * i, 5.0 - 0.01 * i};
    for (size_t reach = 1; reach <= 400; reach += 57)
        for (size_t i = 0; i < 300; i++)
            if (fabs(smooth_at(points, 300, i, reach) - points[i].y) > 1e-9)
                fail_msg("reach %zu, point %zu: %.12g, expected %.12g", reach, i,
                         smooth_at(points, 300, i, reach), points[i].y);
}

/* A usual curve with noise: the average is nearer to the truth than the losses, at the start,
 * too. */
static void test_smooth__follows_a_falling_curve_under_noise(void **state)
{
    double errors[2][2] = {{0}}; /* [start, all][raw, average] */
    struct smooth_point points[300];
    uint32_t noise = 7;

    (void)state;
    for (int i = 0; i < 300; i++) {
        noise = noise * 1664525 + 1013904223;
        points[i] = (struct smooth_point){i, 1.8 + 3.7 * exp(-i / 50.0) +
                                                 0.4 * (noise / 4294967296.0 - 0.5)};
    }
    for (int i = 0; i < 300; i++) {
        double truth = 1.8 + 3.7 * exp(-i / 50.0);
        double average = smooth_at(points, 300, (size_t)i, smooth_reach(300)) - truth;
        for (int all = i < 20 ? 0 : 1; all < 2; all++) {
            errors[all][0] += (points[i].y - truth) * (points[i].y - truth);
            errors[all][1] += average * average;
        }
    }
    if (errors[0][1] > 0.5 * errors[0][0] || errors[1][1] > 0.2 * errors[1][0])
        fail_msg("start: raw %.3g, average %.3g; all: %.3g, %.3g", errors[0][0], errors[0][1],
                 errors[1][0], errors[1][1]);
}

static void test_smooth__gaps_are_left_out(void **state)
{
    struct smooth_point points[] = {{1, 2}, {2, NAN}, {3, 2}, {4, NAN}, {5, NAN}, {6, NAN}};

    (void)state;
    assert_true(fabs(smooth_at(points, 6, 1, 1) - 2.0) < 1e-12);
    assert_true(fabs(smooth_at(points, 6, 0, 1) - 2.0) < 1e-12); /* one loss is its own average */
    assert_true(isnan(smooth_at(points, 6, 4, 1)));
    assert_int_equal(smooth_reach(4), 0);
    assert_int_equal(smooth_reach(5), 2);
    assert_int_equal(smooth_reach(100000), 2500);
}

/* ---- the axis -------------------------------------------------------------------------------- */

struct losses {
    const char *what;
    double first, last, spike; /* from `first` to `last` by equal factors or steps; 0: no spike */
    int falls_by_factors;
    int expect_log;
    double expect_high;
};

static void test_loss_range__is_logarithmic_when_that_helps(void **state)
{
    static const struct losses cases[] = {
        {"a usual language model", 10.9, 3.0, 0, 0, 0, 10.9},
        {"nearly flat", 2.31, 2.30, 0, 0, 0, 2.31},
        {"over decades", 1.0, 1e-6, 0, 1, 1, 1.0},
        {"with a spike", 5.5, 2.0, 60.0, 0, 1, 60.0},
        {"with a small spike", 5.5, 2.0, 9.0, 0, 0, 9.0},
        {"diverged", 5.5, 2.0, 3e16, 0, 0, 5.5},
        {"all the same", 2.0, 2.0, 0, 0, 0, 2.0},
        {"below zero", -1.0, -6.0, 0, 0, 0, -1.0},
        {"below zero, diverged", -1.0, -6.0, 1e30, 0, 0, -1.0},
        {"down to zero", 4.0, 0.0, 0, 0, 0, 4.0},
    };

    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++) {
        const struct losses *l = &cases[c];
        struct curve curve = {0};
        const struct curve *curves[] = {&curve};
        struct loss_range range;
        for (int i = 0; i < 100; i++) {
            double part = i / 99.0;
            curve_add(&curve, i + 1,
                      l->spike != 0 && i == 70 ? l->spike
                      : l->falls_by_factors    ? l->first * pow(l->last / l->first, part)
                                               : l->first + part * (l->last - l->first));
        }
        curve_add(&curve, 101, NAN);
        curve_add(&curve, 102, INFINITY);
        loss_range_of(curves, 1, &range);
        if (range.is_log != l->expect_log || fabs(range.high - l->expect_high) > 1e-9 ||
            fabs(range.low - l->last) > 1e-9 || range.count != 100)
            fail_msg("%s: [%g, %g]%s of %zu", l->what, range.low, range.high,
                     range.is_log ? " log" : "", range.count);
        curve_release(&curve);
    }
}

/* A run that climbs for long: the axis ends at 20 times the start, and is logarithmic up to
 * there. */
static void test_loss_range__a_divergence_does_not_flatten_the_rest(void **state)
{
    struct curve curve = {0}, other = {0}, none = {0};
    const struct curve *curves[] = {&none, &curve, &other};
    struct loss_range range;

    (void)state;
    for (int i = 1; i <= 300; i++)
        curve_add(&curve, i, i < 200 ? 5.0 : 5.0 * pow(1.3, i - 200));
    curve_add(&other, 1, 7.0);
    loss_range_of(curves, 3, &range);
    assert_true(range.is_log);
    assert_true(range.low == 5.0 && range.high > 70 && range.high <= 100);
    loss_range_of(curves, 1, &range);
    assert_int_equal(range.count, 0);
    assert_true(range.low == 0 && range.high == 1 && !range.is_log);
    curve_release(&curve);
    curve_release(&other);
}

static void expect_ticks(double low, double high, int is_log, int whole, const char *expected)
{
    struct fleet_strbuf text = {0};
    struct axis_tick ticks[AXIS_TICKS_MAX];
    struct axis axis;
    size_t count;

    axis_init(&axis, low, high, 0.0, is_log, 0, 100);
    count = axis_ticks(&axis, 6, whole, ticks);
    for (size_t i = 0; i < count; i++) {
        double at = axis_place(&axis, ticks[i].value);
        assert_true(at >= -1e-6 && at <= 100 + 1e-6);
        fleet_strbuf_appendf(&text, "%s%s", i ? " " : "", ticks[i].text);
    }
    if (strcmp(fleet_strbuf_text(&text), expected) != 0)
        fail_msg("[%g, %g]: \"%s\", expected \"%s\"", low, high, fleet_strbuf_text(&text),
                 expected);
    fleet_strbuf_release(&text);
}

static void test_axis__ticks_are_round_numbers(void **state)
{
    (void)state;
    expect_ticks(1.8, 5.5, 0, 0, "2 3 4 5");
    expect_ticks(2.295, 2.312, 0, 0, "2.295 2.300 2.305 2.310");
    expect_ticks(-3, 3, 0, 0, "-3 -2 -1 0 1 2 3");
    expect_ticks(1, 300, 0, 1, "50 100 150 200 250 300");
    expect_ticks(1, 100000, 0, 1, "20k 40k 60k 80k 100k");
    expect_ticks(1, 2500000, 0, 1, "500k 1M 1.5M 2M 2.5M");
    expect_ticks(1, 3, 0, 1, "1 2 3");
    expect_ticks(7, 7, 0, 1, "7");
    expect_ticks(1.8, 110, 1, 0, "2 5 10 20 50 100");
    expect_ticks(1e-8, 1, 1, 0, "1e-8 1e-6 0.0001 0.01 1");
    expect_ticks(0.013, 0.018, 1, 0, "0.013 0.014 0.015 0.016 0.017 0.018");
    expect_ticks(0, 3e30, 0, 0, "0 5e29 1e30 1.5e30 2e30 2.5e30 3e30");
    expect_ticks(1e30, 1e30, 0, 0, "9e29 9.5e29 1e30 1.05e30 1.1e30");
}

/* For every range there are some ticks but not too many, ascending, with different texts. */
static void test_axis__any_range_has_ticks(void **state)
{
    static const double values[] = {-1e100, -1e16,     -3.7, -1e-9, 0,   1e-300, 1e-9, 0.3,
                                    1,      1.0000001, 2.5,  5.5,   1e4, 99999,  1e16, 1e100};

    (void)state;
    for (size_t i = 0; i < COUNT(values); i++)
        for (size_t k = i; k < COUNT(values); k++)
            for (int is_log = 0; is_log <= (values[i] > 0); is_log++) {
                struct axis_tick ticks[AXIS_TICKS_MAX];
                struct axis axis;
                size_t count;
                axis_init(&axis, values[i], values[k], 0.04, is_log, 300, 0);
                assert_true(axis.high > axis.low && isfinite(axis.high) && isfinite(axis.low));
                count = axis_ticks(&axis, 7, 0, ticks);
                if (count < 1 || count > AXIS_TICKS_MAX)
                    fail_msg("[%g, %g]: %zu ticks", values[i], values[k], count);
                for (size_t t = 1; t < count; t++)
                    if (ticks[t].value <= ticks[t - 1].value ||
                        strcmp(ticks[t].text, ticks[t - 1].text) == 0)
                        fail_msg("[%g, %g]: %s after %s", values[i], values[k], ticks[t].text,
                                 ticks[t - 1].text);
            }
}

/* ---- the table ------------------------------------------------------------------------------- */

static void test_comparison__compares_at_the_step_that_all_have(void **state)
{
    struct curve curves[3] = {0};
    struct comparison_run runs[] = {
        {&curves[0], "short"}, {&curves[1], "größer"}, {&curves[2], "late"}};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    (void)state;
    for (int i = 1; i <= 100; i++)
        curve_add(&curves[0], i, 3.0);
    for (int i = 1; i <= 300; i++)
        curve_add(&curves[1], i, i <= 100 ? 2.5 : 1.0); /* what comes later does not count */
    curve_add_evaluation(&curves[1], 100, 2.75);
    curve_add_evaluation(&curves[1], 200, 2.25);
    curve_add_evaluation(&curves[1], 300, NAN);
    assert_int_equal(comparison_step(runs, 2), 100);
    comparison_print(runs, 2, &text);
    assert_non_null(strstr(text.text, "loss at 100"));
    assert_non_null(strstr(text.text, "\nshort        100               3           -  -\n"));
    assert_non_null(
        strstr(text.text, "\ngrößer       300             2.5        -0.5  2.25 (200)\n"));
    curve_add(&curves[2], 150, 1.0);
    assert_int_equal(comparison_step(runs, 3), 0);
    fleet_strbuf_clear(&text);
    comparison_print(runs, 3, &text);
    assert_non_null(strstr(text.text, "no step in common"));
    for (int i = 0; i < 3; i++)
        curve_release(&curves[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curve__a_step_made_again_replaces_what_was_after_it),
        cmocka_unit_test(test_smooth__a_straight_line_is_met_from_end_to_end),
        cmocka_unit_test(test_smooth__follows_a_falling_curve_under_noise),
        cmocka_unit_test(test_smooth__gaps_are_left_out),
        cmocka_unit_test(test_loss_range__is_logarithmic_when_that_helps),
        cmocka_unit_test(test_loss_range__a_divergence_does_not_flatten_the_rest),
        cmocka_unit_test(test_axis__ticks_are_round_numbers),
        cmocka_unit_test(test_axis__any_range_has_ticks),
        cmocka_unit_test(test_comparison__compares_at_the_step_that_all_have),
    };

    return cmocka_run_group_tests_name("curves", tests, NULL, NULL);
}
