/* SPDX-License-Identifier: Apache-2.0 */

/*
 * spec.autoParallel against what MindSpore's own setter accepts and refuses, row by row, and what
 * is refused here that MindSpore finds out later.
 */
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "tests/golden/golden.h"
#include "tests/support/python_arguments.h"

/* Rows on which we decide otherwise, and why. */
static const struct {
    const char *call, *why;
    bool accepted; /* by us */
} otherwise[] = {
    {"device_num=4097", "the documented bound is checked", false},
    {"device_num=True", "a bool is no number", false},
    {"global_rank=True", "a bool is no number", false},
    {"search_mode=\"dynamic_programming\", auto_parallel_search_mode=\"recursive_programming\"",
     "they differ", false},
    {"dataset_strategy=[[1, 8]]", "JSON has lists for tuples", true},
    {"dataset_strategy=((1, 2.0),)", "2.0 is the number 2 in JSON", true},
    {"dataset_strategy=((1, -2),)", "cuts are positive", false},
    {"dataset_strategy=((1, True),)", "a bool is no number", false},
    {"all_reduce_fusion_config=(1, 2)", "JSON has lists for tuples", true},
    {"device_num=8, enable_parallel_optimizer=True, "
     "parallel_optimizer_config={\"optimizer_weight_shard_size\": 16}",
     "more than there are devices", false},
    {"device_num=8, pipeline_stages=3", "stages must divide the devices", false},
    {"comm_fusion={\"allreduce\": {\"mode\": \"size\", \"config\": 0}}", "it must be above 0",
     false},
    {"device_num=2, pipeline_stages=4", "stages must divide the devices", false},
    {"pipeline_config={\"pipeline_interleave\": True, \"pipeline_scheduler\": \"seqvpp\"}", "newer",
     false},
    {"pipeline_config={\"pipeline_interleave\": True, \"pipeline_scheduler\": \"seqsmartvpp\"}",
     "newer", false},
};

/* Keys that MindSpore accepts and does not document: refused as unknown. */
static const char *const undocumented[] = {
    "sharding_propagation",
    "optimizer_weight_shard_size=",
    "optimizer_weight_shard_aggregated_save",
    "pipeline_segments",
    "auto_pipeline",
    "grad_accumulation_step",
    "communi_parallel_mode",
    "dump_local_norm",
};

/* True if we decide in our own way: then *accepted says how. */
static bool is_otherwise(const char *call, bool *accepted)
{
    for (size_t i = 0; i < FLEET_COUNT(otherwise); i++)
        if (strcmp(call, otherwise[i].call) == 0) {
            *accepted = otherwise[i].accepted;
            return true;
        }
    for (size_t i = 0; i < FLEET_COUNT(undocumented); i++)
        if (strncmp(call, undocumented[i], strlen(undocumented[i])) == 0) {
            *accepted = false;
            return true;
        }
    return false;
}

static cJSON *arguments_json(const char *call)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;
    cJSON *json = NULL;

    python_arguments_yaml(call, &text);
    if (fleet_yaml_to_json(text.text, text.length, &json, &err) < 0)
        fail_msg("%s: %s", text.text, err.text);
    return json;
}

static void test_context__decides_as_recorded(void **state)
{
    cJSON *root = golden_json("mindspore/assignments.json");
    const cJSON *row;
    int rows = 0, others = 0;

    (void)state;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "rows"))
    {
        const cJSON *calls = cJSON_GetObjectItem(row, "calls");
        const char *call = cJSON_GetArrayItem(calls, 0)->valuestring;
        bool accepted = strcmp(cJSON_GetObjectItem(row, "result")->valuestring, "accepted") == 0,
             ours;
        struct fleet_errors errors = {0};
        FLEET_AUTO_JSON cJSON *json = NULL;

        if (cJSON_GetArraySize(calls) != 1 || strstr(call, "ms.") || call[0] == '(')
            continue; /* several calls, expressions: a resource has one object of plain values */
        json = arguments_json(call);
        ours = context_check(json, "", &errors, NULL) == 0;
        others += is_otherwise(call, &accepted);
        if (ours != accepted)
            fail_msg("%s: expected %s, got %s %s %s", call, accepted ? "accepted" : "refused",
                     ours ? "accepted" : "refused", errors.count ? errors.items[0].path : "",
                     errors.count ? errors.items[0].message : "");
        fleet_errors_release(&errors);
        rows++;
    }
    assert_true(rows > 120);
    assert_true(others >= 15);
    cJSON_Delete(root);
}

static void expect(const char *json_text, const char *wanted)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(json_text);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0}, warnings = {0};

    assert_non_null(json);
    (void)context_check(json, "spec.autoParallel", &errors, &warnings);
    fleet_errors_print(&errors, &text);
    fleet_errors_print(&warnings, &text);
    if (strcmp(fleet_strbuf_text(&text), wanted) != 0)
        fail_msg("%s\n  expected: %s\n  actual:   %s", json_text, wanted, fleet_strbuf_text(&text));
    fleet_errors_release(&errors);
    fleet_errors_release(&warnings);
}

