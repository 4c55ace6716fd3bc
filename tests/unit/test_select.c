/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The selection: Paddle's policy against the recorded chain of every subset of units, and the
 * conditions that the recording does not show (workers, optimizers, auto); the Full policy against
 * containment and contradictions; the guarantees (1) to (3) of select.h on all subsets.
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
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/units.h"
#include "tests/golden/golden.h"
#include "tests/golden/selection.h"

#define WORLD 8

/* A strategy from JSON written with ' for ". */
static void make(struct strategy *s, const char *text)
{
    struct fleet_errors errors = {0};
    char *json = strdup(text);
    cJSON *root;

    for (char *c = json; *c; c++)
        if (*c == '\'')
            *c = '"';
    root = cJSON_Parse(json);
    assert_non_null(root);
    assert_int_equal(strategy_json_decode(root, "", s, &errors), 0);
    cJSON_Delete(root);
    free(json);
}

/* The units of a set, each with the data it needs to take part. */
static void make_units(struct strategy *s, unsigned int bits)
{
    strategy_init(s);
    for (int i = 0; i < UNITS; i++)
        if (bits & UNIT_BIT(i))
            unit_set(s, (enum unit)i, true);
    if (s->recompute) {
        knob_append_string(&s->recompute_configs.checkpoints, "x");
        s->recompute_configs.has_checkpoints = s->has_recompute_configs = KNOB_BY_NAME;
    }
    if (s->gradient_merge) {
        s->gradient_merge_configs.k_steps = 4;
        s->gradient_merge_configs.has_k_steps = s->has_gradient_merge_configs = KNOB_BY_NAME;
    }
}

/* "amp>lars; dropped dgc: reason; idle x: reason; workers dgc", or "refused path: message; …". */
static char *outcome(const struct strategy *s, enum strategy_policy policy, int world,
                     const char *optimizer, bool with_reasons)
{
    struct select_options options = {.policy = policy, .world_size = world, .optimizer = optimizer};
    struct fleet_errors errors = {0};
    struct select_result r;
    struct fleet_strbuf out = {0};

    if (strategy_select(s, &options, "", &r, &errors) < 0) {
        for (size_t i = 0; i < errors.count; i++)
            fleet_strbuf_appendf(&out, "%srefused %s: %s", i ? "; " : "", errors.items[i].path,
                                 errors.items[i].message);
        fleet_errors_release(&errors);
        return fleet_strbuf_take(&out);
    }
    for (size_t i = 0; i < r.applied.count; i++)
        fleet_strbuf_appendf(&out, "%s%s", i ? ">" : "", r.applied.items[i]);
    for (size_t i = 0; i < r.dropped.count && with_reasons; i++)
        fleet_strbuf_appendf(&out, "; dropped %s: %s", r.dropped.items[i].knob,
                             r.dropped.items[i].because);
    for (size_t i = 0; i < r.without_effect.count && with_reasons; i++)
        fleet_strbuf_appendf(&out, "; idle %s: %s", r.without_effect.items[i].knob,
                             r.without_effect.items[i].because);
    for (size_t i = 0; i < r.warnings.count && with_reasons; i++)
        fleet_strbuf_appendf(&out, "; warning %s: %s", r.warnings.items[i].knob,
                             r.warnings.items[i].because);
    for (size_t i = 0; i < r.depends_on_workers.count && with_reasons; i++)
        fleet_strbuf_appendf(&out, "; workers %s", r.depends_on_workers.items[i]);
    select_result_release(&r);
    return fleet_strbuf_take(&out);
}

static void expect(const char *json, enum strategy_policy policy, int world, const char *optimizer,
                   const char *expected)
{
    struct strategy s;
    char *got;

    make(&s, json);
    got = outcome(&s, policy, world, optimizer, true);
    if (strcmp(got, expected) != 0)
        fail_msg("%s with %d workers, %s\n  expected: %s\n  actual:   %s", json, world,
                 optimizer ? optimizer : "any optimizer", expected, got);
    free(got);
    strategy_release(&s);
}

