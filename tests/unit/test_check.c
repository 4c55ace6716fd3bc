/* SPDX-License-Identifier: Apache-2.0 */

/* Ranges and companions: each rule of check.h with a value on both sides of its border. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/strategy/check.h"
#include "tests/unit/strategy_text.h"

static char *check(const char *json, int world, bool warnings)
{
    struct fleet_errors errors = {0}, warned = {0};
    struct strategy s;
    char *text, *other, *refused = strategy_text_read(&s, json);

    if (refused)
        fail_msg("%s: %s", json, refused);
    (void)strategy_check(&s, world, false, "spec.strategy", &errors, &warned);
    strategy_release(&s);
    text = strategy_text_errors(&errors);
    other = strategy_text_errors(&warned);
    free(warnings ? text : other);
    return warnings ? other : text;
}

static void expect(const char *json, int world, const char *expected)
{
    char *got = check(json, world, false);

    if (strcmp(got, expected) != 0)
        fail_msg("%s with %d workers\n  expected: %s\n  actual:   %s", json, world, expected, got);
    free(got);
}

/* Fields with their values, and whether these are legal. */
static const struct {
    const char *json;
    bool legal;
} values[] = {
    {"{'amp_configs': {'init_loss_scaling': 1e-30}}", true},
    {"{'amp_configs': {'init_loss_scaling': 0}}", false},
    {"{'amp_configs': {'init_loss_scaling': 'nan'}}", false},
    {"{'amp_configs': {'incr_every_n_steps': 1, 'decr_every_n_nan_or_inf': 1}}", true},
    {"{'amp_configs': {'incr_every_n_steps': 0}}", false},
    {"{'amp_configs': {'decr_every_n_nan_or_inf': 0}}", false},
    {"{'amp_configs': {'incr_ratio': 1}}", false},
    {"{'amp_configs': {'incr_ratio': 1.01, 'decr_ratio': 0.01}}", true},
    {"{'amp_configs': {'decr_ratio': 0}}", false},
    {"{'amp_configs': {'decr_ratio': 1}}", false},
    {"{'gradient_merge_configs': {'k_steps': 1}}", true},
    {"{'gradient_merge_configs': {'k_steps': 0}}", false},
    {"{'localsgd_configs': {'k_steps': 0}}", false},
    {"{'localsgd_configs': {'begin_step': 0}}", false},
    {"{'adaptive_localsgd_configs': {'init_k_steps': 0}}", false},
    {"{'dgc_configs': {'rampup_begin_step': 0, 'rampup_step': 1}}", true},
    {"{'dgc_configs': {'rampup_begin_step': -1}}", false},
    {"{'dgc_configs': {'rampup_step': 0}}", false},
    {"{'dgc_configs': {'sparsity': [0.5, 1]}}", false},
    {"{'dgc_configs': {'sparsity': [0]}}", false},
    {"{'lars_configs': {'lars_coeff': 0}}", false},
    {"{'lars_configs': {'lars_weight_decay': 0, 'epsilon': 0}}", true},
    {"{'lars_configs': {'epsilon': -1e-9}}", false},
    {"{'lamb_configs': {'lamb_weight_decay': -0.1}}", false},
    {"{'pipeline_configs': {'micro_batch': 0}}", false},
    {"{'pipeline_configs': {'micro_batch_size': 0}}", false},
    {"{'pipeline_configs': {'schedule_mode': 'F-then-B'}}", true},
    {"{'pipeline_configs': {'schedule_mode': '1F1B'}}", true},
    {"{'pipeline_configs': {'schedule_mode': '1f1b'}}", false},
    {"{'pipeline_configs': {'schedule_mode': ''}}", false},
    {"{'sharding_configs': {'fuse_broadcast_MB': 0}}", false},
    {"{'sharding_configs': {'sharding_group_size': 0}}", false},
    {"{'sharding_configs': {'stage': 3}}", true},
    {"{'sharding_configs': {'stage': 4}}", false},
    {"{'nccl_comm_num': 8}", true},
    {"{'nccl_comm_num': 9}", false},
    {"{'fuse_grad_size_in_MB': 0}", false},
    {"{'last_comm_group_size_MB': 0}", false},
    {"{'fuse_grad_size_in_TFLOPS': 'inf'}", false},
    {"{'hybrid_configs': {'dp_degree': -1}}", true},
    {"{'hybrid_configs': {'dp_degree': -2}}", false},
    {"{'hybrid_configs': {'order': ['dp', 'pp', 'sharding', 'sep', 'mp']}}", true},
    {"{'hybrid_configs': {'order': ['dp', 'dp']}}", false},
    {"{'hybrid_configs': {'order': ['dp', 'tp']}}", false},
};

static void test_check__refuses_values_out_of_range(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(values); i++) {
        char *got = check(values[i].json, 0, false);
        if (values[i].legal != (*got == '\0'))
            fail_msg("%s: expected %s, got \"%s\"", values[i].json,
                     values[i].legal ? "no error" : "an error", got);
        free(got);
    }
}

static void test_check__messages_name_path_value_and_range(void **state)
{
    (void)state;
    expect("{'nccl_comm_num': 9, 'amp_configs': {'decr_ratio': 2},"
           " 'sharding_configs': {'sharding_degree': -1, 'sharding_segment_strategy': 'x'}}",
           0,
           "spec.strategy.nccl_comm_num: must be from 1 to 8, not 9; "
           "spec.strategy.amp_configs.decr_ratio: must be finite and greater than 0 and less than "
           "1, not 2; "
           "spec.strategy.sharding_configs.sharding_segment_strategy: must be "
           "segment_broadcast_MB or segment_anchors, not \"x\"; "
           "spec.strategy.sharding_configs.sharding_degree: must be at least 1, not -1");
}

