/* SPDX-License-Identifier: Apache-2.0 */

/* What spec.autoParallel sets in the strategy of the built-in trainer, and what contradicts it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/context_strategy.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/strategy_options.h"

#define DATA   "parallel_mode: data_parallel, "
#define HYBRID "parallel_mode: hybrid_parallel, "
#define SUM    "\"gradient_scale_configs\":{\"scale_strategy\":\"sum\"}"
#define AVG    "\"gradient_scale_configs\":{\"scale_strategy\":\"avg\"}"

static cJSON *parse(const char *yaml)
{
    struct fleet_error err;
    cJSON *json = NULL;

    if (fleet_yaml_to_json(yaml, strlen(yaml), &json, &err) < 0)
        fail_msg("%s: %s", yaml, err.text);
    return json;
}

/* The strategy as JSON, then the ends as " [1 3]", then each error as " path: text". */
static void apply(const char *context, const char *strategy, int64_t world,
                  struct fleet_strbuf *out)
{
    FLEET_AUTO_JSON cJSON *json = parse(context), *given = parse(strategy), *encoded = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    struct context_job job = {.strategy_path = "spec.strategy", .world = world};
    struct fleet_errors errors = {0};
    STRATEGY_AUTO struct strategy s = {0};
    struct strategy_options options;

    strategy_options_init(&options);
    assert_int_equal(strategy_json_decode(given, "spec.strategy", &s, &errors), 0);
    context_apply(json, "spec.autoParallel", &job, &s, &options, &errors);
    encoded = strategy_json_encode(&s);
    text = fleet_json_print(encoded);
    fleet_strbuf_append(out, text);
    for (size_t i = 0; i < options.all_reduce_ends.count; i++)
        fleet_strbuf_appendf(out, "%s%d", i ? " " : " [", (int)options.all_reduce_ends.items[i]);
    fleet_strbuf_append(out, options.all_reduce_ends.count ? "]" : "");
    for (size_t i = 0; i < errors.count; i++)
        fleet_strbuf_appendf(out, " %s: %s", errors.items[i].path, errors.items[i].message);
    fleet_errors_release(&errors);
}

struct row {
    const char *context, *strategy;
    int64_t world;
    const char *wanted;
};

static void check(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
        apply(rows[i].context, rows[i].strategy, rows[i].world, &out);
        assert_string_equal(out.text, rows[i].wanted);
    }
}

static void test_context_strategy__sets_what_a_key_means(void **state)
{
    static const struct row rows[] = {
        {"{}", "{}", 4, "{}"},
        {"{gradients_mean: true}", "{}", 4, "{}"}, /* stand_alone */
        {"{parallel_mode: auto_parallel, gradients_mean: false}", "{}", 4, "{" SUM "}"},
        {"{" DATA "gradients_mean: true}", "{}", 4, "{" AVG "}"},
        {"{" DATA "gradients_mean: false}", "{}", 4, "{" SUM "}"},
        {"{" DATA "}", "{}", 4, "{" SUM "}"},
        {"{" HYBRID "}", "{}", 4, "{" SUM "}"},
        {"{" DATA "comm_fusion: {allreduce: {mode: auto, config: null}}}", "{}", 4,
         "{\"fuse_grad_size_in_MB\":64," SUM "}"},
        {"{" DATA "comm_fusion: {allreduce: {mode: size, config: 7}}}", "{}", 4,
         "{\"fuse_grad_size_in_MB\":7," SUM "}"},
        {"{" DATA "comm_fusion: {allreduce: {mode: index, config: [1, 3]}}}", "{}", 4,
         "{" SUM "} [1 3]"},
        {"{" DATA "all_reduce_fusion_config: [20, 35]}", "{}", 4, "{" SUM "} [20 35]"},
        {"{" DATA "comm_fusion: {openstate: false, allreduce: {mode: size, config: 7}}}", "{}", 4,
         "{\"fuse_all_reduce_ops\":false," SUM "}"},
        {"{" DATA "enable_parallel_optimizer: true}", "{}", 4, "{\"sharding\":true," SUM "}"},
        {"{" DATA "enable_parallel_optimizer: true}", "{}", 1, "{" SUM "}"},
        {"{" HYBRID "enable_parallel_optimizer: true}", "{}", 4, "{" SUM "}"},
        {"{" DATA "enable_parallel_optimizer: true, "
         "parallel_optimizer_config: {optimizer_weight_shard_size: 2}}",
         "{}", 4,
         "{\"sharding\":true,"
         "\"sharding_configs\":{\"sharding_group_size\":2,\"hybrid_dp\":true}," SUM "}"},
        {"{" DATA "enable_parallel_optimizer: true, " /* the whole group */
         "parallel_optimizer_config: {optimizer_weight_shard_size: 4}}",
         "{}", 4, "{\"sharding\":true," SUM "}"},
        {"{" DATA "enable_parallel_optimizer: true, " /* does not divide it: nothing is divided */
         "parallel_optimizer_config: {optimizer_weight_shard_size: 3}}",
         "{}", 4, "{" SUM "}"},
        {"{" DATA "force_fp32_communication: true}", "{}", 4, "{" SUM "}"},
    };

    (void)state;
    check(rows, FLEET_COUNT(rows));
}