static unsigned int bits_of(const char *names)
{
    unsigned int bits = 0;
    char *copy = strdup(names), *state = NULL;

    for (char *name = strtok_r(copy, "+", &state); name; name = strtok_r(NULL, "+", &state))
        for (int i = 0; i < UNITS; i++)
            if (strcmp(name, unit_name((enum unit)i)) == 0)
                bits |= UNIT_BIT(i);
    free(copy);
    return bits;
}

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

        make_units(&s, bits_of(asked));
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
static void test_select__paddle_gives_the_documented_pairs(void **state)
{
    static const struct {
        const char *asked, *applied;
        bool graph;
    } rows[] = {
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
        {"fp16_allreduce+gradient_merge+amp+recompute+lars", "gradient_merge>amp>recompute>lars",
         true},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct select_options options = {.policy = STRATEGY_PADDLE, .world_size = WORLD};
        struct fleet_errors errors = {0};
        struct select_result r;
        struct strategy s;
        char *got;

        make_units(&s, bits_of(rows[i].asked));
        got = outcome(&s, STRATEGY_PADDLE, WORLD, NULL, false);
        assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
        if (strcmp(got, rows[i].applied) != 0 || r.graph_executor != rows[i].graph)
            fail_msg("%s\n  expected: %s, graph %d\n  actual:   %s, graph %d", rows[i].asked,
                     rows[i].applied, rows[i].graph, got, r.graph_executor);
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

/* ---- auto ---------------------------------------------------------------------------------- */

static void test_select__auto_alone_chooses_by_optimizer(void **state)
{
    static const enum strategy_policy policies[] = {STRATEGY_PADDLE, STRATEGY_FULL};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(policies); i++) {
        expect("{'auto': true}", policies[i], 4, "sgd",
               "adaptive_localsgd>amp; workers adaptive_localsgd");
        expect("{'auto': true}", policies[i], 4, "Momentum", "sharding>amp>lars");
        expect("{'auto': true}", policies[i], 4, "adam", "sharding>amp>lamb");
        expect("{'auto': true}", policies[i], 4, "adamw", "sharding>amp");
        expect("{'auto': false}", policies[i], 4, "adam", "");
    }
}

static void test_select__auto_beside_others_does_nothing(void **state)
{
    (void)state;
    expect("{'auto': true, 'amp': true}", STRATEGY_FULL, 4, "adam",
           "amp; idle auto: it chooses only when no other field is set, and others are");
    expect("{'auto': true, 'amp': true}", STRATEGY_PADDLE, 4, "adam",
           "amp; idle auto: it chooses only when no other field is set, and others are");
}

/* ---- Full ---------------------------------------------------------------------------------- */

static void test_select__full_applies_what_goes_together(void **state)
{
    (void)state;
    expect("{'amp': true, 'sharding': true, 'gradient_merge': true,"
           " 'gradient_merge_configs': {'k_steps': 4}, 'recompute': true, 'lamb': true}",
           STRATEGY_FULL, 4, "adam", "sharding>gradient_merge>amp>recompute>lamb");
    expect("{'pipeline': true, 'sharding': true, 'amp': true, 'fp16_allreduce': true}",
           STRATEGY_FULL, 8, "sgd", "pipeline>sharding>fp16_allreduce>amp; workers fp16_allreduce");
    expect("{'localsgd': true, 'gradient_merge': true, 'amp': true,"
           " 'gradient_merge_configs': {'k_steps': 2}}",
           STRATEGY_FULL, 2, "momentum", "localsgd>gradient_merge>amp; workers localsgd");
    expect("{'dgc': true, 'amp': true}", STRATEGY_FULL, 2, "momentum", "amp>dgc; workers dgc");
    expect("{'hybrid_configs': {'dp_degree': 2, 'mp_degree': 2, 'pp_degree': 2}}", STRATEGY_FULL, 8,
           "adamw", "pipeline>tensor_parallel; workers tensor_parallel");
}

static void test_select__sharding_merges_gradients_as_gradient_merge_does(void **state)
{
    static const char merges[] =
        "{'sharding': true, 'sharding_configs': {'gradient_merge_acc_step': 4}}";

    (void)state;
    expect(merges, STRATEGY_FULL, 4, "adam", "sharding>gradient_merge");
    expect(merges, STRATEGY_FULL, 1, "adam",
           "gradient_merge; idle sharding: a sharding group of one rank divides nothing");
    expect(merges, STRATEGY_PADDLE, 4, "adam", "sharding");
    expect("{'sharding_configs': {'gradient_merge_acc_step': 4}}", STRATEGY_FULL, 4, "adam",
           "; idle sharding_configs: sharding is off");
    expect("{'sharding': true, 'sharding_configs': {'gradient_merge_acc_step': 4},"
           " 'gradient_merge': true, 'gradient_merge_configs': {'k_steps': 4}}",
           STRATEGY_FULL, 4, "adam", "sharding>gradient_merge");
    expect("{'sharding': true, 'sharding_configs': {'gradient_merge_acc_step': 4},"
           " 'gradient_merge': true, 'gradient_merge_configs': {'k_steps': 2}}",
           STRATEGY_FULL, 4, "adam",
           "refused sharding_configs.gradient_merge_acc_step: is 4, and gradient_merge_configs has "
           "k_steps 2 and avg true: two rules for one interval; leave one of them out");
}

/* The effective strategy has the mean over the batches, under both policies. */
static void test_select__what_sharding_merges_is_in_the_effective_strategy(void **state)
{
    static const enum strategy_policy policies[] = {STRATEGY_FULL, STRATEGY_PADDLE};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(policies); i++) {
        struct select_options options = {
            .policy = policies[i], .world_size = 4, .optimizer = "adam"};
        struct fleet_errors errors = {0};
        struct select_result r;
        struct strategy s;
        make(&s, "{'sharding': true, 'sharding_configs': {'gradient_merge_acc_step': 3}}");
        assert_int_equal(select_merge_steps(&s), 3);
        assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
        assert_true(r.final.gradient_merge && r.final.gradient_merge_configs.avg);
        assert_int_equal(r.final.gradient_merge_configs.k_steps, 3);
        assert_true(select_has_note(&r.notes, "sharding_configs.gradient_merge_acc_step"));
        select_result_release(&r);
        strategy_release(&s);
    }
}

