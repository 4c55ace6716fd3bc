/* SPDX-License-Identifier: Apache-2.0 */

/* Keys of a context whose values have passed one by one, and must fit together. */
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_internal.h"
#include "libfleet/autoparallel/dataset.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/value_path.h"

struct look {
    struct fleet_strbuf path; /* of the value being looked at */
    struct fleet_errors *errors;
};

static int64_t number_at(const cJSON *json, const char *path, int64_t fallback)
{
    (void)fleet_json_opt_int(json, path, &fallback, NULL);
    return fallback;
}

static void add(struct look *c, const char *key, const char *message)
{
    size_t length = fleet_value_path_enter(&c->path, key);

    fleet_errors_add(c->errors, c->path.text, "%s", message);
    fleet_value_path_leave(&c->path, length);
}

/* Parts of the data, which are divided over the devices of a stage. */
static void check_data(struct look *c, const cJSON *dataset, int64_t devices)
{
    size_t length = fleet_value_path_enter(&c->path, "dataset_strategy");

    dataset_check(dataset, devices, c->path.text, c->errors);
    fleet_value_path_leave(&c->path, length);
}

/* The old key of a file, and the new one. */
static void check_files(struct look *c, const cJSON *json)
{
    static const char *const names[][2] = {
        {"strategy_ckpt_load_file", "strategy_ckpt_config.load_file"},
        {"strategy_ckpt_save_file", "strategy_ckpt_config.save_file"},
    };

    for (size_t i = 0; i < FLEET_COUNT(names); i++) {
        const char *old = cJSON_GetStringValue(fleet_json_at(json, names[i][0]));
        const char *new = cJSON_GetStringValue(fleet_json_at(json, names[i][1]));

        if (old && new &&*old &&*new &&strcmp(old, new) != 0)
            add(c, names[i][1], "names another file than the old key; give one of the two");
    }
}

/* Keys that MindSpore does not have. */
static void check_own(struct look *c, const cJSON *json)
{
    bool is_searched = cJSON_GetObjectItemCaseSensitive(json, "search") != NULL;

    if (is_searched && !context_is_full(json))
        add(c, "search", "full needs parallel_mode: auto_parallel");
    if (!is_searched && cJSON_GetObjectItemCaseSensitive(json, "links"))
        add(c, "links", "is read by search: full alone; give that, or leave it out");
}

void context_together(const cJSON *json, const char *path, struct fleet_errors *errors)
{
    struct look look = {.errors = errors}, *c = &look;
    const cJSON *search = cJSON_GetObjectItemCaseSensitive(json, "search_mode");
    const cJSON *old_search = cJSON_GetObjectItemCaseSensitive(json, "auto_parallel_search_mode");
    const cJSON *dataset = cJSON_GetObjectItemCaseSensitive(json, "dataset_strategy");
    int64_t devices = number_at(json, "device_num", 1);
    int64_t stages = number_at(json, "pipeline_stages", 1);
    int64_t shard = number_at(json, "parallel_optimizer_config.optimizer_weight_shard_size", -1);
    bool has_devices = cJSON_GetObjectItemCaseSensitive(json, "device_num") != NULL;

    fleet_strbuf_append(&look.path, path);
    if (has_devices && number_at(json, "global_rank", 0) >= devices)
        add(c, "global_rank", "must be less than device_num");
    if (has_devices && devices % stages != 0)
        add(c, "pipeline_stages", "must divide device_num");
    else if (has_devices && shard > devices / stages)
        add(c, "parallel_optimizer_config.optimizer_weight_shard_size",
            "must be at most the devices of a pipeline stage");
    check_files(c, json);
    check_own(c, json);
    check_data(c, dataset, has_devices && devices % stages == 0 ? devices / stages : 0);
    if (search && old_search && strcmp(search->valuestring, old_search->valuestring) != 0)
        add(c, "auto_parallel_search_mode",
            "says something else than search_mode; give one of the "
            "two");
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "full_batch")) && dataset &&
        (!cJSON_IsString(dataset) || strcmp(dataset->valuestring, "full_batch") != 0))
        add(c, "dataset_strategy",
            "says something else than full_batch: true; give one of the two");
    fleet_strbuf_release(&look.path);
}