static void test_check__offload_and_checkpoint_shape_go_together(void **state)
{
    (void)state;
    expect("{'recompute_configs': {'enable_offload': true, 'checkpoint_shape': [2, 3]}}", 0, "");
    expect("{'recompute_configs': {'enable_offload': true}}", 0,
           "spec.strategy.recompute_configs.checkpoint_shape: is needed with enable_offload");
    expect("{'recompute_configs': {'checkpoint_shape': [2]}}", 0,
           "spec.strategy.recompute_configs.checkpoint_shape: is only allowed with enable_offload");
}

static void test_check__hybrid_dp_needs_several_whole_groups(void **state)
{
    static const char json[] =
        "{'sharding': true, 'sharding_configs': {'hybrid_dp': true, 'sharding_group_size': 4}}";

    (void)state;
    expect(json, 8, "");
    expect(json, 0, "");
    expect(json, 1, "");
    expect(json, 4,
           "spec.strategy.sharding_configs.sharding_group_size: is 4; with hybrid_dp it must be "
           "less than the 4 workers; nearest possible: 2");
    expect(json, 6,
           "spec.strategy.sharding_configs.sharding_group_size: is 4; with hybrid_dp it must "
           "divide the 6 workers; nearest possible: 3");
    expect("{'sharding': true, 'sharding_configs': {'hybrid_dp': false, 'dp_degree': 2}}", 16,
           "spec.strategy.sharding_configs.dp_degree: is 2, but hybrid_dp is false: several "
           "replicas need it true");
}

static void test_check__stages_inside_sharding_need_pipeline(void **state)
{
    (void)state;
    expect("{'sharding': true, 'sharding_configs': {'pp_degree': 2}}", 0,
           "spec.strategy.sharding_configs.pp_degree: is 2, which needs pipeline: true");
    expect("{'sharding': true, 'pipeline': true,"
           " 'sharding_configs': {'pp_degree': 2, 'gradient_merge_acc_step': 2}}",
           0,
           "spec.strategy.sharding_configs.gradient_merge_acc_step: is 2; with 2 pipeline stages "
           "use pipeline_configs.accumulate_steps instead");
    expect("{'sharding': true,"
           " 'sharding_configs': {'sharding_segment_strategy': 'segment_anchors'}}",
           0,
           "spec.strategy.sharding_configs.segment_anchors: must not be empty with "
           "sharding_segment_strategy segment_anchors");
}

static void test_check__hierarchy_divides_the_workers(void **state)
{
    static const char json[] =
        "{'use_hierarchical_allreduce': true, 'hierarchical_allreduce_inter_nranks': 4}";

    (void)state;
    expect(json, 8, "");
    expect(json, 1, "");
    expect(json, 6,
           "spec.strategy.hierarchical_allreduce_inter_nranks: is 4; with "
           "use_hierarchical_allreduce it must divide the 6 workers; nearest possible: 3 or 6");
    expect("{'use_hierarchical_allreduce': true}", 8,
           "spec.strategy.hierarchical_allreduce_inter_nranks: is 1; with "
           "use_hierarchical_allreduce a block has at least 2 ranks");
}

/* After a loss three workers go on as one group. */
static void test_check__groups_need_not_divide_what_a_loss_leaves(void **state)
{
    STRATEGY_AUTO struct strategy s = {0};
    struct fleet_errors errors = {0};

    (void)state;
    strategy_init(&s);
    s.sharding = s.sharding_configs.hybrid_dp = true;
    s.sharding_configs.sharding_group_size = 2;
    for (int world = 2; world <= 3; world++) {
        assert_int_equal(strategy_check(&s, world, true, "", &errors, NULL), 0);
        assert_int_equal(strategy_check(&s, world, false, "", &errors, NULL), -EINVAL);
    }
    fleet_errors_release(&errors);
}

/* After a loss three workers go on, with a sum in one level. A block of one is wrong for any. */
static void test_check__blocks_need_not_divide_what_a_loss_leaves(void **state)
{
    STRATEGY_AUTO struct strategy s = {0};
    struct fleet_errors errors = {0};

    (void)state;
    strategy_init(&s);
    s.use_hierarchical_allreduce = true;
    s.hierarchical_allreduce_inter_nranks = 2;
    assert_int_equal(strategy_check(&s, 3, true, "", &errors, NULL), 0);
    s.hierarchical_allreduce_inter_nranks = 1;
    assert_int_equal(strategy_check(&s, 3, true, "", &errors, NULL), -EINVAL);
    fleet_errors_release(&errors);
}

static void test_check__warns_of_a_falling_sparsity(void **state)
{
    char *got = check("{'dgc_configs': {'sparsity': [0.75, 0.5]}}", 0, true);

    (void)state;
    assert_string_equal(got, "spec.strategy.dgc_configs.sparsity: falls from 0.75 to 0.5; it is "
                             "expected to rise during ramp-up");
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check__refuses_values_out_of_range),
        cmocka_unit_test(test_check__messages_name_path_value_and_range),
        cmocka_unit_test(test_check__offload_and_checkpoint_shape_go_together),
        cmocka_unit_test(test_check__hybrid_dp_needs_several_whole_groups),
        cmocka_unit_test(test_check__stages_inside_sharding_need_pipeline),
        cmocka_unit_test(test_check__hierarchy_divides_the_workers),
        cmocka_unit_test(test_check__groups_need_not_divide_what_a_loss_leaves),
        cmocka_unit_test(test_check__blocks_need_not_divide_what_a_loss_leaves),
        cmocka_unit_test(test_check__warns_of_a_falling_sparsity),
    };
    return cmocka_run_group_tests_name("check", tests, NULL, NULL);
}