static void test_select__full_refuses_contradictions_by_name(void **state)
{
    (void)state;
    expect("{'lars': true, 'lamb': true}", STRATEGY_FULL, 2, NULL,
           "refused lamb: lars and lamb contradict each other: two optimizers for one parameter");
    expect("{'localsgd': true, 'sharding': true, 'fp16_allreduce': true}", STRATEGY_FULL, 2, "sgd",
           "refused fp16_allreduce: localsgd and fp16_allreduce contradict each other: there is no "
           "gradient exchange left to compress; refused sharding: localsgd and sharding "
           "contradict each other: local steps need a whole replica per rank");
    expect("{'lamb': true}", STRATEGY_FULL, 2, "adamw",
           "refused lamb: needs training.optimizer.name: adam (it is adamw)");
    expect("{'amp': true, 'amp_configs': {'custom_white_list': ['a'], 'custom_black_list': ['a']}}",
           STRATEGY_FULL, 2, NULL,
           "refused amp_configs.custom_black_list: \"a\" is in custom_white_list too");
}

static void test_select__full_contradicts_exactly_the_documented_pairs(void **state)
{
    static const char *const pairs[] = {
        "lamb+lars",
        "dgc+lars",
        "dgc+lamb",
        "adaptive_localsgd+localsgd",
        "dgc+localsgd",
        "adaptive_localsgd+dgc",
        "fp16_allreduce+localsgd",
        "adaptive_localsgd+fp16_allreduce",
        "localsgd+sharding",
        "adaptive_localsgd+sharding",
        "dgc+fp16_allreduce",
        "dgc+sharding",
    };

    (void)state;
    for (int a = 0; a < UNITS; a++)
        for (int b = 0; b < a; b++) {
            unsigned int bits = UNIT_BIT(a) | UNIT_BIT(b);
            bool listed = false;
            struct strategy s;
            char *got;

            for (size_t i = 0; i < FLEET_COUNT(pairs); i++)
                listed |= bits_of(pairs[i]) == bits;
            make_units(&s, bits);
            got = outcome(&s, STRATEGY_FULL, WORLD, NULL, false);
            if (listed != (strncmp(got, "refused", 7) == 0))
                fail_msg("%s + %s: %s", unit_name((enum unit)a), unit_name((enum unit)b), got);
            if (!listed &&
                (!strstr(got, unit_name((enum unit)a)) || !strstr(got, unit_name((enum unit)b))))
                fail_msg("%s + %s: not both applied: %s", unit_name((enum unit)a),
                         unit_name((enum unit)b), got);
            free(got);
            strategy_release(&s);
        }
}

