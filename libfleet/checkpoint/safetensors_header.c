/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The header is decoded with the JSON module's limits, each tensor on its own, then all together:
 * sorted by offset their ranges must follow each other from the first byte of data to the last.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/checkpoint/safetensors_internal.h"

#define DATA_ALIGNMENT 64 /* of the data in files we write */

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [SAFETENSORS_BOOL] = {"BOOL", 1}, [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_I8] = {"I8", 1},     [SAFETENSORS_U16] = {"U16", 2},
    [SAFETENSORS_I16] = {"I16", 2},   [SAFETENSORS_F16] = {"F16", 2},
    [SAFETENSORS_BF16] = {"BF16", 2}, [SAFETENSORS_U32] = {"U32", 4},
    [SAFETENSORS_I32] = {"I32", 4},   [SAFETENSORS_F32] = {"F32", 4},
    [SAFETENSORS_U64] = {"U64", 8},   [SAFETENSORS_I64] = {"I64", 8},
    [SAFETENSORS_F64] = {"F64", 8},
};

size_t safetensors_type_size(enum safetensors_type type)
{
    return types[type].size;
}

const char *safetensors_type_name(enum safetensors_type type)
{
    return types[type].name;
}

int64_t safetensors_elements(const struct safetensors_tensor *tensor)
{
    return (int64_t)(tensor->bytes / types[tensor->type].size);
}

void safetensors_print_shape(const int64_t *shape, int ndim, struct fleet_strbuf *out)
{
    fleet_strbuf_append_char(out, '[');
    for (int i = 0; i < ndim; i++)
        fleet_strbuf_appendf(out, "%s%lld", i ? ", " : "", (long long)shape[i]);
    fleet_strbuf_append_char(out, ']');
}

static int decode_type(const char *name, const cJSON *item, enum safetensors_type *out,
                       struct fleet_error *err)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");

    if (!cJSON_IsString(dtype))
        return fleet_error(err, -EINVAL, "tensor %.100s: dtype is not a string", name);
    for (size_t i = 0; i < FLEET_COUNT(types); i++)
        if (strcmp(types[i].name, dtype->valuestring) == 0) {
            *out = (enum safetensors_type)i;
            return 0;
        }
    return fleet_error(err, -EINVAL, "tensor %.100s: dtype %.20s is not known", name,
                       dtype->valuestring);
}

/* Shape, and the bytes that type and shape make. */
static int decode_shape(const cJSON *item, struct safetensors_tensor *tensor, uint64_t *out_bytes,
                        struct fleet_error *err)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape"), *dim;
    uint64_t bytes = types[tensor->type].size;

    if (!cJSON_IsArray(shape))
        return fleet_error(err, -EINVAL, "tensor %.100s: shape is not a list", tensor->name);
    cJSON_ArrayForEach(dim, shape)
    {
        int64_t value;
        if (tensor->ndim == SAFETENSORS_DIMS_MAX)
            return fleet_error(err, -EINVAL, "tensor %.100s: more than %d dimensions", tensor->name,
                               SAFETENSORS_DIMS_MAX);
        if (fleet_json_item_int(dim, &value) < 0 || value < 0 ||
            __builtin_mul_overflow(bytes, (uint64_t)value, &bytes) || bytes > INT64_MAX)
            return fleet_error(err, -EINVAL, "tensor %.100s: dimension %d is not a size that fits",
                               tensor->name, tensor->ndim);
        tensor->shape[tensor->ndim++] = value;
    }
    *out_bytes = bytes;
    return 0;
}

