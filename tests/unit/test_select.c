/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The selection with `auto` and by the Full policy: containment, contradictions, and the reasons
 * that it gives for settings without effect.
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
            strategy_units_make(&s, bits);
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
         "hybrid_configs.mp_configs.sync_param"},
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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests_name("select", tests, NULL, NULL);
}