#define GRAPH "parallel_mode: semi_auto_parallel, gradients_mean: true, "

static void test_context_strategy__divides_a_graph(void **state)
{
    static const struct row rows[] = {
        {"{" GRAPH "}", "{}", 8, "{" AVG "}"},
        {"{" GRAPH "pipeline_stages: 1}", "{}", 8, "{" AVG "}"},
        {"{" GRAPH "pipeline_stages: 2}", "{}", 8,
         "{\"pipeline\":true,\"hybrid_configs\":{\"pp_degree\":2}," AVG "}"},
        {"{" GRAPH "pipeline_stages: 2, pipeline_config: {pipeline_interleave: true, "
         "pipeline_scheduler: gpipe}}",
         "{}", 8,
         "{\"pipeline\":true,\"pipeline_configs\":{\"schedule_mode\":\"F-then-B\"},"
         "\"hybrid_configs\":{\"pp_degree\":2}," AVG "}"},
        {"{" GRAPH "enable_parallel_optimizer: true}", "{}", 8, "{\"sharding\":true," AVG "}"},
        {"{" GRAPH "enable_parallel_optimizer: true, pipeline_stages: 2}", "{}", 8,
         "{\"pipeline\":true,\"sharding\":true,"
         "\"hybrid_configs\":{\"pp_degree\":2,\"sharding_degree\":4}," AVG "}"},
        {"{" GRAPH "enable_parallel_optimizer: true, pipeline_stages: 8}", "{}", 8,
         "{\"pipeline\":true,\"hybrid_configs\":{\"pp_degree\":8}," AVG "}"},
        {"{" GRAPH "enable_parallel_optimizer: true, parallel_optimizer_config: "
         "{optimizer_weight_shard_size: 2, gradient_accumulation_shard: true}}",
         "{hybrid_configs: {mp_degree: 2}}", 8,
         "{\"sharding\":true,\"sharding_configs\":{\"stage\":2},"
         "\"hybrid_configs\":{\"mp_degree\":2,\"sharding_degree\":2}," AVG "}"},
        {"{" GRAPH "enable_parallel_optimizer: true, comm_fusion: {allgather: {mode: size, "
         "config: 5}}, parallel_optimizer_config: {optimizer_level: level3}}",
         "{}", 8,
         "{\"sharding\":true,\"sharding_configs\":{\"fuse_broadcast_MB\":5,\"stage\":3}," AVG "}"},
        {"{" GRAPH "enable_parallel_optimizer: true, pipeline_stages: 2, "
         "parallel_optimizer_config: {optimizer_level: level3}}",
         "{}", 8,
         "{\"pipeline\":true,\"sharding\":true,"
         "\"hybrid_configs\":{\"pp_degree\":2,\"sharding_degree\":4}," AVG "} "
         "spec.autoParallel.parallel_optimizer_config.optimizer_level: level3 gathers parameters "
         "as they are used, which ranks that share a model (pipeline_stages, tensor parallelism) "
         "cannot do yet: use level2"},
        {"{" GRAPH "pipeline_stages: 2}", "{hybrid_configs: {pp_degree: 4}}", 8,
         "{"
         "\"pipeline\":true,\"hybrid_configs\":{\"pp_degree\":4}," AVG "} "
         "spec.autoParallel.pipeline_stages: asks for hybrid_configs.pp_degree: 2, but "
         "spec.strategy.hybrid_configs.pp_degree is 4; give one of the two"},
        {"{" GRAPH "gradient_fp32_sync: true}", "{fp16_allreduce: true}", 4,
         "{\"fp16_allreduce\":true," AVG "} spec.autoParallel.gradient_fp32_sync: asks for "
         "fp16_allreduce: false, but spec.strategy.fp16_allreduce is true; give one of the two"},
    };

    (void)state;
    check(rows, FLEET_COUNT(rows));
}

