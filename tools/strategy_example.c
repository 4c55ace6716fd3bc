/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/strategy_example.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json_build.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/strategy/units.h"

#define PATH_MAX_ 256

/* Examples that chance would not find: what the field needs beside it. */
static const struct {
    const char *path, *strategy;
} chosen[] = {
    {"recompute_configs.enable_offload",
     "{\"recompute\":true,\"recompute_configs\":{\"enable_offload\":true,"
     "\"checkpoint_shape\":[8,1024,768]}}"},
    {"recompute_configs.checkpoint_shape",
     "{\"recompute\":true,\"recompute_configs\":{\"enable_offload\":true,"
     "\"checkpoint_shape\":[8,1024,768]}}"},
    {"recompute_configs.checkpoints",
     "{\"recompute\":true,\"recompute_configs\":{\"checkpoints\":[\"h.3.out\",\"h.7.out\"]}}"},
    {"recompute_configs.refined_ops_patterns",
     "{\"recompute\":true,\"recompute_configs\":{\"refined_ops_patterns\":"
     "[{\"main_ops\":[\"matmul_v2\"],\"num\":-1}]}}"},
    {"amp_configs.custom_white_list",
     "{\"amp\":true,\"amp_configs\":{\"custom_white_list\":[\"softmax\"]}}"},
    {"amp_configs.custom_black_list",
     "{\"amp\":true,\"amp_configs\":{\"custom_black_list\":[\"tanh\"]}}"},
    {"amp_configs.custom_black_varnames",
     "{\"amp\":true,\"amp_configs\":{\"custom_black_varnames\":[\"logits\"]}}"},
    {"lars_configs.exclude_from_weight_decay",
     "{\"lars\":true,\"lars_configs\":{\"exclude_from_weight_decay\":[\"batch_norm\",\".b\"]}}"},
    {"lamb_configs.exclude_from_weight_decay",
     "{\"lamb\":true,\"lamb_configs\":{\"exclude_from_weight_decay\":[\".bias\"]}}"},
    {"sharding_configs.sharding_segment_strategy",
     "{\"sharding\":true,\"sharding_configs\":{\"sharding_segment_strategy\":\"segment_anchors\","
     "\"segment_anchors\":[\"h.5.out\"]}}"},
    {"sharding_configs.segment_anchors",
     "{\"sharding\":true,\"sharding_configs\":{\"sharding_segment_strategy\":\"segment_anchors\","
     "\"segment_anchors\":[\"h.5.out\"]}}"},
    {"sharding_configs.sharding_group_size",
     "{\"sharding\":true,\"sharding_configs\":{\"hybrid_dp\":true,\"sharding_group_size\":4}}"},
    {"sharding_configs.hybrid_dp",
     "{\"sharding\":true,\"sharding_configs\":{\"hybrid_dp\":true,\"sharding_group_size\":4}}"},
    {"sharding_configs.dp_degree",
     "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":4,\"dp_degree\":2}}"},
    {"sharding_configs._dp_as_optimizer_sharding",
     "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":1,\"dp_degree\":8,"
     "\"_dp_as_optimizer_sharding\":true}}"},
    {"sharding_configs.optimize_cast",
     "{\"sharding\":true,\"amp\":true,\"sharding_configs\":{\"optimize_cast\":true}}"},
    {"sharding_configs.mp_degree",
     "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":4,\"mp_degree\":2}}"},
    {"sharding_configs.pp_degree",
     "{\"sharding\":true,\"pipeline\":true,\"sharding_configs\":{\"sharding_degree\":4,"
     "\"pp_degree\":2}}"},
    {"sharding_configs.pp_allreduce_in_optimize",
     "{\"sharding\":true,\"pipeline\":true,\"sharding_configs\":{\"sharding_degree\":4,"
     "\"pp_degree\":2,\"pp_allreduce_in_optimize\":true}}"},
    {"sharding_configs", "{\"sharding\":true,\"sharding_configs\":{\"stage\":2}}"},
    {"sharding_configs.stage", "{\"sharding\":true,\"sharding_configs\":{\"stage\":2}}"},
    {"tensor_parallel_configs.sequence_parallel",
     "{\"tensor_parallel\":true,\"tensor_parallel_configs\":{\"tensor_parallel_degree\":2,"
     "\"sequence_parallel\":true}}"},
    {"hybrid_configs", "{\"hybrid_configs\":{\"mp_degree\":2,\"pp_degree\":2}}"},
    {"hybrid_configs.dp_degree", "{\"hybrid_configs\":{\"dp_degree\":4,\"mp_degree\":2}}"},
    {"hybrid_configs.sep_degree", "{\"hybrid_configs\":{\"sep_degree\":1}}"},
    {"hybrid_configs.order", "{\"hybrid_configs\":{\"mp_degree\":2,"
                             "\"order\":[\"dp\",\"pp\",\"sharding\",\"sep\",\"mp\"]}}"},
    {"dgc_configs.sparsity",
     "{\"dgc\":true,\"dgc_configs\":{\"rampup_step\":100,\"sparsity\":[0.75,0.9375,0.999]}}"},
    {"hierarchical_allreduce_inter_nranks",
     "{\"use_hierarchical_allreduce\":true,\"hierarchical_allreduce_inter_nranks\":4}"},
    {"use_hierarchical_allreduce",
     "{\"use_hierarchical_allreduce\":true,\"hierarchical_allreduce_inter_nranks\":4}"},
    {"a_sync_configs", "{\"a_sync\":true,\"a_sync_configs\":{\"k_steps\":100}}"},
};

