/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/every_knob.h"

#include <stdio.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/knobs.h"

#define VALUES_MAX 8

struct walk {
    void (*visit)(void *context, const struct every_knob *knob);
    void *context;
};

/* ---- surroundings ---------------------------------------------------------------------------- */

/* What a knob stands beside, by the start of its path. Several rows: each is tried. */
static const struct {
    const char *start, *base;
} surroundings[] = {
    {"recompute_configs.", "{\"recompute\":true}"},
    {"recompute_configs.checkpoint_shape",
     "{\"recompute\":true,\"recompute_configs\":{\"enable_offload\":true}}"},
    {"amp_configs.", "{\"amp\":true}"},
    {"localsgd_configs.k_steps", "{\"localsgd\":true}"},
    {"localsgd_configs.begin_step", "{\"localsgd\":true,\"localsgd_configs\":{\"k_steps\":4}}"},
    {"adaptive_localsgd_configs.init_k_steps", "{\"adaptive_localsgd\":true}"},
    {"adaptive_localsgd_configs.begin_step",
     "{\"adaptive_localsgd\":true,\"adaptive_localsgd_configs\":{\"init_k_steps\":9}}"},
    {"gradient_merge_configs.",
     "{\"gradient_merge\":true,\"gradient_merge_configs\":{\"k_steps\":2}}"},
    {"dgc_configs.", "{\"dgc\":true}"},
    {"pipeline_configs.", "{\"pipeline\":true}"},
    {"lars_configs.", "{\"lars\":true}"},
    {"lamb_configs.", "{\"lamb\":true}"},
    {"sharding_configs.", "{\"sharding\":true}"},
    {"sharding_configs.", "{\"sharding\":true,\"sharding_configs\":{\"sharding_degree\":1,"
                          "\"hybrid_dp\":true}}"},
    {"sharding_configs.", "{\"sharding\":true,\"hybrid_configs\":{\"sharding_degree\":1}}"},
    {"sharding_configs.segment_anchors",
     "{\"sharding\":true,\"sharding_configs\":{\"sharding_segment_strategy\":"
     "\"segment_anchors\"}}"},
    {"hybrid_configs.sharding_degree", "{\"sharding\":true}"},
    {"hybrid_configs.pp_degree", "{\"pipeline\":true}"},
    {"tensor_parallel_configs.", "{\"tensor_parallel\":true}"},
    {"tensor_parallel", "{\"tensor_parallel_configs\":{\"tensor_parallel_degree\":2}}"},
    {"tensor_parallel_configs.sequence_parallel",
     "{\"tensor_parallel\":true,\"tensor_parallel_configs\":{\"tensor_parallel_degree\":2}}"},
    {"tensor_parallel_configs.tensor_init_seed",
     "{\"tensor_parallel\":true,\"tensor_parallel_configs\":{\"tensor_parallel_degree\":2}}"},
    {"gradient_merge", "{\"gradient_merge_configs\":{\"k_steps\":2}}"},
    {"hybrid_configs.mp_configs.", "{\"hybrid_configs\":{\"mp_degree\":2}}"},
    {"hybrid_configs.pp_configs.", "{\"hybrid_configs\":{\"pp_degree\":2}}"},
    {"hybrid_configs.sharding_configs.", "{\"hybrid_configs\":{\"sharding_degree\":2}}"},
    {"qat_configs.", "{\"qat\":true}"},
    {"a_sync_configs.", "{\"a_sync\":true}"},
    {"hierarchical_allreduce_inter_nranks", "{\"use_hierarchical_allreduce\":true}"},
    {"use_hierarchical_allreduce", "{\"hierarchical_allreduce_inter_nranks\":2}"},
    {"fuse_grad_size_in_MB", "{\"fuse_all_reduce_ops\":false}"},
    {"build_strategy.", "{\"build_strategy\":{\"fuse_bn_add_act_ops\":false}}"},
};

static const char *optimizer_for(const char *path)
{
    if (strncmp(path, "lars", 4) == 0 || strncmp(path, "dgc", 3) == 0)
        return "momentum";
    if (strncmp(path, "lamb", 4) == 0)
        return "adam";
    return strstr(path, "localsgd") ? "sgd" : "adamw";
}

/* Names and shapes that mean something to one of the models, beside those that do not. */
static const struct {
    const char *path, *value;
} chosen[] = {
    {"amp_configs.custom_white_list", "[\"layer_norm\"]"},
    {"amp_configs.custom_black_list", "[\"matmul_v2\"]"},
    {"amp_configs.custom_black_varnames", "[\"h.0\"]"},
    {"lars_configs.exclude_from_weight_decay", "[\"weight\"]"},
    {"lamb_configs.exclude_from_weight_decay", "[\"weight\"]"},
    {"recompute_configs.checkpoints", "[\"h.0\",\"h.2\"]"},
    {"recompute_configs.checkpoint_shape", "[2,8,16]"},
};

/* ---- values ---------------------------------------------------------------------------------- */

static cJSON *list_of(cJSON *item)
{
    cJSON *list = cJSON_CreateArray();

    cJSON_AddItemToArray(list, item);
    return list;
}