static void test_context_strategy__agrees_or_contradicts(void **state)
{
    static const struct row rows[] = {
        {"{" DATA "}", "{gradient_scale_configs: {scale_strategy: avg}}", 4, "{" AVG "}"},
        {"{" DATA "gradients_mean: true}", "{gradient_scale_configs: {scale_strategy: avg}}", 4,
         "{" AVG "}"},
        {"{" DATA "gradients_mean: false}", "{gradient_scale_configs: {scale_strategy: avg}}", 4,
         "{" AVG "} spec.autoParallel.gradients_mean: asks for "
         "gradient_scale_configs.scale_strategy: sum, but "
         "spec.strategy.gradient_scale_configs.scale_strategy is avg; give one of the two"},
        {"{" DATA "gradients_mean: true, comm_fusion: {allreduce: {mode: size, config: 7}}}",
         "{fuse_grad_size_in_MB: 8}", 4,
         "{\"fuse_grad_size_in_MB\":8," AVG "} spec.autoParallel.comm_fusion.allreduce: asks for "
         "fuse_grad_size_in_MB: 7, but spec.strategy.fuse_grad_size_in_MB is 8; give one of the "
         "two"},
        {"{" DATA "gradients_mean: true, comm_fusion: {openstate: false}}",
         "{fuse_all_reduce_ops: true}", 4,
         "{\"fuse_all_reduce_ops\":true," AVG "} spec.autoParallel.comm_fusion.openstate: asks for "
         "fuse_all_reduce_ops: false, but spec.strategy.fuse_all_reduce_ops is true; give one of "
         "the two"},
        {"{" DATA "gradients_mean: true, enable_parallel_optimizer: true}", "{sharding: false}", 4,
         "{\"sharding\":false," AVG "} spec.autoParallel.enable_parallel_optimizer: asks for "
         "sharding: true, but spec.strategy.sharding is false; give one of the two"},
        {"{" DATA "gradients_mean: true, force_fp32_communication: true}", "{fp16_allreduce: true}",
         4,
         "{\"fp16_allreduce\":true," AVG "} spec.autoParallel.force_fp32_communication: asks for "
         "fp16_allreduce: false, but spec.strategy.fp16_allreduce is true; give one of the two"},
        {"{" DATA "gradients_mean: true, all_reduce_fusion_config: [1], "
         "comm_fusion: {allreduce: {mode: index, config: [2]}}}",
         "{}", 4,
         "{" AVG "} [1] spec.autoParallel.comm_fusion.allreduce: differs from the other list of "
         "ends of all-reduces (all_reduce_fusion_config, comm_fusion.allreduce or "
         "spec.strategyOptions.allReduceEnds); give one of them"},
    };

    (void)state;
    check(rows, FLEET_COUNT(rows));
}

/* Values of wrong types are another function's to report. */
static void test_context_strategy__passes_over_what_it_cannot_read(void **state)
{
    static const struct row rows[] = {
        {"{" DATA "gradients_mean: 3, all_reduce_fusion_config: [x], comm_fusion: 5}", "{}", 4,
         "{" SUM "}"},
        {"{" DATA "comm_fusion: {allreduce: {mode: size, config: -7}}}", "{}", 4, "{" SUM "}"},
        {"{parallel_mode: 7, gradients_mean: true}", "{}", 4, "{}"},
    };

    (void)state;
    check(rows, FLEET_COUNT(rows));
}