/* Pure 16 bits differ from Paddle in what is stored, and the plan says so. */
static void test_select__pure_16_bits_say_what_is_stored(void **state)
{
    static const char *const knobs[] = {"use_pure_fp16", "use_pure_bf16"};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(knobs); i++) {
        struct select_options options = {.world_size = 1};
        SELECT_AUTO_RESULT struct select_result r = {0};
        struct fleet_errors errors = {0};
        char json[80], knob[40];
        struct strategy s;

        (void)snprintf(json, sizeof(json), "{\"amp\":true,\"amp_configs\":{\"%s\":true}}",
                       knobs[i]);
        (void)snprintf(knob, sizeof(knob), "amp_configs.%s", knobs[i]);
        make(&s, json);
        assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
        assert_int_equal(r.notes.count, 1);
        assert_string_equal(r.notes.items[0].knob, knob);
        assert_non_null(
            strstr(r.notes.items[0].because, "stores parameters and gradients in fp32"));
        strategy_release(&s);
    }
}

/* Accepted, with a warning. */
static void test_select__falling_sparsity_is_a_warning(void **state)
{
    (void)state;
    expect("{\"dgc\":true,\"dgc_configs\":{\"sparsity\":[0.99,0.75]}}", STRATEGY_FULL, 4,
           "momentum",
           "dgc; warning dgc_configs.sparsity: falls from 0.99 to 0.75; it is expected to rise "
           "during ramp-up; workers dgc");
}

/* The regularization of Momentum acts in addition to lars' own decay. */
static void test_select__decay_twice_is_a_warning(void **state)
{
    static const struct {
        const char *json, *knob;
        bool has_decay;
    } rows[] = {
        {"{\"lars\":true}", "lars_configs.lars_weight_decay", true},
        {"{\"lars\":true}", NULL, false},
        {"{\"lars\":true,\"lars_configs\":{\"lars_weight_decay\":0}}", NULL, true},
        {"{\"lamb\":true}", "lamb_configs.lamb_weight_decay", true},
        {"{\"amp\":true}", NULL, true},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++)
        for (int policy = STRATEGY_FULL; policy <= STRATEGY_PADDLE; policy++) {
            struct select_options options = {.policy = (enum strategy_policy)policy,
                                             .world_size = 1,
                                             .has_decay = rows[i].has_decay};
            SELECT_AUTO_RESULT struct select_result r = {0};
            struct fleet_errors errors = {0};
            struct strategy s;

            make(&s, rows[i].json);
            assert_int_equal(strategy_select(&s, &options, "spec.strategy", &r, &errors), 0);
            assert_int_equal(r.warnings.count, rows[i].knob ? 1 : 0);
            if (rows[i].knob)
                assert_string_equal(r.warnings.items[0].knob, rows[i].knob);
            strategy_release(&s);
        }
}

static void test_select__one_checkpoint_is_never_offloaded(void **state)
{
    (void)state;
    expect("{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"x\"],"
           "\"enable_offload\":true,\"checkpoint_shape\":[8]}}",
           STRATEGY_FULL, 1, NULL,
           "recompute; idle recompute_configs.enable_offload: the last checkpoint is never moved, "
           "and there is only one");
}

static void test_select__one_worker_leaves_exchange_without_effect(void **state)
{
    (void)state;
    expect("{'localsgd': true, 'amp': true}", STRATEGY_FULL, 1, "sgd",
           "amp; idle localsgd: one worker has no other to exchange with; workers localsgd");
    expect("{'sharding': true}", STRATEGY_FULL, 1, "sgd",
           "; idle sharding: a sharding group of one rank divides nothing");
}

