/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The selection by Paddle's policy: against the recorded chain of every subset of units, and the
 * conditions that the recording does not show (workers, optimizers). Also the guarantees (1) to
 * (3) of select.h, on all subsets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/units.h"
#include "tests/golden/golden.h"
#include "tests/golden/selection.h"
#include "tests/unit/select_fixture.h"

/* ---- Paddle -------------------------------------------------------------------------------- */

static void test_select__paddle_gives_every_recorded_chain(void **state)
{
    cJSON *golden = golden_json("paddle/selection_2_0_lists.json"), *row;
    int rows = 0;

    (void)state;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(golden, "rows"))
    {
        const char *asked = cJSON_GetArrayItem(row, 0)->valuestring;
        const char *expected = cJSON_GetArrayItem(row, 1)->valuestring;
        struct strategy s;
        char *got;

        strategy_units_make(&s, bits_of(asked));
        got = outcome(&s, STRATEGY_PADDLE, WORLD, NULL, false);
        if (strcmp(got, expected) != 0)
            fail_msg("%s\n  expected: %s\n  actual:   %s", asked, expected, got);
        free(got);
        strategy_release(&s);
        rows++;
    }
    assert_int_equal(rows, 1365);
    cJSON_Delete(golden);
}

/* What is listed of the pairs that have no row in the recording, with the graph executor. */
static const struct {
    const char *asked, *applied;
    bool graph;
} documented_pairs[] = {
    {"amp+localsgd", "localsgd>amp", false},
    {"amp+adaptive_localsgd", "adaptive_localsgd>amp", false},
    {"amp+dgc", "amp", true},
    {"amp+fp16_allreduce", "amp", true},
    {"amp+gradient_merge", "gradient_merge>amp", true},
    {"amp+lamb", "amp>lamb", true},
    {"amp+pipeline", "amp", true},
    {"amp+recompute", "amp>recompute", true},
    {"amp+sharding", "sharding>amp", false},
    {"adaptive_localsgd+sharding", "adaptive_localsgd", false},
    {"dgc+recompute", "recompute>dgc", true},
    {"dgc+lars", "dgc", true},
    {"fp16_allreduce+localsgd", "fp16_allreduce>localsgd", false},
    {"fp16_allreduce+lars", "fp16_allreduce>lars", true},
    {"fp16_allreduce+sharding", "fp16_allreduce", true},
    {"gradient_merge+recompute", "gradient_merge>recompute", true},
    {"gradient_merge+sharding", "gradient_merge", true},
    {"lars+pipeline", "lars", true},
    {"lamb+recompute", "recompute>lamb", true},
    {"lamb+sharding", "sharding>lamb", false},
    {"localsgd+pipeline", "localsgd", false},
    {"pipeline+sharding", "pipeline", false},
    {"recompute+sharding", "sharding>recompute", false},
    {"localsgd+adaptive_localsgd", "adaptive_localsgd", false},
    {"amp+recompute+lars", "amp>recompute>lars", true},
    {"amp+recompute+dgc+lars", "amp>recompute>lars", true},
    {"amp+recompute+dgc", "amp>recompute", true},
    {"gradient_merge+amp+recompute+lamb", "gradient_merge>amp>recompute>lamb", true},
    {"sharding+amp+recompute+lars", "sharding>amp>recompute>lars", false},
    {"sharding+gradient_merge+amp+recompute", "sharding>amp>recompute", false},
    {"sharding+pipeline+amp+recompute", "sharding>amp>recompute", false},
    {"localsgd+amp+recompute", "amp>recompute", true},
    {"localsgd+amp+lars", "amp>lars", true},
    {"fp16_allreduce+localsgd+amp", "fp16_allreduce>localsgd", false},
    {"fp16_allreduce+gradient_merge+amp+recompute+lars", "gradient_merge>amp>recompute>lars", true},
};

static void test_select__paddle_gives_the_documented_pairs(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(documented_pairs); i++) {
        struct select_options options = {.policy = STRATEGY_PADDLE, .world_size = WORLD};
        struct fleet_errors errors = {0};
        struct select_result r;
        struct strategy s;
        char *got;

        strategy_units_make(&s, bits_of(documented_pairs[i].asked));
        got = outcome(&s, STRATEGY_PADDLE, WORLD, NULL, false);
        assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
        if (strcmp(got, documented_pairs[i].applied) != 0 ||
            r.graph_executor != documented_pairs[i].graph)
            fail_msg("%s\n  expected: %s, graph %d\n  actual:   %s, graph %d",
                     documented_pairs[i].asked, documented_pairs[i].applied,
                     documented_pairs[i].graph, got, r.graph_executor);
        free(got);
        select_result_release(&r);
        strategy_release(&s);
    }
}

