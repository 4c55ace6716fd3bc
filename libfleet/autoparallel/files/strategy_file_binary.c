/* SPDX-License-Identifier: Apache-2.0 */

/* Messages of mindspore/train/node_strategy.proto; the numbers of fields are those of that file. */
#include <errno.h>
#include <string.h>

#include "libfleet/autoparallel/files/strategy_file_internal.h"
#include "libfleet/autoparallel/files/wire.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

enum {
    MAP_CURRENT_STAGE = 1,
    MAP_OPERATOR = 2,
    MAP_LAYOUT = 3
};
enum {
    ITEM_NAME = 1,
    ITEM_VALUE = 2
};
enum {
    STRATEGIES_STAGE = 1,
    STRATEGIES_TUPLE = 2
};
enum {
    LAYOUTS_MATRIX = 1,
    LAYOUTS_MAP = 2,
    LAYOUTS_SPLIT_SHAPE = 3,
    LAYOUTS_OFFSET = 4,
    LAYOUTS_FIELD = 5,
    LAYOUTS_SHARD_STEP = 6,
    LAYOUTS_SHARD_SIZE = 7,
};

/* ---- reading --------------------------------------------------------------------------------- */

static int read_strategies(const struct fleet_protobuf_field *message,
                           struct strategy_file_operator *op, struct fleet_error *err)
{
    struct fleet_protobuf_reader reader = fleet_protobuf_reader_of(message);
    struct numbers *list;
    struct fleet_protobuf_field field;
    bool has_stage = false;
    int rc;

    if (wire_need(message, FLEET_PROTOBUF_BYTES, err) < 0)
        return -EINVAL;
    while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0) {
        if (field.number == STRATEGIES_STAGE)
            rc = wire_read_integer(&field, &op->stage, &has_stage, err);
        else if (field.number == STRATEGIES_TUPLE &&
                 (rc = strategy_file_add_tuple(op, &list, err)) == 0)
            rc = wire_read_list(&field, STRATEGY_FILE_DIMS_MAX, list, err);
        if (rc < 0)
            return rc;
    }
    if (rc == 0 && !has_stage)
        return fleet_error(err, -EINVAL, "stage: required");
    return rc;
}

static int read_layouts(const struct fleet_protobuf_field *message,
                        struct strategy_file_layout *layout, struct fleet_error *err)
{
    struct fleet_protobuf_reader reader = fleet_protobuf_reader_of(message);
    struct numbers *const lists[] = {&layout->device_matrix, &layout->tensor_map,
                                     &layout->param_split_shape, &layout->indices_offset};
    int64_t *const numbers[] = {&layout->field, &layout->opt_weight_shard_step,
                                &layout->opt_weight_shard_size};
    bool seen[3] = {false, false, false};
    struct fleet_protobuf_field field;
    int rc;

    if (wire_need(message, FLEET_PROTOBUF_BYTES, err) < 0)
        return -EINVAL;
    while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0) {
        uint32_t n = field.number;
        if (n >= LAYOUTS_MATRIX && n <= LAYOUTS_OFFSET)
            rc = wire_read_list(&field,
                                n <= LAYOUTS_MAP ? STRATEGY_FILE_DIMS_MAX : STRATEGY_FILE_PARTS_MAX,
                                lists[n - LAYOUTS_MATRIX], err);
        else if (n >= LAYOUTS_FIELD && n <= LAYOUTS_SHARD_SIZE)
            rc = wire_read_integer(&field, numbers[n - LAYOUTS_FIELD], &seen[n - LAYOUTS_FIELD],
                                   err);
        if (rc < 0)
            return rc;
    }
    if (rc == 0 && !(seen[0] && seen[1] && seen[2]))
        return fleet_error(err, -EINVAL, "%s: required",
                           !seen[0]   ? "field"
                           : !seen[1] ? "opt_weight_shard_step"
                                      : "opt_weight_shard_size");
    return rc;
}

static int read_operator(const struct fleet_protobuf_field *message, struct strategy_file *file,
                         struct fleet_error *err)
{
    struct fleet_protobuf_reader reader = fleet_protobuf_reader_of(message);
    struct strategy_file_operator *op;
    struct fleet_protobuf_field field;
    bool has_value = false;
    int rc;

