/* SPDX-License-Identifier: Apache-2.0 */

/*
 * mindspore/assignments.json: keyword arguments of set_auto_parallel_context, accepted or not.
 *
 * A resource has one object of plain values, so several calls in a row and Python's expressions are
 * left out. Ours differs by rule: a bool is no number, the
 * documented bounds and what must fit together are checked at once, keys and schedulers newer than
 * r2.3 are refused; JSON has one kind of list and one of number.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"
#include "tests/support/python_arguments.h"

#define DEVICES_MAX 4096

static cJSON *arguments_json(const char *call)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_error err;
    cJSON *json = NULL;

    python_arguments_yaml(call, &text);
    if (strstr(call, "ms.") && !strstr(call, "ms.ParallelMode."))
        golden_skip("a Python expression");
    if (fleet_yaml_to_json(text.text, text.length, &json, &err) < 0 || !cJSON_IsObject(json))
        golden_skip("a Python expression");
    return json;
}

/* ---- where ours may differ ------------------------------------------------------------------- */

static double number_at(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);

    return cJSON_IsNumber(item) ? item->valuedouble : -1;
}

/* A bool, or a number that is not positive, anywhere in a nested list. */
static bool has_odd_cut(const cJSON *list)
{
    const cJSON *item;

    if (cJSON_IsBool(list) || (cJSON_IsNumber(list) && list->valuedouble < 1))
        return true;
    cJSON_ArrayForEach(item, list)
    {
        if (has_odd_cut(item))
            return true;
    }
    return false;
}

/* MindSpore accepts, ours refuses: NULL, or the rule. */
static const char *rule_of_refusal(const cJSON *json, const char *message)
{
    const cJSON *search = cJSON_GetObjectItemCaseSensitive(json, "search_mode");
    const cJSON *cuts = cJSON_GetObjectItemCaseSensitive(json, "dataset_strategy");
    const cJSON *optimizer = cJSON_GetObjectItemCaseSensitive(json, "parallel_optimizer_config");
    double devices = number_at(json, "device_num"), stages = number_at(json, "pipeline_stages");

    if (strstr(message, "unknown key"))
        return "a key that r2.3 does not document";
    if (strstr(message, "newer schedulers"))
        return "a scheduler newer than r2.3";
    if (cJSON_IsBool(cJSON_GetObjectItemCaseSensitive(json, "device_num")) ||
        cJSON_IsBool(cJSON_GetObjectItemCaseSensitive(json, "global_rank")))
        return "a bool is no number";
    if (strstr(message, "megabytes, an integer from 1 to 2147483647"))
        return "the documentation says that the size of a fusion is above 0";
    if (cuts && (strstr(message, "one dimension may be divided") ||
                 strstr(message, "must be divided most") || strstr(message, "parts do not divide")))
        return "the documented limits of dataset_strategy are checked at once";
    if (cuts && has_odd_cut(cuts))
        return "numbers of dataset_strategy are positive";
    if (devices > DEVICES_MAX)
        return "the documented bound of device_num";
    if (search && cJSON_GetObjectItemCaseSensitive(json, "auto_parallel_search_mode"))
        return "two names of one key with two values";
    if (devices > 0 && (stages > 0 || number_at(json, "global_rank") >= devices ||
                        number_at(optimizer, "optimizer_weight_shard_size") > devices))
        return "what must fit together is checked at once";
    return NULL;
}

/* MindSpore refuses, ours accepts: the difference is one that JSON cannot say. */
static bool is_python_alone(const char *call)
{
    return strstr(call, "dataset_strategy=[") || strstr(call, "config=(") || strstr(call, ".0");
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void judge(const char *call, const cJSON *json, bool recorded,
                  const struct fleet_errors *errors)
{
    const char *message = errors->count ? errors->items[0].message : "";
    bool accepted = errors->count == 0;
    const char *rule;

    if (accepted == recorded)
        return;
    if (accepted) {
        if (!is_python_alone(call))
            golden_fail("ours accepts it, MindSpore does not");
        golden_skip("a difference between tuples and lists, or 2 and 2.0, that JSON cannot say");
    }
    rule = rule_of_refusal(json, message);
    if (!rule)
        golden_fail("ours refuses it (%s: %s), MindSpore does not", errors->items[0].path, message);
    golden_skip("decided otherwise: %s", rule);
}

static void check_row(void *context)
{
    const cJSON *row = context, *calls = golden_array(row, "calls");
    const cJSON *call = cJSON_GetArrayItem(calls, 0);
    bool recorded = strcmp(golden_string(row, "result"), "accepted") == 0;
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_errors errors = {0};

    golden_check(cJSON_IsString(call));
    if (cJSON_GetArraySize(calls) != 1 || call->valuestring[0] == '(')
        golden_skip("several calls in a row: a resource has one object");
    json = arguments_json(call->valuestring);
    (void)context_check(json, "", &errors, NULL);
    judge(call->valuestring, json, recorded, &errors);
    fleet_errors_release(&errors);
}

void golden_mindspore_assignments(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;

    cJSON_ArrayForEach(row, golden_array(root, "rows"))
    {
        const cJSON *call = cJSON_GetArrayItem(golden_array(row, "calls"), 0);
        golden_case(check_row, row, "%s", cJSON_IsString(call) ? call->valuestring : "?");
    }
    cJSON_Delete(root);
}