static void test_select__paddle_says_why_it_drops(void **state)
{
    (void)state;
    expect("{'amp': true, 'localsgd': true, 'dgc': true}", STRATEGY_PADDLE, 1, "Momentum",
           "amp; dropped dgc: it needs more than one worker; dropped localsgd: it needs more than "
           "one worker");
    expect("{'lars': true, 'amp': true}", STRATEGY_PADDLE, 2, "adamw",
           "amp; dropped lars: it works with the optimizer Momentum only, not with adamw");
    expect("{'lamb': true}", STRATEGY_PADDLE, 2, "adamw",
           "; dropped lamb: it works with the optimizer Adam only, not with adamw");
    expect("{'recompute': true, 'gradient_merge': true}", STRATEGY_PADDLE, 2, "sgd",
           "; dropped gradient_merge: gradient_merge_configs.k_steps is 1, which is off; dropped "
           "recompute: recompute_configs.checkpoints is empty");
    expect("{'sharding': true, 'amp': true, 'dgc': true}", STRATEGY_PADDLE, 4, "momentum",
           "sharding>amp; dropped dgc: Paddle keeps one chain of units that contain each other: "
           "sharding > amp");
}

static void test_select__paddle_leaves_degrees_to_later_units(void **state)
{
    (void)state;
    expect("{'sharding': true, 'pipeline': true, 'amp': true,"
           " 'sharding_configs': {'sharding_degree': 2, 'pp_degree': 2, 'dp_degree': 2}}",
           STRATEGY_PADDLE, 8, "adam", "pipeline>sharding>amp");
    expect("{'amp': true, 'lamb': true, 'hybrid_configs': {'pp_degree': 2, 'mp_degree': 2}}",
           STRATEGY_PADDLE, 8, "adam",
           "pipeline>tensor_parallel>amp>lamb; workers tensor_parallel");
}

/* Rows recorded from 2.6 that the 2.0 rules decide otherwise; units in the order applied. */
static const struct {
    const char *requested; /* and the optimizer */
    const char *ours, *later;
} later_rows[] = {
    {"adaptive_localsgd+gradient_merge Momentum 2", "adaptive_localsgd", "gradient_merge"},
    {"adaptive_localsgd+lars Momentum 2", "adaptive_localsgd", "lars"},
    {"adaptive_localsgd+localsgd Momentum 2", "adaptive_localsgd", "localsgd"},
    {"adaptive_localsgd+recompute Momentum 2", "adaptive_localsgd", "recompute"},
    {"pipeline+sharding Momentum 2", "pipeline", "sharding"},
    {"amp+recompute+dgc Momentum 2", "amp>recompute", "amp>recompute>dgc"},
    {"sharding+pipeline+amp+recompute Momentum 4", "pipeline>sharding>amp>recompute",
     "sharding>amp>recompute"},
    {"sharding+pipeline Momentum 4", "pipeline>sharding", "sharding"},
    {"localsgd+amp+recompute Momentum 2", "amp>recompute", "localsgd>amp"},
    {"localsgd+amp+lars Momentum 2", "amp>lars", "localsgd>amp"},
    {"fp16_allreduce+recompute+lars Momentum 2", "fp16_allreduce>recompute>lars", "recompute>lars"},
    {"auto SGD 2", "adaptive_localsgd>amp", "sharding>asp>amp"},
    {"auto Momentum 2", "sharding>amp>lars", "sharding>asp>amp>lars"},
    {"auto Momentum 1", "amp>lars", "tensor_parallel>amp>lars"},
    {"qat Adam 2", "", "qat"},
    {"asp Momentum 2", "", "asp"},
    {"asp+amp Momentum 2", "amp", "asp>amp"},
};