static void test_context__says_everything_that_is_wrong(void **state)
{
    (void)state;
    expect(
        "{\"devicenum\": 8, \"parallel_mode\": \"auto-parallel\", \"gradients_mean\": 1}",
        "spec.autoParallel.devicenum: unknown key; did you mean \"device_num\"?\n"
        "spec.autoParallel.parallel_mode: must be one of stand_alone, data_parallel, "
        "hybrid_parallel, semi_auto_parallel, auto_parallel, not \"auto-parallel\"; did you mean "
        "\"auto_parallel\"?\n"
        "spec.autoParallel.gradients_mean: must be true or false, not 1\n");
    expect("{\"parallel_mode\": \"auto_parallel\", \"device_num\": 8, \"global_rank\": 8, "
           "\"pipeline_stages\": 3}",
           "spec.autoParallel.global_rank: must be less than device_num\n"
           "spec.autoParallel.pipeline_stages: must divide device_num\n");
    expect("{\"parallel_mode\": \"semi_auto_parallel\", \"pipeline_config\": "
           "{\"pipeline_scheduler\": \"gpipe\", \"pipeline_interleave\": false}}",
           "spec.autoParallel.pipeline_config: gpipe needs pipeline_interleave: true\n");
    expect("{\"parallel_mode\": \"semi_auto_parallel\", \"comm_fusion\": {\"allgather\": "
           "{\"mode\": \"size\"}}}",
           "spec.autoParallel.comm_fusion.allgather.config: required\n");
    /* MindSpore takes any config beside auto and uses 64 MB: we say so instead. */
    expect("{\"parallel_mode\": \"semi_auto_parallel\", \"comm_fusion\": {\"allreduce\": "
           "{\"mode\": \"auto\", \"config\": 32}}}",
           "spec.autoParallel.comm_fusion.allreduce.config: must be null with mode auto (which is "
           "always 64 MB; mode size takes a number), not 32\n");
}

static void test_context__names_keys_without_effect(void **state)
{
    (void)state;
    expect("{\"parallel_mode\": \"data_parallel\", \"search_mode\": \"dynamic_programming\", "
           "\"gradients_mean\": true}",
           "spec.autoParallel.search_mode: has no effect with parallel_mode data_parallel\n");
    expect("{\"gradients_mean\": true}",
           "spec.autoParallel.gradients_mean: has no effect with parallel_mode stand_alone\n");
    expect("{}", "");
}

/* Switches beside a key, kinds of fusion, sizes that divide nothing. */
static void test_context__names_keys_that_a_switch_turns_off(void **state)
{
    (void)state;
    expect("{\"parallel_mode\": \"data_parallel\", \"parallel_optimizer_config\": {}}",
           "spec.autoParallel.parallel_optimizer_config: has no effect without "
           "enable_parallel_optimizer: true\n");
    expect(
        "{\"parallel_mode\": \"auto_parallel\", \"enable_parallel_optimizer\": true, "
        "\"parallel_optimizer_config\": {\"optimizer_weight_shard_size\": 1}, "
        "\"all_reduce_fusion_config\": [3]}",
        "spec.autoParallel.parallel_optimizer_config.optimizer_weight_shard_size: has no effect: "
        "a size of at least 2 divides a group, -1 takes all of it\n"
        "spec.autoParallel.all_reduce_fusion_config: has no effect: enable_parallel_optimizer "
        "ignores fusion by index\n");
    expect("{\"parallel_mode\": \"auto_parallel\", \"enable_parallel_optimizer\": true, "
           "\"parallel_optimizer_config\": {\"optimizer_weight_shard_size\": -1}}",
           "");
    expect("{\"parallel_mode\": \"hybrid_parallel\", \"comm_fusion\": {\"allgather\": {\"mode\": "
           "\"size\", \"config\": 16}, \"allreduce\": {\"mode\": \"auto\", \"config\": null}}}",
           "spec.autoParallel.comm_fusion.allgather: has no effect in data_parallel and "
           "hybrid_parallel: only allreduce is fused\n");
    expect("{\"parallel_mode\": \"auto_parallel\", \"comm_fusion\": {\"openstate\": false, "
           "\"reducescatter\": {\"mode\": \"size\", \"config\": 16}}}",
           "spec.autoParallel.comm_fusion.reducescatter: has no effect with openstate: false\n");
    expect("{\"parallel_mode\": \"auto_parallel\", \"pipeline_result_broadcast\": true}",
           "spec.autoParallel.pipeline_result_broadcast: has no effect without pipeline_stages "
           "above 1\n");
}

static void test_context__checks_how_the_data_is_divided(void **state)
{
    (void)state;
    expect("{\"parallel_mode\": \"auto_parallel\", \"device_num\": 8, \"pipeline_stages\": 2, "
           "\"dataset_strategy\": [[4, 1, 1], [4], []]}",
           "");
    expect("{\"parallel_mode\": \"auto_parallel\", \"device_num\": 8, \"pipeline_stages\": 2, "
           "\"dataset_strategy\": [[8, 1], [2, 2]]}",
           "spec.autoParallel.dataset_strategy[0]: 8 parts do not divide the 4 devices of a "
           "pipeline stage\n"
           "spec.autoParallel.dataset_strategy[1]: one dimension may be divided, not several\n");
    expect("{\"parallel_mode\": \"auto_parallel\", \"dataset_strategy\": [[2, 1], [4]]}",
           "spec.autoParallel.dataset_strategy[1]: is divided more than the input with most "
           "dimensions, which must be divided most\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context__decides_as_recorded),
        cmocka_unit_test(test_context__says_everything_that_is_wrong),
        cmocka_unit_test(test_context__names_keys_without_effect),
        cmocka_unit_test(test_context__names_keys_that_a_switch_turns_off),
        cmocka_unit_test(test_context__checks_how_the_data_is_divided),
    };
    return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
