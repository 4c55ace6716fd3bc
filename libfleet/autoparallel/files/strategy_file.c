/* SPDX-License-Identifier: Apache-2.0 */

/* What both forms have in common: growing, checking, looking up. */
#include "libfleet/autoparallel/files/strategy_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/files/strategy_file_internal.h"
#include "libfleet/autoparallel/layout.h"
#include "libfleet/base/error.h"
#include "libfleet/base/map.h"

bool strategy_file_is_json(const char *path)
{
    static const char suffix[] = ".json";
    size_t length = strlen(path);

    return length >= sizeof(suffix) - 1 &&
           strcmp(path + length - (sizeof(suffix) - 1), suffix) == 0;
}

/* ---- growing --------------------------------------------------------------------------------- */

int strategy_file_add_operator(struct strategy_file *file, struct strategy_file_operator **out,
                               struct fleet_error *err)
{
    if (file->operator_count == STRATEGY_FILE_ITEMS_MAX)
        return fleet_error(err, -E2BIG, "more than %d operators", STRATEGY_FILE_ITEMS_MAX);
    file->operators = numbers_grow(file->operators, file->operator_count, sizeof(*file->operators));
    *out = &file->operators[file->operator_count++];
    **out = (struct strategy_file_operator){.name = NULL};
    return 0;
}

int strategy_file_add_layout(struct strategy_file *file, struct strategy_file_layout **out,
                             struct fleet_error *err)
{
    if (file->layout_count == STRATEGY_FILE_ITEMS_MAX)
        return fleet_error(err, -E2BIG, "more than %d layouts", STRATEGY_FILE_ITEMS_MAX);
    file->layouts = numbers_grow(file->layouts, file->layout_count, sizeof(*file->layouts));
    *out = &file->layouts[file->layout_count++];
    **out = (struct strategy_file_layout){.name = NULL};
    return 0;
}

int strategy_file_add_tuple(struct strategy_file_operator *op, struct numbers **out,
                            struct fleet_error *err)
{
    if (op->tuple_count == STRATEGY_FILE_TUPLES_MAX)
        return fleet_error(err, -E2BIG, "more than %d inputs", STRATEGY_FILE_TUPLES_MAX);
    op->tuples = numbers_grow(op->tuples, op->tuple_count, sizeof(*op->tuples));
    *out = &op->tuples[op->tuple_count++];
    **out = (struct numbers){.items = NULL};
    return 0;
}

/* ---- checking -------------------------------------------------------------------------------- */

#define NUMBER_MAX ((int64_t)1 << 53) /* that JSON can say */

static int check_numbers(const struct numbers *list, int64_t low, int64_t high, const char *what,
                         struct fleet_error *err)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i] < low || list->items[i] > high)
            return fleet_error(err, -EINVAL,
                               "%s[%zu]: %" PRId64 ", must be %" PRId64 " to %" PRId64, what, i,
                               list->items[i], low, high);
    return 0;
}

static int check_number(int64_t value, int64_t low, const char *what, struct fleet_error *err)
{
    if (value < low || value > INT32_MAX)
        return fleet_error(err, -EINVAL, "%s: %" PRId64 ", must be %" PRId64 " to %d", what, value,
                           low, INT32_MAX);
    return 0;
}

static int check_operator(const struct strategy_file_operator *op, struct fleet_error *err)
{
    if (check_number(op->stage, 0, "stage", err) < 0)
        return -EINVAL;
    for (size_t i = 0; i < op->tuple_count; i++)
        if (check_numbers(&op->tuples[i], 1, FLEET_WORLD_MAX, "parallel_strategy", err) < 0)
            return -EINVAL;
    return 0;
}

static int check_layout(const struct strategy_file_layout *layout, struct fleet_error *err)
{
    if (check_numbers(&layout->device_matrix, 1, FLEET_WORLD_MAX, "dev_matrix", err) < 0 ||
        check_numbers(&layout->tensor_map, LAYOUT_NONE, STRATEGY_FILE_DIMS_MAX - 1, "tensor_map",
                      err) < 0 ||
        check_numbers(&layout->shape, 1, NUMBER_MAX, "tensor_shape", err) < 0 ||
        check_numbers(&layout->param_split_shape, 0, NUMBER_MAX, "param_split_shape", err) < 0 ||
        check_numbers(&layout->indices_offset, 0, NUMBER_MAX, "indices_offset", err) < 0)
        return -EINVAL;
    if (check_number(layout->field, INT32_MIN, "field", err) < 0 ||
        check_number(layout->opt_weight_shard_step, INT32_MIN, "opt_weight_shard_step", err) < 0 ||
        check_number(layout->opt_weight_shard_size, INT32_MIN, "opt_weight_shard_size", err) < 0)
        return -EINVAL;
    if (layout->shape.count > 0 && layout->shape.count != layout->tensor_map.count)
        return fleet_error(err, -EINVAL, "tensor_shape has %zu numbers, tensor_map has %zu",
                           layout->shape.count, layout->tensor_map.count);
    if (layout->param_split_shape.count != layout->indices_offset.count)
        return fleet_error(err, -EINVAL,
                           "param_split_shape has %zu numbers, indices_offset has %zu",
                           layout->param_split_shape.count, layout->indices_offset.count);
    return 0;
}

static int check_name(struct fleet_map *seen, const char *name, struct fleet_error *err)
{
    if (!name || !name[0] || strlen(name) > STRATEGY_FILE_NAME_MAX)
        return fleet_error(err, -EINVAL, "a name of %zu bytes, must be 1 to %d",
                           name ? strlen(name) : 0, STRATEGY_FILE_NAME_MAX);
    if (!fleet_map_insert(seen, name, seen))
        return fleet_error(err, -EINVAL, "%.200s is there twice", name);
    return 0;
}

