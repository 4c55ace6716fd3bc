/* SPDX-License-Identifier: Apache-2.0 */

/* A trainer plans without the number of workers what the job planned with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/units.h"

/* ---- one program for any number of workers ------------------------------------------------------- */

static void append_chain(struct fleet_strbuf *out, const struct select_result *result)
{
    for (size_t i = 0; i < result->applied.count; i++)
        if (pass_exists(result->applied.items[i]))
            fleet_strbuf_appendf(out, "%s ", result->applied.items[i]);
}

static bool can_run(const struct select_result *result)
{
    for (size_t i = 0; i < result->applied.count; i++)
        if (!pass_exists(result->applied.items[i]))
            return false;
    return true;
}

/* A trainer starts before it knows how many there are: what it plans must be what the job planned. */
static void compare_chains(const struct strategy *s, enum strategy_policy policy,
                           const char *optimizer, int world)
{
    struct select_options options = {.policy = policy, .world_size = world, .optimizer = optimizer};
    struct select_options least = {.policy = policy, .world_size = 1, .optimizer = optimizer};
    FLEET_AUTO_STRBUF struct fleet_strbuf here = {0}, there = {0};
    struct select_result at_world, at_one;
    struct fleet_errors errors = {0};

    if (strategy_select(s, &options, "", &at_world, &errors) == 0) {
        assert_int_equal(strategy_select(s, &least, "", &at_one, &errors), 0);
        append_chain(&here, &at_world);
        append_chain(&there, &at_one);
        if (can_run(&at_world))
            assert_string_equal(fleet_strbuf_text(&here), fleet_strbuf_text(&there));
        select_result_release(&at_world);
        select_result_release(&at_one);
    }
    fleet_errors_release(&errors);
}

static void test_no_silence__trainers_plan_what_the_job_planned(void **state)
{
    static const char *const optimizers[] = {"sgd", "momentum", "adam", "adamw"};

    (void)state;
    for (unsigned int bits = 0; bits < 1U << UNITS; bits++) {
        STRATEGY_AUTO struct strategy s = {0};

        strategy_init(&s);
        for (int i = 0; i < UNITS; i++)
            if (bits & UNIT_BIT(i))
                unit_set(&s, (enum unit)i, true);
        knob_append_string(&s.recompute_configs.checkpoints, "x");
        s.recompute_configs.has_checkpoints = s.has_recompute_configs = KNOB_BY_NAME;
        s.gradient_merge_configs.k_steps = 2;
        s.gradient_merge_configs.has_k_steps = s.has_gradient_merge_configs = KNOB_BY_NAME;
        for (int world = 2; world <= 4; world++)
            for (size_t i = 0; i < FLEET_COUNT(optimizers); i++) {
                compare_chains(&s, STRATEGY_FULL, optimizers[i], world);
                compare_chains(&s, STRATEGY_PADDLE, optimizers[i], world);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_silence__trainers_plan_what_the_job_planned),
    };
    return cmocka_run_group_tests_name("no_silence", tests, NULL, NULL);
}