static void test_select__differs_from_2_6_in_the_known_rows_only(void **state)
{
    cJSON *golden = golden_json("paddle/selection_gpu_build.json"), *row;
    size_t differing = 0;

    (void)state;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(golden, "rows"))
    {
        struct fleet_strbuf name = {0}, later = {0};
        struct strategy s;
        char *ours;
        size_t i = 0;

        selection_chain(row, &later);
        selection_strategy(row, &s, &name);
        ours = outcome(&s, STRATEGY_PADDLE, cJSON_GetObjectItem(row, "workers")->valueint,
                       cJSON_GetObjectItem(row, "optimizer")->valuestring, false);
        while (i < FLEET_COUNT(later_rows) && strcmp(later_rows[i].requested, name.text) != 0)
            i++;
        if (i < FLEET_COUNT(later_rows)) {
            assert_string_equal(ours, later_rows[i].ours);
            assert_string_equal(later.text, later_rows[i].later);
            differing++;
        } else if (strcmp(ours, later.text) != 0) {
            fail_msg("%s\n  ours: %s\n  2.6:  %s", name.text, ours, later.text);
        }
        free(ours);
        fleet_strbuf_release(&name);
        fleet_strbuf_release(&later);
        strategy_release(&s);
    }
    assert_int_equal(differing, FLEET_COUNT(later_rows));
    cJSON_Delete(golden);
}

/* ---- guarantees ---------------------------------------------------------------------------- */

static size_t times_named(const struct select_result *r, const char *knob)
{
    size_t times = 0;

    for (size_t i = 0; i < r->applied.count; i++)
        times += strcmp(r->applied.items[i], knob) == 0;
    for (size_t i = 0; i < r->dropped.count; i++)
        times += strcmp(r->dropped.items[i].knob, knob) == 0;
    for (size_t i = 0; i < r->without_effect.count; i++)
        times += strcmp(r->without_effect.items[i].knob, knob) == 0;
    return times;
}

static void check_guarantees(const struct strategy *s, const struct select_options *options,
                             unsigned int bits)
{
    struct fleet_errors errors = {0};
    struct select_result first, second;

    if (strategy_select(s, options, "", &first, &errors) < 0) {
        fleet_errors_release(&errors);
        return;
    }
    for (int i = 0; i < UNITS; i++)
        if (times_named(&first, unit_name((enum unit)i)) != (bits >> i & 1))
            fail_msg("units %x, %d workers: (1) broken by %s", bits, options->world_size,
                     unit_name((enum unit)i));
    if (strategy_select(&first.final, options, "", &second, &errors) < 0)
        fail_msg("units %x: (3) the final strategy is refused: %s", bits, errors.items[0].message);
    if (first.applied.count != second.applied.count)
        fail_msg("units %x, %d workers: (3) %zu applied, then %zu", bits, options->world_size,
                 first.applied.count, second.applied.count);
    for (size_t i = 0; i < first.applied.count; i++)
        assert_string_equal(first.applied.items[i], second.applied.items[i]);
    select_result_release(&first);
    select_result_release(&second);
}

static void test_select__keeps_its_guarantees_on_all_subsets(void **state)
{
    static const int worlds[] = {1, 2, 6, 8};
    static const char *const optimizers[] = {NULL, "sgd", "momentum", "adam"};

    (void)state;
    for (unsigned int bits = 0; bits < 1U << UNITS; bits++)
        for (size_t w = 0; w < FLEET_COUNT(worlds); w++) {
            struct strategy s;

            strategy_units_make(&s, bits);
            for (int policy = STRATEGY_FULL; policy <= STRATEGY_PADDLE; policy++) {
                struct select_options options = {
                    .policy = (enum strategy_policy)policy,
                    .world_size = worlds[w],
                    .optimizer = optimizers[(bits + w) % FLEET_COUNT(optimizers)]};
                check_guarantees(&s, &options, bits);
            }
            strategy_release(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select__paddle_gives_every_recorded_chain),
        cmocka_unit_test(test_select__paddle_gives_the_documented_pairs),
        cmocka_unit_test(test_select__paddle_says_why_it_drops),
        cmocka_unit_test(test_select__paddle_leaves_degrees_to_later_units),
        cmocka_unit_test(test_select__differs_from_2_6_in_the_known_rows_only),
        cmocka_unit_test(test_select__keeps_its_guarantees_on_all_subsets),
    };
    return cmocka_run_group_tests_name("select_paddle", tests, NULL, NULL);
}