/* ---- a value of its own ---------------------------------------------------------------------- */

static double number_for(const struct knob_field *field)
{
    const struct knob_range *range = &field->range;
    double wanted = field->number != 0 ? 2 * field->number : field->kind == KNOB_INT ? 2 : 0.01;

    if (range->kind == KNOB_BETWEEN)
        return (range->low + range->high) / 2;
    if (range->kind == KNOB_FROM_TO)
        return field->number < range->high ? field->number + 1 : range->low;
    if (range->kind == KNOB_DEGREE_OR_REST)
        return 2;
    if (range->kind == KNOB_AT_LEAST && wanted < range->low)
        return range->low;
    return wanted;
}

/* The second word of the range, else the only one; "name" for any text. */
static cJSON *text_for(const struct knob_field *field)
{
    const char *words = field->range.words, *bar = words ? strchr(words, '|') : NULL;
    char word[64];

    if (!words)
        return fleet_json_new_string("name");
    if (bar)
        words = bar + 1;
    (void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(words, "|"), words);
    return fleet_json_new_string(word);
}

static cJSON *value_for(const struct knob_field *field)
{
    cJSON *list = fleet_json_new_list(), *value = list;

    if (field->kind == KNOB_STRINGS) {
        fleet_json_add(list, text_for(field));
    } else if (field->kind == KNOB_INTS) {
        fleet_json_add_number(list, 2);
    } else if (field->kind == KNOB_FLOATS) {
        fleet_json_add_number(list, 0.5);
    } else if (field->kind == KNOB_MESSAGES) {
        fleet_json_add_object(list);
    } else {
        cJSON_Delete(list);
        value = field->kind == KNOB_BOOL ? fleet_json_new_bool(field->number == 0)
                : field->kind == KNOB_STRING || field->kind == KNOB_WORD
                    ? text_for(field)
                    : fleet_json_new_number(number_for(field));
    }
    return value;
}

/* ---- the example ----------------------------------------------------------------------------- */

/* The bool that switches "amp_configs" on: "amp". */
static void add_switch(cJSON *strategy, const char *top)
{
    char name[PATH_MAX_];
    size_t length = strlen(top);
    const struct knob_field *field;

    if (length <= 8 || strcmp(top + length - 8, "_configs") != 0)
        return;
    (void)snprintf(name, sizeof(name), "%.*s", (int)(length - 8), top);
    field = knobs_find(knobs_root(), name, NULL);
    if (field && field->kind == KNOB_BOOL)
        fleet_json_set_bool(strategy, name, true);
}

static cJSON *object_at(cJSON *parent, const char *name, const struct knob_field *field)
{
    cJSON *object, *list;

    if (field->kind != KNOB_MESSAGES)
        return fleet_json_set_object(parent, name);
    list = fleet_json_set_list(parent, name);
    object = fleet_json_add_object(list);
    return object;
}

cJSON *strategy_example(const char *path, const struct knob_field *field)
{
    const struct knob_message *message = knobs_root();
    cJSON *strategy, *at;
    char copy[PATH_MAX_], *state = NULL, *name;

    if (field->kind == KNOB_MODE)
        return NULL;
    for (size_t i = 0; i < FLEET_COUNT(chosen); i++)
        if (strcmp(path, chosen[i].path) == 0)
            return cJSON_Parse(chosen[i].strategy);
    strategy = at = fleet_json_new_object();
    (void)snprintf(copy, sizeof(copy), "%s", path);
    name = strtok_r(copy, ".", &state);
    add_switch(strategy, name);
    for (;;) {
        const struct knob_field *step = knobs_find(message, name, NULL);

        fleet_assert(step != NULL);
        if (!step->message) {
            fleet_json_set(at, step->name, value_for(step));
            break;
        }
        at = object_at(at, step->name, step);
        message = step->message();
        name = strtok_r(NULL, ".", &state);
        if (!name) /* a whole message: its first field stands for it */
            name = (char *)(uintptr_t)message->fields[0].name;
    }
    return strategy;
}

static int select_example(const cJSON *json, enum strategy_policy policy,
                          struct select_result *result, struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy s = {0};
    struct select_options options = {.policy = policy, .world_size = STRATEGY_EXAMPLE_WORLD};

    if (strategy_json_decode(json, "strategy", &s, errors) < 0)
        return -1;
    return strategy_select(&s, &options, "strategy", result, errors);
}

bool strategy_example_is_good(const cJSON *strategy, struct fleet_strbuf *why)
{
    SELECT_AUTO_RESULT struct select_result result = {0};
    struct fleet_errors errors = {0};
    bool is_good = select_example(strategy, STRATEGY_FULL, &result, &errors) == 0;

    if (!is_good)
        fleet_strbuf_appendf(why, "%s: %s", errors.items[0].path, errors.items[0].message);
    fleet_errors_release(&errors);
    return is_good;
}