/* What the user gave stays, and the error has both names. */
static void expect_refusal(const char *context, const char *strategy, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    apply(context, strategy, 4, &out);
    if (!strstr(out.text, wanted))
        fail_msg("%s beside %s: \"%s\" lacks \"%s\"", context, strategy, out.text, wanted);
}

#define LEVEL GRAPH "enable_parallel_optimizer: true, parallel_optimizer_config: "

static void test_context_strategy__contradicts_what_is_given_with_both_names(void **state)
{
    (void)state;
    expect_refusal("{" DATA "}", "{hybrid_configs: {mp_degree: 2}}",
                   " spec.autoParallel.parallel_mode: data_parallel divides samples alone, but "
                   "spec.strategy.hybrid_configs.mp_degree is 2; semi_auto_parallel has both");
    expect_refusal("{" HYBRID "}", "{hybrid_configs: {sep_degree: 2}}",
                   "hybrid_parallel divides samples alone, but "
                   "spec.strategy.hybrid_configs.sep_degree is 2");
    expect_refusal("{" DATA "}", "{pipeline: true}", "but spec.strategy.pipeline is true");
    expect_refusal("{" DATA "enable_parallel_optimizer: false}", "{sharding: true}",
                   " spec.autoParallel.enable_parallel_optimizer: asks for sharding: false, but "
                   "spec.strategy.sharding is true; give one of the two");
    expect_refusal("{" GRAPH "enable_parallel_optimizer: false}", "{sharding: true}",
                   "asks for sharding: false, but spec.strategy.sharding is true");
    expect_refusal("{" LEVEL "{optimizer_level: level1}}",
                   "{sharding: true, sharding_configs: {stage: 3}}",
                   "parallel_optimizer_config.optimizer_level: asks for sharding_configs.stage: 1, "
                   "but spec.strategy.sharding_configs.stage is 3");
    expect_refusal("{" LEVEL "{gradient_accumulation_shard: false}}",
                   "{sharding: true, sharding_configs: {stage: 2}}",
                   "gradient_accumulation_shard: asks for sharding_configs.stage: 1, but "
                   "spec.strategy.sharding_configs.stage is 2");
    expect_refusal("{" LEVEL "{optimizer_level: level3}, comm_fusion: {allgather: {mode: size, "
                   "config: 16}}}",
                   "{sharding_configs: {stage: 3, fuse_broadcast_MB: 8}}",
                   "comm_fusion.allgather: asks for sharding_configs.fuse_broadcast_MB: 16, but "
                   "spec.strategy.sharding_configs.fuse_broadcast_MB is 8");
    expect_refusal("{" DATA "comm_fusion: {allreduce: {mode: size, config: 16}}}",
                   "{fuse_all_reduce_ops: false}",
                   "comm_fusion.allreduce: asks for fuse_all_reduce_ops: true, but "
                   "spec.strategy.fuse_all_reduce_ops is false");
    expect_refusal("{" DATA "all_reduce_fusion_config: [1]}", "{fuse_all_reduce_ops: false}",
                   "all_reduce_fusion_config: asks for fuse_all_reduce_ops: true, but");
    expect_refusal("{" DATA "comm_fusion: {openstate: true}}", "{fuse_all_reduce_ops: false}",
                   "comm_fusion.openstate: asks for fuse_all_reduce_ops: true, but");
}

static void expect_warning(const char *context, int64_t world, const char *wanted)
{
    FLEET_AUTO_JSON cJSON *json = parse(context);
    STRATEGY_AUTO struct strategy s = {0};
    struct strategy_options options;
    struct context_job job = {.strategy_path = "spec.strategy", .world = world};
    struct context_outcome outcome = {
        .strategy_path = "spec.strategy", .world = world, .strategy = &s, .options = &options};
    struct fleet_errors warnings = {0}, errors = {0};

    strategy_init(&s);
    strategy_options_init(&options);
    context_apply(json, "spec.autoParallel", &job, &s, &options, &errors);
    fleet_errors_release(&errors);
    context_warn(json, "spec.autoParallel", &outcome, &warnings);
    if (!wanted)
        assert_int_equal(warnings.count, 0);
    for (size_t i = 0; wanted && i < 1; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
        assert_int_equal(warnings.count, 1);
        fleet_strbuf_appendf(&text, "%s: %s", warnings.items[0].path, warnings.items[0].message);
        assert_string_equal(text.text, wanted);
    }
    fleet_errors_release(&warnings);
}