static int decode_tensor(const cJSON *item, uint64_t data_start, uint64_t data_size,
                         struct safetensors_tensor *tensor, struct fleet_error *err)
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    int64_t first, end;
    uint64_t bytes = 0;

    if (strlen(item->string) > SAFETENSORS_NAME_MAX)
        return fleet_error(err, -EINVAL, "tensor %.100s...: name longer than %d bytes",
                           item->string, SAFETENSORS_NAME_MAX);
    tensor->name = fleet_dup_text(item->string);
    if (!cJSON_IsObject(item))
        return fleet_error(err, -EINVAL, "tensor %.100s: not an object", item->string);
    if (decode_type(item->string, item, &tensor->type, err) < 0 ||
        decode_shape(item, tensor, &bytes, err) < 0)
        return -EINVAL;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        fleet_json_item_int(offsets->child, &first) < 0 ||
        fleet_json_item_int(offsets->child->next, &end) < 0)
        return fleet_error(err, -EINVAL, "tensor %.100s: data_offsets is not [first, end]",
                           item->string);
    if (first < 0 || end < first || (uint64_t)end > data_size)
        return fleet_error(
            err, -EINVAL, "tensor %.100s: bytes [%lld, %lld) are not inside the %llu bytes of data",
            item->string, (long long)first, (long long)end, (unsigned long long)data_size);
    tensor->offset = data_start + (uint64_t)first;
    tensor->bytes = (uint64_t)(end - first);
    if (tensor->bytes != bytes)
        return fleet_error(err, -EINVAL, "tensor %.100s: %llu bytes of data, its shape makes %llu",
                           item->string, (unsigned long long)tensor->bytes,
                           (unsigned long long)bytes);
    return 0;
}

static int decode_metadata(const cJSON *item, struct safetensors_file *file,
                           struct fleet_error *err)
{
    const cJSON *entry;

    if (!cJSON_IsObject(item))
        return fleet_error(err, -EINVAL, "__metadata__ is not an object");
    file->metadata = calloc((size_t)cJSON_GetArraySize(item) + 1, sizeof(*file->metadata));
    fleet_assert(file->metadata != NULL);
    cJSON_ArrayForEach(entry, item)
    {
        struct safetensors_metadata *to = &file->metadata[file->metadata_count];
        if (!cJSON_IsString(entry))
            return fleet_error(err, -EINVAL, "__metadata__.%.100s is not a string", entry->string);
        to->key = strdup(entry->string);
        to->value = strdup(entry->valuestring);
        fleet_assert(to->key && to->value);
        file->metadata_count++;
    }
    return 0;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_tensor *)a)->name,
                  ((const struct safetensors_tensor *)b)->name);
}

/* (2): no overlap, no hole. Leaves the tensors sorted by name (3). */
static int check_cover(struct safetensors_file *file, uint64_t data_start, uint64_t file_size,
                       struct fleet_error *err)
{
    uint64_t at = data_start;

    if (file->count)
        qsort(file->tensors, file->count, sizeof(*file->tensors), compare_offsets);
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_tensor *t = &file->tensors[i];
        if (t->offset != at)
            return fleet_error(err, -EINVAL, "tensor %.100s starts at byte %llu, %s byte %llu",
                               t->name, (unsigned long long)t->offset,
                               t->offset < at ? "before its neighbour's end at"
                                              : "after a hole from",
                               (unsigned long long)at);
        at += t->bytes;
    }
    if (at != file_size)
        return fleet_error(err, -EINVAL, "tensors end at byte %llu of %llu", (unsigned long long)at,
                           (unsigned long long)file_size);
    if (file->count)
        qsort(file->tensors, file->count, sizeof(*file->tensors), compare_names);
    return 0;
}

static int decode_header(const cJSON *root, uint64_t data_start, uint64_t file_size,
                         struct safetensors_file *file, struct fleet_error *err)
{
    const cJSON *item;

    if (!cJSON_IsObject(root))
        return fleet_error(err, -EINVAL, "header is not an object");
    if (cJSON_GetArraySize(root) > SAFETENSORS_TENSORS_MAX)
        return fleet_error(err, -EINVAL, "more than %d tensors", SAFETENSORS_TENSORS_MAX);
    file->tensors = calloc((size_t)cJSON_GetArraySize(root) + 1, sizeof(*file->tensors));
    fleet_assert(file->tensors != NULL);
    cJSON_ArrayForEach(item, root)
    {
        int rc = strcmp(item->string, "__metadata__") == 0
                     ? decode_metadata(item, file, err)
                     : decode_tensor(item, data_start, file_size - data_start,
                                     &file->tensors[file->count++], err);
        if (rc < 0)
            return rc;
    }
    return check_cover(file, data_start, file_size, err);
}

uint64_t safetensors_header_length(const uint8_t bytes[SAFETENSORS_LENGTH_SIZE])
{
    uint64_t length = 0;

    for (int i = SAFETENSORS_LENGTH_SIZE - 1; i >= 0; i--)
        length = length << 8 | bytes[i];
    return length;
}