cJSON *strategy_example_plan(const cJSON *json)
{
    STRATEGY_AUTO struct strategy s = {0};
    struct plan_request request =
        plan_request_of(NULL, &s, STRATEGY_FULL, NULL, STRATEGY_EXAMPLE_WORLD);
    struct fleet_errors errors = {0};
    struct plan plan;
    cJSON *status;

    fleet_assert(strategy_json_decode(json, "strategy", &s, &errors) == 0);
    request.own_trainer = true;
    fleet_assert(plan_build(&request, &plan, &errors) == 0);
    status = plan_encode(&plan);
    plan_release(&plan);
    return status;
}

/* ---- neighbours ------------------------------------------------------------------------------ */

/* The reason why a unit cannot stand beside the example, or "". */
static void refusal_beside(const cJSON *strategy, enum unit unit, struct fleet_strbuf *out)
{
    SELECT_AUTO_RESULT struct select_result result = {0};
    FLEET_AUTO_JSON cJSON *both = fleet_json_copy(strategy);
    struct fleet_errors errors = {0};

    if (!cJSON_GetObjectItemCaseSensitive(both, unit_name(unit)))
        fleet_json_set_bool(both, unit_name(unit), true);
    if (select_example(both, STRATEGY_FULL, &result, &errors) < 0)
        fleet_strbuf_append(out, errors.items[0].message);
    fleet_errors_release(&errors);
}

void strategy_example_neighbours(const cJSON *strategy, struct fleet_strbuf *out)
{
    bool any = false;

    for (int unit = 0; unit < UNITS; unit++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf why = {0};

        refusal_beside(strategy, (enum unit)unit, &why);
        if (why.length == 0)
            continue;
        if (!any)
            fleet_strbuf_append(out, "Under `Full`, the example is refused together with\n\n");
        fleet_strbuf_appendf(out, "- [%s](%s.md): %s\n", unit_name((enum unit)unit),
                             unit_name((enum unit)unit), why.text);
        any = true;
    }
    fleet_strbuf_append(out, any ? "\nIt can be combined with every other setting.\n"
                                 : "It can be combined with every setting, under `Full` and under "
                                   "`Paddle`.\n");
}

/* ---- papers ---------------------------------------------------------------------------------- */

const char *strategy_example_paper(const char *path)
{
    static const struct {
        const char *start, *paper;
    } papers[] = {
        {"amp", "Micikevicius and others, Mixed Precision Training, arXiv 1710.03740."},
        {"recompute",
         "Chen and others, Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174."},
        {"localsgd", "Lin and others, Don't Use Large Mini-Batches, Use Local SGD, arXiv "
                     "1808.07217."},
        {"adaptive_localsgd", "Wang and Joshi, Adaptive Communication Strategies to Achieve the "
                              "Best Error-Runtime Trade-off in Local-Update SGD, arXiv "
                              "1810.08313."},
        {"dgc", "Lin and others, Deep Gradient Compression, arXiv 1712.01887."},
        {"lars", "You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, arXiv "
                 "1708.03888."},
        {"lamb", "You and others, Large Batch Optimization for Deep Learning: Training BERT in 76 "
                 "minutes, arXiv 1904.00962."},
        {"sharding", "Rajbhandari and others, ZeRO: Memory Optimizations Toward Training Trillion "
                     "Parameter Models, arXiv 1910.02054."},
        {"pipeline", "Narayanan and others, Efficient Large-Scale Language Model Training on GPU "
                     "Clusters Using Megatron-LM, arXiv 2104.04473."},
        {"tensor_parallel", "Shoeybi and others, Megatron-LM: Training Multi-Billion Parameter "
                            "Language Models Using Model Parallelism, arXiv 1909.08053."},
        {"hybrid_configs", "Narayanan and others, Efficient Large-Scale Language Model Training on "
                           "GPU Clusters Using Megatron-LM, arXiv 2104.04473."},
        {"qat", "Jacob and others, Quantization and Training of Neural Networks for Efficient "
                "Integer-Arithmetic-Only Inference, arXiv 1712.05877."},
        {"asp", "Mishra and others, Accelerating Sparse Deep Neural Networks, arXiv 2104.08378."},
        {"a_sync", "Recht and others, Hogwild: A Lock-Free Approach to Parallelizing Stochastic "
                   "Gradient Descent, arXiv 1106.5730."},
        {"gradient_merge", "None: it is the sum of gradients over several batches. Goyal and "
                           "others, arXiv 1706.02677, say what large batches need."},
    };
    const char *best = NULL;
    size_t length = 0;

    for (size_t i = 0; i < FLEET_COUNT(papers); i++) {
        size_t n = strlen(papers[i].start);
        if (n > length && strncmp(path, papers[i].start, n) == 0 &&
            (path[n] == '\0' || path[n] == '.' || path[n] == '_')) {
            best = papers[i].paper;
            length = n;
        }
    }
    return best ? best : "None: a setting of the executor or of the exchange, not an algorithm.";
}