static void test_select__idle_knobs_are_named(void **state)
{
    (void)state;
    expect("{'a_sync': true, 'amp_configs': {'incr_ratio': 3}}", STRATEGY_FULL, 2, NULL,
           "; idle a_sync: a collective job has no parameter server; idle amp_configs: amp is off");
    expect("{'sharding': true, 'sharding_configs': {'sharding_group_size': 2}}", STRATEGY_FULL, 4,
           NULL,
           "sharding; idle sharding_configs.sharding_group_size: without hybrid_dp there is one "
           "sharding group, all ranks that are left");
}

/* Knobs that Paddle has and that change nothing here, with any value. */
static void test_select__knobs_of_the_exchange_that_change_nothing_are_named(void **state)
{
    static const char *const knobs[][2] = {
        {"{'use_hierarchical_allreduce': true, 'hierarchical_allreduce_inter_nranks': 4}",
         "use_hierarchical_allreduce"},
        {"{'find_unused_parameters': true}", "find_unused_parameters"},
        {"{'sync_nccl_allreduce': false}", "sync_nccl_allreduce"},
        {"{'fuse_grad_size_in_TFLOPS': 20}", "fuse_grad_size_in_TFLOPS"},
        {"{'fuse_grad_size_in_num': 4}", "fuse_grad_size_in_num"},
        {"{'cudnn_exhaustive_search': true}", "cudnn_exhaustive_search"},
        {"{'conv_workspace_size_limit': 1024}", "conv_workspace_size_limit"},
        {"{'cudnn_batchnorm_spatial_persistent': true}", "cudnn_batchnorm_spatial_persistent"},
        {"{'a_sync_configs': {'k_steps': 3}}", "a_sync_configs"},
        {"{'pipeline': true, 'pipeline_configs': {'p2p_cache_shape': false}}",
         "pipeline_configs.p2p_cache_shape"},
        {"{'recompute': true, 'recompute_configs': {'checkpoints': ['x'], 'enable_tuning': true}}",
         "recompute_configs.enable_tuning"},
        {"{'hybrid_configs': {'dp_degree': 4, 'mp_configs': {'sync_param': true}}}",
         "hybrid_configs.mp_configs"},
    };
    struct select_options options = {.policy = STRATEGY_FULL, .world_size = 4};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(knobs); i++) {
        struct fleet_errors errors = {0};
        struct select_result r;
        struct strategy s;

        make(&s, knobs[i][0]);
        assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
        for (size_t j = 1; j < r.without_effect.count; j++) /* what belongs to the first */
            if (!strstr(knobs[i][0], r.without_effect.items[j].knob))
                fail_msg("%s: %s is not part of it", knobs[i][0], r.without_effect.items[j].knob);
        if (r.without_effect.count < 1 || strcmp(r.without_effect.items[0].knob, knobs[i][1]) != 0)
            fail_msg("%s: expected %s alone to be without effect, got %zu, first %s", knobs[i][0],
                     knobs[i][1], r.without_effect.count,
                     r.without_effect.count ? r.without_effect.items[0].knob : "none");
        select_result_release(&r);
        strategy_release(&s);
    }
}

static void test_select__a_sum_in_two_levels_is_reported(void **state)
{
    struct select_options options = {.policy = STRATEGY_FULL, .world_size = 4};
    struct fleet_errors errors = {0};
    struct select_result r;
    struct strategy s;

    (void)state;
    make(&s, "{'use_hierarchical_allreduce': true, 'hierarchical_allreduce_inter_nranks': 2}");
    assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
    assert_int_equal(r.without_effect.count, 0);
    assert_true(select_has_note(&r.notes, "use_hierarchical_allreduce"));
    assert_true(select_has_note(&r.notes, "hierarchical_allreduce_inter_nranks"));
    select_result_release(&r);
    strategy_release(&s);
}