static int check_operators(const struct strategy_file *file, struct fleet_map *seen,
                           struct fleet_error *err)
{
    for (size_t i = 0; i < file->operator_count; i++) {
        if (check_name(seen, file->operators[i].name, err) < 0)
            return fleet_error_wrap(err, "parallel_strategy_item");
        if (check_operator(&file->operators[i], err) < 0)
            return fleet_error_wrap(err, "parallel_strategy_item.%.200s", file->operators[i].name);
    }
    return 0;
}

static int check_layouts(const struct strategy_file *file, struct fleet_map *seen,
                         struct fleet_error *err)
{
    for (size_t i = 0; i < file->layout_count; i++) {
        if (check_name(seen, file->layouts[i].name, err) < 0)
            return fleet_error_wrap(err, "parallel_layout_item");
        if (check_layout(&file->layouts[i], err) < 0)
            return fleet_error_wrap(err, "parallel_layout_item.%.200s", file->layouts[i].name);
    }
    return 0;
}

static int check_content(const struct strategy_file *file, struct fleet_error *err)
{
    struct fleet_map operators = {0}, layouts = {0};
    int rc = check_number(file->current_stage, 0, "current_stage", err);

    if (rc == 0)
        rc = check_operators(file, &operators, err);
    if (rc == 0)
        rc = check_layouts(file, &layouts, err);
    fleet_map_release(&operators);
    fleet_map_release(&layouts);
    return rc;
}

/* ---- reading and writing --------------------------------------------------------------------- */

int strategy_file_decode(const void *bytes, size_t size, bool is_json, struct strategy_file *out,
                         struct fleet_error *err)
{
    struct strategy_file file = {.current_stage = 0};
    int rc;

    if (size > STRATEGY_FILE_SIZE_MAX)
        return fleet_error(err, -EFBIG, "%zu bytes, may have %u", size, STRATEGY_FILE_SIZE_MAX);
    rc = is_json ? strategy_file_decode_json(bytes, size, &file, err)
                 : strategy_file_decode_binary(bytes, size, &file, err);
    if (rc == 0)
        rc = check_content(&file, err);
    if (rc < 0) {
        strategy_file_release(&file);
        return rc;
    }
    *out = file;
    return 0;
}

void strategy_file_encode(const struct strategy_file *file, bool is_json, struct fleet_strbuf *out)
{
    if (is_json)
        strategy_file_encode_json(file, out);
    else
        strategy_file_encode_binary(file, out);
}

void strategy_file_release(struct strategy_file *file)
{
    for (size_t i = 0; i < file->operator_count; i++) {
        struct strategy_file_operator *op = &file->operators[i];
        for (size_t t = 0; t < op->tuple_count; t++)
            numbers_release(&op->tuples[t]);
        free(op->tuples);
        free(op->name);
    }
    for (size_t i = 0; i < file->layout_count; i++) {
        struct strategy_file_layout *layout = &file->layouts[i];
        free(layout->name);
        numbers_release(&layout->device_matrix);
        numbers_release(&layout->tensor_map);
        numbers_release(&layout->shape);
        numbers_release(&layout->param_split_shape);
        numbers_release(&layout->indices_offset);
    }
    free(file->operators);
    free(file->layouts);
    *file = (struct strategy_file){.current_stage = 0};
}

/* ---- use ------------------------------------------------------------------------------------- */

/* The product of a list, cut at the greatest world. */
static int64_t product_of(const struct numbers *list)
{
    int64_t product = 1;

    for (size_t i = 0; i < list->count && product <= FLEET_WORLD_MAX; i++)
        product *= list->items[i];
    return product;
}

int strategy_file_check(const struct strategy_file *file, int64_t devices, struct fleet_error *err)
{
    for (size_t i = 0; i < file->operator_count; i++)
        for (size_t t = 0; t < file->operators[i].tuple_count; t++)
            if (product_of(&file->operators[i].tuples[t]) > devices)
                return fleet_error(err, -EINVAL,
                                   "parallel_strategy_item.%.200s: input %zu has more parts than "
                                   "the %" PRId64 " devices of the stage",
                                   file->operators[i].name, t, devices);
    for (size_t i = 0; i < file->layout_count; i++)
        if (product_of(&file->layouts[i].device_matrix) != devices)
            return fleet_error(err, -EINVAL,
                               "parallel_layout_item.%.200s.dev_matrix: not the %" PRId64
                               " devices of the stage",
                               file->layouts[i].name, devices);
    return 0;
}

int strategy_file_layout_of(const struct strategy_file_layout *layout, int dims,
                            const int64_t *shape, struct layout *out, struct fleet_error *err)
{
    struct layout result = {.axes = (int)layout->device_matrix.count, .dims = dims};

    if (dims < 0 || dims > STRATEGY_FILE_DIMS_MAX || layout->tensor_map.count != (size_t)dims)
        return fleet_error(err, -EINVAL, "%s: tensor_map has %zu numbers, the tensor %d dimensions",
                           layout->name, layout->tensor_map.count, dims);
    for (int i = 0; i < result.axes; i++)
        result.devices[i] = layout->device_matrix.items[i];
    for (int i = 0; i < dims; i++) {
        result.map[i] = (int)layout->tensor_map.items[i];
        result.shape[i] = shape[i];
    }
    if (layout_check(&result, err) < 0)
        return fleet_error_wrap(err, "%s", layout->name);
    *out = result;
    return 0;
}

const struct strategy_file_operator *strategy_file_find(const struct strategy_file *file,
                                                        const char *name)
{
    for (size_t i = 0; i < file->operator_count; i++)
        if (strcmp(file->operators[i].name, name) == 0)
            return &file->operators[i];
    return NULL;
}