    if (wire_need(message, FLEET_PROTOBUF_BYTES, err) < 0)
        return -EINVAL;
    if ((rc = strategy_file_add_operator(file, &op, err)) < 0)
        return rc;
    while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0) {
        if (field.number == ITEM_NAME) {
            rc = wire_read_name(&field, &op->name, err);
        } else if (field.number == ITEM_VALUE) {
            rc = read_strategies(&field, op, err);
            has_value = true;
        }
        if (rc < 0)
            return rc;
    }
    if (rc == 0 && !has_value)
        return fleet_error(err, -EINVAL, "parallel_strategys: required");
    return rc;
}

static int read_layout(const struct fleet_protobuf_field *message, struct strategy_file *file,
                       struct fleet_error *err)
{
    struct fleet_protobuf_reader reader = fleet_protobuf_reader_of(message);
    struct strategy_file_layout *layout;
    struct fleet_protobuf_field field;
    bool has_value = false;
    int rc;

    if (wire_need(message, FLEET_PROTOBUF_BYTES, err) < 0)
        return -EINVAL;
    if ((rc = strategy_file_add_layout(file, &layout, err)) < 0)
        return rc;
    while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0) {
        if (field.number == ITEM_NAME) {
            rc = wire_read_name(&field, &layout->name, err);
        } else if (field.number == ITEM_VALUE) {
            rc = read_layouts(&field, layout, err);
            has_value = true;
        }
        if (rc < 0)
            return rc;
    }
    if (rc == 0 && !has_value)
        return fleet_error(err, -EINVAL, "parallel_layouts: required");
    return rc;
}

int strategy_file_decode_binary(const void *bytes, size_t size, struct strategy_file *out,
                                struct fleet_error *err)
{
    struct fleet_protobuf_reader reader = {bytes, size, 0};
    struct fleet_protobuf_field field;
    bool has_stage = false;
    int rc;

    while ((rc = fleet_protobuf_next(&reader, &field, err)) > 0) {
        if (field.number == MAP_CURRENT_STAGE)
            rc = wire_read_integer(&field, &out->current_stage, &has_stage, err);
        else if (field.number == MAP_OPERATOR && (rc = read_operator(&field, out, err)) < 0)
            return fleet_error_wrap(err, "parallel_strategy_item[%zu]", out->operator_count - 1);
        else if (field.number == MAP_LAYOUT && (rc = read_layout(&field, out, err)) < 0)
            return fleet_error_wrap(err, "parallel_layout_item[%zu]", out->layout_count - 1);
        if (rc < 0)
            return rc;
    }
    if (rc == 0 && !has_stage)
        return fleet_error(err, -EINVAL, "current_stage: required");
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* {name, value}, as both kinds of item are. */
static void append_item(struct fleet_strbuf *out, uint32_t number, const char *name,
                        const struct fleet_strbuf *value)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf item = {0};

    fleet_protobuf_append_bytes(&item, ITEM_NAME, name, strlen(name));
    wire_append_message(&item, ITEM_VALUE, value);
    wire_append_message(out, number, &item);
}

static void append_operator(struct fleet_strbuf *out, const struct strategy_file_operator *op)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf value = {0};

    fleet_protobuf_append_integer(&value, STRATEGIES_STAGE, op->stage);
    for (size_t i = 0; i < op->tuple_count; i++)
        wire_append_list(&value, STRATEGIES_TUPLE, &op->tuples[i]);
    append_item(out, MAP_OPERATOR, op->name, &value);
}

/* MindSpore writes all four lists, empty ones, too. */
static void append_layout(struct fleet_strbuf *out, const struct strategy_file_layout *layout)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf value = {0};

    wire_append_list(&value, LAYOUTS_MATRIX, &layout->device_matrix);
    wire_append_list(&value, LAYOUTS_MAP, &layout->tensor_map);
    wire_append_list(&value, LAYOUTS_SPLIT_SHAPE, &layout->param_split_shape);
    wire_append_list(&value, LAYOUTS_OFFSET, &layout->indices_offset);
    fleet_protobuf_append_integer(&value, LAYOUTS_FIELD, layout->field);
    fleet_protobuf_append_integer(&value, LAYOUTS_SHARD_STEP, layout->opt_weight_shard_step);
    fleet_protobuf_append_integer(&value, LAYOUTS_SHARD_SIZE, layout->opt_weight_shard_size);
    append_item(out, MAP_LAYOUT, layout->name, &value);
}

void strategy_file_encode_binary(const struct strategy_file *file, struct fleet_strbuf *out)
{
    fleet_protobuf_append_integer(out, MAP_CURRENT_STAGE, file->current_stage);
    for (size_t i = 0; i < file->operator_count; i++)
        append_operator(out, &file->operators[i]);
    for (size_t i = 0; i < file->layout_count; i++)
        append_layout(out, &file->layouts[i]);
}