static void test_select__channels_are_reported(void **state)
{
    struct select_options options = {.policy = STRATEGY_FULL, .world_size = 4};
    struct fleet_errors errors = {0};
    struct select_result r;
    struct strategy s;

    (void)state;
    make(&s, "{'nccl_comm_num': 2}");
    assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
    assert_int_equal(r.final.nccl_comm_num, 2);
    assert_false(select_has_note(&r.without_effect, "nccl_comm_num"));
    assert_true(select_has_note(&r.notes, "nccl_comm_num"));
    select_result_release(&r);
    options.world_size = 1;
    assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
    assert_int_equal(r.final.nccl_comm_num, 1);
    assert_true(select_has_note(&r.without_effect, "nccl_comm_num"));
    select_result_release(&r);
    strategy_release(&s);
}

static void test_select__another_mode_is_idle(void **state)
{
    struct strategy s;
    char *got;

    (void)state;
    make(&s, "{'amp': true}");
    s.mode = STRATEGY_PS; /* from a text: a resource may not say it */
    s.has_mode = KNOB_BY_NAME;
    got = outcome(&s, STRATEGY_FULL, 2, NULL, true);
    assert_string_equal(got, "amp; idle mode: every job here is collective");
    free(got);
    strategy_release(&s);
}

static void test_select__forced_values_show_in_the_final_strategy(void **state)
{
    struct select_options options = {.policy = STRATEGY_FULL, .world_size = 4};
    struct fleet_errors errors = {0};
    struct select_result r;
    struct strategy s;

    (void)state;
    make(&s, "{'recompute': true, 'sync_nccl_allreduce': true, 'nccl_comm_num': 3,"
             " 'build_strategy': {'enable_backward_optimizer_op_deps': false}}");
    assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
    assert_true(r.final.build_strategy.enable_sequential_execution);
    assert_true(r.final.build_strategy.enable_backward_optimizer_op_deps);
    assert_int_equal(r.final.execution_strategy.num_threads, 4);
    assert_int_equal(r.notes.count, 2);
    assert_string_equal(r.notes.items[0].knob, "nccl_comm_num");
    assert_string_equal(r.notes.items[1].knob, "recompute");
    select_result_release(&r);
    s.sync_batch_norm = true;
    s.has_sync_batch_norm = KNOB_BY_NAME;
    assert_int_equal(strategy_select(&s, &options, "", &r, &errors), 0);
    assert_int_equal(r.final.execution_strategy.num_threads, 1);
    assert_int_equal(r.final.nccl_comm_num, 1);
    select_result_release(&r);
    strategy_release(&s);
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

            make_units(&s, bits);
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
        cmocka_unit_test(test_select__auto_alone_chooses_by_optimizer),
        cmocka_unit_test(test_select__auto_beside_others_does_nothing),
        cmocka_unit_test(test_select__full_applies_what_goes_together),
        cmocka_unit_test(test_select__sharding_merges_gradients_as_gradient_merge_does),
        cmocka_unit_test(test_select__what_sharding_merges_is_in_the_effective_strategy),
        cmocka_unit_test(test_select__full_refuses_contradictions_by_name),
        cmocka_unit_test(test_select__full_contradicts_exactly_the_documented_pairs),
        cmocka_unit_test(test_select__pure_16_bits_say_what_is_stored),
        cmocka_unit_test(test_select__falling_sparsity_is_a_warning),
        cmocka_unit_test(test_select__decay_twice_is_a_warning),
        cmocka_unit_test(test_select__one_checkpoint_is_never_offloaded),
        cmocka_unit_test(test_select__one_worker_leaves_exchange_without_effect),
        cmocka_unit_test(test_select__idle_knobs_are_named),
        cmocka_unit_test(test_select__knobs_of_the_exchange_that_change_nothing_are_named),
        cmocka_unit_test(test_select__a_sum_in_two_levels_is_reported),
        cmocka_unit_test(test_select__channels_are_reported),
        cmocka_unit_test(test_select__another_mode_is_idle),
        cmocka_unit_test(test_select__forced_values_show_in_the_final_strategy),
        cmocka_unit_test(test_select__keeps_its_guarantees_on_all_subsets),
    };
    return cmocka_run_group_tests_name("select", tests, NULL, NULL);
}