int safetensors_header_decode(const void *bytes, size_t size, uint64_t file_size,
                              struct safetensors_file *out, struct fleet_error *err)
{
    struct safetensors_file file = {0};
    FLEET_AUTO_JSON cJSON *root = NULL;
    const uint8_t *p = bytes;
    uint64_t length;
    int rc;

    if (size < SAFETENSORS_LENGTH_SIZE || file_size < size)
        return fleet_error(err, -EINVAL, "%llu bytes are too short for a safetensors file",
                           (unsigned long long)file_size);
    length = safetensors_header_length(p);
    if (length > SAFETENSORS_HEADER_MAX || length > size - SAFETENSORS_LENGTH_SIZE)
        return fleet_error(err, -EINVAL,
                           "not a safetensors file: its first 8 bytes say that its header has %llu "
                           "bytes, the file has %llu (limit of a header: %u)",
                           (unsigned long long)length, (unsigned long long)file_size,
                           SAFETENSORS_HEADER_MAX);
    rc = fleet_json_parse((const char *)p + SAFETENSORS_LENGTH_SIZE, (size_t)length,
                          SAFETENSORS_HEADER_MAX, &root, err);
    if (rc < 0) {
        (void)fleet_error_wrap(err, "header");
        return rc;
    }
    rc = decode_header(root, SAFETENSORS_LENGTH_SIZE + length, file_size, &file, err);
    if (rc < 0) {
        safetensors_release(&file);
        return rc;
    }
    *out = file;
    return 0;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors_file *file,
                                                  const char *name)
{
    struct safetensors_tensor key = {.name = (char *)name};

    return file->count ? bsearch(&key, file->tensors, file->count, sizeof(key), compare_names)
                       : NULL;
}

const char *safetensors_metadata(const struct safetensors_file *file, const char *key)
{
    for (size_t i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i].key, key) == 0)
            return file->metadata[i].value;
    return NULL;
}

static void append_metadata(const struct safetensors_metadata *metadata, size_t count,
                            struct fleet_strbuf *out)
{
    fleet_strbuf_append(out, "\"__metadata__\":{");
    for (size_t i = 0; i < count; i++) {
        fleet_strbuf_append(out, i ? "," : "");
        fleet_json_append_string(out, metadata[i].key);
        fleet_strbuf_append_char(out, ':');
        fleet_json_append_string(out, metadata[i].value);
    }
    fleet_strbuf_append_char(out, '}');
}

static uint64_t bytes_of(const struct safetensors_tensor *tensor)
{
    uint64_t bytes = types[tensor->type].size;

    for (int i = 0; i < tensor->ndim; i++)
        fleet_assert(!__builtin_mul_overflow(bytes, (uint64_t)tensor->shape[i], &bytes));
    return bytes;
}

uint64_t safetensors_header_encode(const struct safetensors_tensor *tensors, size_t count,
                                   const struct safetensors_metadata *metadata,
                                   size_t metadata_count, struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf json = {0};
    uint8_t length[SAFETENSORS_LENGTH_SIZE];
    uint64_t at = 0;

    fleet_strbuf_append_char(&json, '{');
    if (metadata_count)
        append_metadata(metadata, metadata_count, &json);
    for (size_t i = 0; i < count; i++) {
        const struct safetensors_tensor *t = &tensors[i];
        uint64_t bytes = bytes_of(t);
        fleet_strbuf_append(&json, i || metadata_count ? "," : "");
        fleet_json_append_string(&json, t->name);
        fleet_strbuf_appendf(&json, ":{\"dtype\":\"%s\",\"shape\":", types[t->type].name);
        safetensors_print_shape(t->shape, t->ndim, &json);
        fleet_strbuf_appendf(&json, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                             (unsigned long long)(at + bytes));
        at += bytes;
    }
    fleet_strbuf_append_char(&json, '}');
    while ((json.length + SAFETENSORS_LENGTH_SIZE) % DATA_ALIGNMENT != 0)
        fleet_strbuf_append_char(&json, ' ');
    fleet_assert(json.length <= SAFETENSORS_HEADER_MAX);
    for (int i = 0; i < SAFETENSORS_LENGTH_SIZE; i++)
        length[i] = (uint8_t)((uint64_t)json.length >> (8 * i));
    fleet_strbuf_append_bytes(out, length, sizeof(length));
    fleet_strbuf_append_bytes(out, json.text, json.length);
    return SAFETENSORS_LENGTH_SIZE + json.length + at;
}