/* Each word of the range that is not the default; "name" for any text. */
static int texts_for(const struct knob_field *field, cJSON **out)
{
    int count = 0;

    if (field->range.kind != KNOB_ONE_OF) {
        out[count++] = cJSON_CreateString("name");
        return count;
    }
    for (const char *word = field->range.words; word; word = strchr(word, '|')) {
        char text[64];

        word += *word == '|';
        (void)snprintf(text, sizeof(text), "%.*s", (int)strcspn(word, "|"), word);
        if (!field->text || strcmp(text, field->text) != 0)
            out[count++] = cJSON_CreateString(text);
    }
    return count;
}

/* Numbers that the range lets pass, and one that it does not. */
static int numbers_for(const struct knob_field *field, cJSON **out)
{
    const double tried[] = {1, 2, 4, field->number * 2, 0.5, 0, -1};
    int count = 0;

    for (size_t i = 0; i < FLEET_COUNT(tried); i++)
        if (tried[i] != field->number && (field->kind != KNOB_INT || tried[i] != 0.5))
            out[count++] = cJSON_CreateNumber(tried[i]);
    return count;
}

static int values_for(const struct knob_field *field, cJSON **out)
{
    int count = 0;

    switch (field->kind) {
    case KNOB_BOOL:
        out[count++] = cJSON_CreateBool(field->number == 0);
        break;
    case KNOB_INT:
    case KNOB_FLOAT:
        count = numbers_for(field, out);
        break;
    case KNOB_STRING:
    case KNOB_WORD:
        count = texts_for(field, out);
        break;
    case KNOB_STRINGS:
        count = texts_for(field, out);
        for (int i = 0; i < count; i++)
            out[i] = list_of(out[i]);
        break;
    case KNOB_INTS:
        out[count++] = list_of(cJSON_CreateNumber(2));
        break;
    case KNOB_FLOATS:
        out[count++] = list_of(cJSON_CreateNumber(0.5));
        break;
    case KNOB_MODE:
    case KNOB_MESSAGE:
    case KNOB_MESSAGES:
        break;
    }
    fleet_assert(count <= VALUES_MAX);
    return count;
}

/* ---- the walk -------------------------------------------------------------------------------- */

static cJSON *object_below(cJSON *parent, const char *name, bool is_list)
{
    cJSON *child = cJSON_GetObjectItemCaseSensitive(parent, name);

    if (!child)
        child =
            is_list ? cJSON_AddArrayToObject(parent, name) : cJSON_AddObjectToObject(parent, name);
    if (!is_list)
        return child;
    if (cJSON_GetArraySize(child) == 0)
        cJSON_AddItemToArray(child, cJSON_CreateObject());
    return cJSON_GetArrayItem(child, 0);
}

/* Put a copy of `value` at `path` of `strategy`. */
static void put(cJSON *strategy, const char *path, const cJSON *value)
{
    const struct knob_message *message = knobs_root();
    const struct knob_field *field;
    char copy[256], *state = NULL;

    (void)snprintf(copy, sizeof(copy), "%s", path);
    for (char *name = strtok_r(copy, ".", &state); name; name = strtok_r(NULL, ".", &state)) {
        field = knobs_find(message, name, NULL);
        fleet_assert(field);
        if (!field->message) {
            cJSON_DeleteItemFromObjectCaseSensitive(strategy, name);
            (void)cJSON_AddItemToObject(strategy, name, cJSON_Duplicate(value, true));
            return;
        }
        strategy = object_below(strategy, name, field->kind == KNOB_MESSAGES);
        message = field->message();
    }
}

static void visit_beside(const struct walk *walk, const char *path, const char *base_text,
                         const cJSON *value)
{
    cJSON *base = cJSON_Parse(base_text), *strategy = cJSON_Duplicate(base, true);
    struct every_knob knob = {.path = path,
                              .optimizer = optimizer_for(path),
                              .strategy = strategy,
                              .base = base,
                              .is_alone = strcmp(base_text, "{}") == 0};

    put(strategy, path, value);
    if (!cJSON_Compare(strategy, base, true))
        walk->visit(walk->context, &knob);
    cJSON_Delete(strategy);
    cJSON_Delete(base);
}

static void visit_field(const struct walk *walk, const char *path, const struct knob_field *field)
{
    cJSON *values[VALUES_MAX + 1];
    int count = values_for(field, values);

    for (size_t i = 0; i < FLEET_COUNT(chosen); i++)
        if (strcmp(path, chosen[i].path) == 0)
            values[count++] = cJSON_Parse(chosen[i].value);

    for (int i = 0; i < count; i++) {
        visit_beside(walk, path, "{}", values[i]);
        for (size_t j = 0; j < FLEET_COUNT(surroundings); j++)
            if (strncmp(path, surroundings[j].start, strlen(surroundings[j].start)) == 0)
                visit_beside(walk, path, surroundings[j].base, values[i]);
        cJSON_Delete(values[i]);
    }
}

static void visit_message(const struct walk *walk, const char *parent,
                          const struct knob_message *message)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        char path[256];

        (void)snprintf(path, sizeof(path), "%s%s%s", parent, *parent ? "." : "", field->name);
        if (field->message)
            visit_message(walk, path, field->message());
        else
            visit_field(walk, path, field);
    }
}

void every_knob_visit(void (*visit)(void *context, const struct every_knob *knob), void *context)
{
    struct walk walk = {visit, context};

    visit_message(&walk, "", knobs_root());
}