static void expect_key(const char *context, const char *setting, const char *key)
{
    FLEET_AUTO_JSON cJSON *json = parse(context);
    const char *found = context_key_of(json, setting);

    if (!key ? found != NULL : !found || strcmp(found, key) != 0)
        fail_msg("%s: %s is set by %s", context, setting, found ? found : "nothing");
}

/* A warning names what the user wrote. */
static void test_context_strategy__names_the_key_that_set_a_setting(void **state)
{
    (void)state;
    expect_key("{" DATA "comm_fusion: {allreduce: {mode: size, config: 16}}}",
               "fuse_grad_size_in_MB", "comm_fusion.allreduce");
    expect_key("{" DATA "comm_fusion: {openstate: false}}", "fuse_all_reduce_ops",
               "comm_fusion.openstate");
    expect_key("{" DATA "enable_parallel_optimizer: true}", "sharding",
               "enable_parallel_optimizer");
    expect_key("{" DATA "gradients_mean: true}", "gradient_scale_configs.scale_strategy",
               "gradients_mean");
    expect_key("{" DATA "device_num: 2}", "gradient_scale_configs.scale_strategy", "");
    expect_key("{" DATA "gradients_mean: true}", "fuse_grad_size_in_MB", NULL);
    expect_key("{" DATA "gradients_mean: true}", "fuse_grad_size_in_num", NULL);
    expect_key("{" GRAPH "pipeline_stages: 2}", "hybrid_configs.pp_degree", "pipeline_stages");
    expect_key("{" DATA "pipeline_stages: 2}", "hybrid_configs.pp_degree", NULL);
    expect_key("{parallel_mode: stand_alone, gradients_mean: true}",
               "gradient_scale_configs.scale_strategy", NULL);
    assert_null(context_key_of(NULL, "sharding"));
}

static void test_context_strategy__says_what_is_not_expected(void **state)
{
    (void)state;
    expect_warning("{}", 4, NULL);
    expect_warning("{" DATA "gradients_mean: true}", 4, NULL);
    expect_warning("{" DATA "}", 1, NULL);
    expect_warning("{" DATA "}", 4,
                   "spec.autoParallel: gradients_mean is false where it is not given: the "
                   "gradients of 4 ranks are added, not averaged");
    expect_warning("{parallel_mode: auto_parallel}", 4,
                   "spec.autoParallel: gradients_mean is false where it is not given: the "
                   "gradients of 4 replicas are added, not averaged");
    expect_warning("{" DATA "gradients_mean: true, parameter_broadcast: true}", 4,
                   "spec.autoParallel.parameter_broadcast: has no effect: all workers begin with "
                   "the same values, from spec.training.seed");
    expect_warning("{" DATA "gradients_mean: true, enable_parallel_optimizer: true, "
                   "parallel_optimizer_config: {optimizer_weight_shard_size: 3}}",
                   4,
                   "spec.autoParallel.parallel_optimizer_config.optimizer_weight_shard_size: "
                   "divides nothing: 3 does not divide the 4 ranks, and parameters stay whole");
    expect_warning("{" DATA "gradients_mean: true, enable_parallel_optimizer: true, "
                   "parallel_optimizer_config: {parallel_optimizer_threshold: 3}}",
                   4,
                   "spec.autoParallel.parallel_optimizer_config.parallel_optimizer_threshold: has "
                   "no effect in data_parallel: whole parameters are given to ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_strategy__contradicts_what_is_given_with_both_names),
        cmocka_unit_test(test_context_strategy__sets_what_a_key_means),
        cmocka_unit_test(test_context_strategy__divides_a_graph),
        cmocka_unit_test(test_context_strategy__agrees_or_contradicts),
        cmocka_unit_test(test_context_strategy__passes_over_what_it_cannot_read),
        cmocka_unit_test(test_context_strategy__names_the_key_that_set_a_setting),
        cmocka_unit_test(test_context_strategy__says_what_is_not_expected),
    };
    return cmocka_run_group_tests_name("context_strategy", tests, NULL, NULL);
}
