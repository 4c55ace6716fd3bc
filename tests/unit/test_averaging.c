/* SPDX-License-Identifier: Apache-2.0 */

/* The updates after which parameters are averaged, and the share of elements that dgc sends in each
 * update, against values that were computed by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/dgc.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/averaging.h"

/* ---- localsgd -------------------------------------------------------------------------------- */

static void check_updates(int interval, int begin, const int64_t *expected, size_t count)
{
    struct strategy s;
    struct averaging a;
    size_t found = 0;
    bool kept;

    strategy_init(&s);
    s.localsgd = true;
    s.localsgd_configs.k_steps = interval;
    s.localsgd_configs.begin_step = begin;
    averaging_init(&a, &s);
    for (int64_t u = 1; u <= expected[count - 1]; u++) {
        struct averaging_step step = {.update = u, .loss = 1, .rate = 1};
        if (!averaging_advance(&a, &s, NULL, &step, &kept))
            continue;
        assert_false(kept);
        assert_true(found < count);
        assert_int_equal(u, expected[found++]);
    }
    assert_int_equal(found, count);
    strategy_release(&s);
}

static void test_averaging__localsgd_follows_its_interval(void **state)
{
    static const int64_t four[] = {1, 2, 3, 7, 11, 15, 19}, three[] = {1, 4, 7, 10},
                         one[] = {1, 2, 3, 4, 5};

    (void)state;
    check_updates(4, 3, four, FLEET_COUNT(four));
    check_updates(3, 1, three, FLEET_COUNT(three));
    check_updates(1, 1, one, FLEET_COUNT(one));
}

/* ---- adaptive_localsgd ----------------------------------------------------------------------- */

/* The interval after the average of update 2, of a job whose first one had lr0 and L0. */
static int64_t interval_of(int init, bool is_paper, double lr0, double l0, double lr, double l,
                           bool *out_kept)
{
    struct strategy_options options = {.adacomm_formula = is_paper ? STRATEGY_ADACOMM_PAPER
                                                                   : STRATEGY_ADACOMM_REFERENCE};
    struct averaging_step first = {.update = 1, .loss = l0, .rate = lr0};
    struct averaging_step then = {.update = 1 + init, .loss = l, .rate = lr};
    struct strategy s;
    struct averaging a;

    strategy_init(&s);
    s.adaptive_localsgd = true;
    s.adaptive_localsgd_configs.init_k_steps = init;
    averaging_init(&a, &s);
    assert_true(averaging_advance(&a, &s, &options, &first, out_kept));
    assert_int_equal(a.interval, init); /* until begin_step it stays */
    assert_false(*out_kept);
    assert_true(averaging_advance(&a, &s, &options, &then, out_kept));
    strategy_release(&s);
    return a.interval;
}

static void test_averaging__the_adaptive_interval(void **state)
{
    static const struct {
        double lr0, l0, lr, l;
        int init;
        bool is_paper;
        int64_t expected;
    } rows[] = {
        {0.1, 2.3, 0.1, 2.3, 1, false, 1},    {0.1, 2.3, 0.1, 2.3, 4, false, 2},
        {0.1, 2.3, 0.1, 2.3, 16, false, 4},   {0.1, 2.0, 0.01, 0.5, 8, false, 5},
        {0.1, 2.0, 0.001, 1.0, 8, false, 16}, {0.1, 2.0, 0.1, 0.02, 16, false, 1},
        {0.1, 2.3, 0.1, 2.3, 4, true, 4},     {0.1, 2.0, 0.01, 0.5, 8, true, 13},
        {0.1, 2.0, 0.1, 0.5, 6, true, 3},     {0.1, 2.0, 0.1, 0.0, 6, true, 1},
    };
    bool kept;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        assert_int_equal(interval_of(rows[i].init, rows[i].is_paper, rows[i].lr0, rows[i].l0,
                                     rows[i].lr, rows[i].l, &kept),
                         rows[i].expected);
        assert_false(kept);
    }
}

static void test_averaging__an_interval_that_is_no_number_stays(void **state)
{
    static const struct {
        double lr0, l0, lr, l;
    } rows[] = {
        {0.1, 2, 0, 2},     {0.1, 0, 0.1, 2},   {0.1, 2, 0.1, -1},
        {0.1, -2, 0.1, 1},  {0.1, 2, 0.1, NAN}, {0.1, 2, 0.1, INFINITY},
        {0.1, NAN, 0.1, 2}, {0, 2, 0, 2},       {0.1, INFINITY, 0.1, INFINITY},
    };
    bool kept;

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        assert_int_equal(
            interval_of(7, false, rows[i].lr0, rows[i].l0, rows[i].lr, rows[i].l, &kept), 7);
        assert_true(kept);
    }
}

/* ---- dgc ------------------------------------------------------------------------------------- */

static void test_averaging__dgc_sends_less_and_less(void **state)
{
    static const float paper[] = {0.75F, 0.9375F, 0.984375F, 0.996F, 0.999F};
    static const struct {
        int64_t t;
        double ratio;
    } rows[] = {{0, 0.25},      {19, 0.25},  {20, 0.0625}, {39, 0.0625}, {40, 0.015625},
                {59, 0.015625}, {60, 0.004}, {79, 0.004},  {80, 0.001},  {1000, 0.001}};
    struct strategy s;

    (void)state;
    strategy_init(&s);
    s.dgc_configs.rampup_begin_step = 1252; /* the example of Paddle's page */
    assert_true(dgc_ratio(&s.dgc_configs, 1251) == 0);
    assert_true(fabs(dgc_ratio(&s.dgc_configs, 1252) - 0.001) < 1e-12);
    s.dgc_configs.rampup_begin_step = 0;
    s.dgc_configs.rampup_step = 100;
    for (size_t i = 0; i < FLEET_COUNT(paper); i++)
        knob_append_float(&s.dgc_configs.sparsity, paper[i]);
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        assert_true(fabs(dgc_ratio(&s.dgc_configs, rows[i].t) - rows[i].ratio) < 1e-12);
    assert_true(dgc_ratio_max(&s.dgc_configs) == 0.25);
    assert_int_equal(dgc_kept(1000000, dgc_ratio(&s.dgc_configs, 80)), 1000);
    assert_int_equal(dgc_kept(16384, dgc_ratio(&s.dgc_configs, 80)), 16);
    assert_int_equal(dgc_kept(20, 0.001), 1);
    assert_int_equal(dgc_kept(16384, 1), 16384);
    strategy_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_averaging__localsgd_follows_its_interval),
        cmocka_unit_test(test_averaging__the_adaptive_interval),
        cmocka_unit_test(test_averaging__an_interval_that_is_no_number_stays),
        cmocka_unit_test(test_averaging__dgc_sends_less_and_less),
    };
    return cmocka_run_group_tests_name("averaging", tests, NULL, NULL);
}
