/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>

#include "libfleet/autoparallel/files/strategy_file_internal.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"

/* ---- reading --------------------------------------------------------------------------------- */

static int read_list(const cJSON *json, size_t max, struct numbers *out, struct fleet_error *err)
{
    const cJSON *item;
    int64_t value;
    int rc;

    if (!cJSON_IsArray(json))
        return fleet_error(err, -EINVAL, "must be a list of integers");
    cJSON_ArrayForEach(item, json)
    {
        if (!cJSON_IsNumber(item) || fleet_json_item_int(item, &value) < 0)
            return fleet_error(err, -EINVAL, "must be a list of integers");
        rc = numbers_add(out, value, max, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Member `key`; without `optional` it must be there. */
static int read_member(const cJSON *json, const char *key, bool optional, size_t max,
                       struct numbers *out, struct fleet_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    int rc;

    if (!item && optional)
        return 0;
    if (!item)
        return fleet_error(err, -EINVAL, "%s: required", key);
    rc = read_list(item, max, out, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", key) : 0;
}

static int read_operator(const cJSON *json, struct strategy_file *file, struct fleet_error *err)
{
    const cJSON *tuples = cJSON_GetObjectItemCaseSensitive(json, "parallel_strategy"), *tuple;
    struct strategy_file_operator *op;
    struct numbers *list;
    int rc = strategy_file_add_operator(file, &op, err);

    if (rc < 0)
        return rc;
    op->name = fleet_dup_text(json->string);
    if (fleet_json_get_int(json, "stage", &op->stage, err) < 0)
        return -EINVAL;
    if (!cJSON_IsArray(tuples))
        return fleet_error(err, -EINVAL, "parallel_strategy: required: must be a list of lists");
    cJSON_ArrayForEach(tuple, tuples)
    {
        rc = strategy_file_add_tuple(op, &list, err);
        if (rc == 0)
            rc = read_list(tuple, STRATEGY_FILE_DIMS_MAX, list, err);
        if (rc < 0)
            return fleet_error_wrap(err, "parallel_strategy[%zu]", op->tuple_count - 1);
    }
    return 0;
}

static int read_layout(const cJSON *json, struct strategy_file *file, struct fleet_error *err)
{
    struct strategy_file_layout *layout;
    int rc = strategy_file_add_layout(file, &layout, err);

    if (rc < 0)
        return rc;
    layout->name = fleet_dup_text(json->string);
    if ((rc = read_member(json, "dev_matrix", false, STRATEGY_FILE_DIMS_MAX, &layout->device_matrix,
                          err)) < 0 ||
        (rc = read_member(json, "tensor_map", false, STRATEGY_FILE_DIMS_MAX, &layout->tensor_map,
                          err)) < 0 ||
        (rc = read_member(json, "tensor_shape", true, STRATEGY_FILE_DIMS_MAX, &layout->shape,
                          err)) < 0 ||
        (rc = read_member(json, "param_split_shape", true, STRATEGY_FILE_PARTS_MAX,
                          &layout->param_split_shape, err)) < 0 ||
        (rc = read_member(json, "indices_offset", true, STRATEGY_FILE_PARTS_MAX,
                          &layout->indices_offset, err)) < 0)
        return rc;
    if (fleet_json_get_int(json, "field", &layout->field, err) < 0 ||
        fleet_json_get_int(json, "opt_weight_shard_step", &layout->opt_weight_shard_step, err) <
            0 ||
        fleet_json_get_int(json, "opt_weight_shard_size", &layout->opt_weight_shard_size, err) < 0)
        return -EINVAL;
    return 0;
}

static int read_items(const cJSON *root, const char *key,
                      int (*read)(const cJSON *json, struct strategy_file *file,
                                  struct fleet_error *err),
                      struct strategy_file *file, struct fleet_error *err)
{
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(root, key), *item;

    if (!items || cJSON_IsNull(items)) /* MindSpore leaves out empty lists */
        return 0;
    if (!cJSON_IsObject(items))
        return fleet_error(err, -EINVAL, "%s: must be an object", key);
    cJSON_ArrayForEach(item, items)
    {
        int rc = cJSON_IsObject(item) ? read(item, file, err)
                                      : fleet_error(err, -EINVAL, "must be an object");
        if (rc < 0)
            return fleet_error_wrap(err, "%s.%.200s", key, item->string);
    }
    return 0;
}

int strategy_file_decode_json(const char *text, size_t size, struct strategy_file *out,
                              struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    int rc = fleet_json_parse(text, size, STRATEGY_FILE_SIZE_MAX, &root, err);

    if (rc < 0)
        return rc;
    if (!cJSON_IsObject(root))
        return fleet_error(err, -EINVAL, "must be an object");
    if (fleet_json_get_int(root, "current_stage", &out->current_stage, err) < 0)
        return -EINVAL;
    rc = read_items(root, "parallel_strategy_item", read_operator, out, err);
    if (rc == 0)
        rc = read_items(root, "parallel_layout_item", read_layout, out, err);
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

static cJSON *new_list(const struct numbers *list)
{
    cJSON *json = fleet_json_new_list();

    for (size_t i = 0; i < list->count; i++)
        fleet_json_add_number(json, (double)list->items[i]);
    return json;
}

static cJSON *new_operator(const struct strategy_file_operator *op)
{
    cJSON *json = fleet_json_new_object(), *tuples;

    fleet_json_set_number(json, "stage", (double)op->stage);
    tuples = fleet_json_set_list(json, "parallel_strategy");
    for (size_t i = 0; i < op->tuple_count; i++)
        fleet_json_add(tuples, new_list(&op->tuples[i]));
    return json;
}

static cJSON *new_layout(const struct strategy_file_layout *layout)
{
    cJSON *json = fleet_json_new_object();

    fleet_json_set(json, "dev_matrix", new_list(&layout->device_matrix));
    fleet_json_set(json, "tensor_map", new_list(&layout->tensor_map));
    if (layout->shape.count > 0)
        fleet_json_set(json, "tensor_shape", new_list(&layout->shape));
    if (layout->param_split_shape.count > 0) {
        fleet_json_set(json, "param_split_shape", new_list(&layout->param_split_shape));
        fleet_json_set(json, "indices_offset", new_list(&layout->indices_offset));
    }
    fleet_json_set_number(json, "field", (double)layout->field);
    fleet_json_set_number(json, "opt_weight_shard_step", (double)layout->opt_weight_shard_step);
    fleet_json_set_number(json, "opt_weight_shard_size", (double)layout->opt_weight_shard_size);
    return json;
}

void strategy_file_encode_json(const struct strategy_file *file, struct fleet_strbuf *out)
{
    FLEET_AUTO_JSON cJSON *root = fleet_json_new_object();
    cJSON *operators, *layouts;

    fleet_json_set_number(root, "current_stage", (double)file->current_stage);
    operators = fleet_json_set_object(root, "parallel_strategy_item");
    for (size_t i = 0; i < file->operator_count; i++)
        fleet_json_set_new(operators, file->operators[i].name, new_operator(&file->operators[i]));
    layouts = fleet_json_set_object(root, "parallel_layout_item");
    for (size_t i = 0; i < file->layout_count; i++)
        fleet_json_set_new(layouts, file->layouts[i].name, new_layout(&file->layouts[i]));
    fleet_json_append(out, root);
    fleet_strbuf_append_char(out, '\n');
}
