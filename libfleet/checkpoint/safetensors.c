/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The header is decoded with the JSON module's limits, each tensor on its own, then all together:
 * sorted by offset their ranges must follow each other from the first byte of data to the last.
 */
#include "libfleet/checkpoint/safetensors.h"

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

#define LENGTH_SIZE    8     /* bytes of the header's length at the start */
#define DATA_ALIGNMENT 64    /* of the data in files we write */
#define CHUNK_SIZE     16384 /* bytes on the stack that are converted at once; a multiple of 8 */

/* An open file that tensors are read from. */
struct safetensors_source {
    int fd;
    char *path;
};

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

/* ---- decoding -------------------------------------------------------------------------------- */

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

static uint64_t header_length(const uint8_t bytes[LENGTH_SIZE])
{
    uint64_t length = 0;

    for (int i = LENGTH_SIZE - 1; i >= 0; i--)
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

    if (size < LENGTH_SIZE || file_size < size)
        return fleet_error(err, -EINVAL, "%llu bytes are too short for a safetensors file",
                           (unsigned long long)file_size);
    length = header_length(p);
    if (length > SAFETENSORS_HEADER_MAX || length > size - LENGTH_SIZE)
        return fleet_error(err, -EINVAL,
                           "not a safetensors file: its first 8 bytes say that its header has %llu "
                           "bytes, the file has %llu (limit of a header: %u)",
                           (unsigned long long)length, (unsigned long long)file_size,
                           SAFETENSORS_HEADER_MAX);
    rc = fleet_json_parse((const char *)p + LENGTH_SIZE, (size_t)length, SAFETENSORS_HEADER_MAX,
                          &root, err);
    if (rc < 0) {
        (void)fleet_error_wrap(err, "header");
        return rc;
    }
    rc = decode_header(root, LENGTH_SIZE + length, file_size, &file, err);
    if (rc < 0) {
        safetensors_release(&file);
        return rc;
    }
    *out = file;
    return 0;
}

static void source_free(struct safetensors_source *source)
{
    if (!source)
        return;
    (void)close(source->fd);
    free(source->path);
    free(source);
}

void safetensors_release(struct safetensors_file *file)
{
    for (size_t i = 0; file->tensors && i < file->count; i++)
        free(file->tensors[i].name);
    for (size_t i = 0; i < file->metadata_count; i++) {
        free(file->metadata[i].key);
        free(file->metadata[i].value);
    }
    free(file->tensors);
    free(file->metadata);
    source_free(file->source);
    memset(file, 0, sizeof(*file));
}

static int source_open(const char *path, struct safetensors_source **out, uint64_t *out_size,
                       struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fleet_error(err, -errno, "open %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fleet_error(err, -EINVAL, "open %s: not a regular file", path);
    *out = calloc(1, sizeof(**out));
    fleet_assert(*out);
    (*out)->path = fleet_dup_text(path);
    (*out)->fd = fd;
    fd = -1;
    *out_size = (uint64_t)st.st_size;
    return 0;
}

/* Bytes [first, first + size) of the file. */
static int source_read(const struct safetensors_source *source, uint64_t first, void *out,
                       size_t size, struct fleet_error *err)
{
    uint8_t *to = out;

    while (size > 0) {
        ssize_t got = pread(source->fd, to, size, (off_t)first);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fleet_error(err, -errno, "read %s: %s", source->path, strerror(errno));
        if (got == 0)
            return fleet_error(
                err, -EIO, "read %s: it was truncated meanwhile, it ends at or before byte %llu",
                source->path, (unsigned long long)first);
        to += got;
        first += (uint64_t)got;
        size -= (size_t)got;
    }
    return 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Length and header of a file of `size` bytes, or as much as there is of them: the decoder says
 * what is wrong. On success the caller frees *out. */
static int read_header(const struct safetensors_source *source, uint64_t size, uint8_t **out,
                       size_t *out_size, struct fleet_error *err)
{
    uint8_t length[LENGTH_SIZE] = {0};
    size_t want = (size_t)smaller(size, LENGTH_SIZE);
    int rc = source_read(source, 0, length, want, err);

    if (rc < 0)
        return rc;
    if (size > LENGTH_SIZE)
        want += (size_t)smaller(smaller(header_length(length), SAFETENSORS_HEADER_MAX),
                                size - LENGTH_SIZE);
    *out = calloc(want + 1, 1);
    fleet_assert(*out);
    rc = source_read(source, 0, *out, want, err);
    if (rc < 0) {
        free(*out);
        return rc;
    }
    *out_size = want;
    return 0;
}

int safetensors_open(const char *path, struct safetensors_file *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE uint8_t *header = NULL;
    struct safetensors_file file = {0};
    struct safetensors_source *source = NULL;
    uint64_t size = 0;
    size_t header_size = 0;
    int rc = source_open(path, &source, &size, err);

    if (rc < 0)
        return rc;
    rc = read_header(source, size, &header, &header_size, err);
    if (rc == 0) {
        rc = safetensors_header_decode(header, header_size, size, &file, err);
        if (rc < 0)
            (void)fleet_error_wrap(err, "%s", path);
    }
    if (rc < 0) {
        source_free(source);
        return rc;
    }
    file.source = source;
    for (size_t i = 0; i < file.count; i++)
        file.tensors[i].source = source;
    *out = file;
    return 0;
}

/* ---- looking up and reading ------------------------------------------------------------------ */

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

static uint32_t f32_bits_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31;
    uint32_t fraction = half & 0x3ff;

    if (exponent == 31)
        return sign | 0x7f800000u | fraction << 13;
    if (exponent == 0 && fraction == 0)
        return sign;
    if (exponent == 0) { /* subnormal: shift its leading bit to the implicit place */
        exponent = 1;
        while (!(fraction & 0x400)) {
            fraction <<= 1;
            exponent--; /* wraps below zero; the sum below is right again */
        }
        fraction &= 0x3ff;
    }
    return sign | (exponent + 112) << 23 | fraction << 13;
}

int safetensors_read(const struct safetensors_tensor *tensor, uint64_t first, void *out,
                     size_t size, struct fleet_error *err)
{
    int rc = 0;

    fleet_assert(first <= tensor->bytes && size <= tensor->bytes - first);
    if (size && tensor->source)
        rc = source_read(tensor->source, tensor->offset + first, out, size, err);
    else if (size)
        memcpy(out, tensor->data + first, size);
    if (rc < 0)
        (void)fleet_error_wrap(err, "tensor %.100s", tensor->name);
    return rc;
}

static float f32_of(enum safetensors_type type, const uint8_t *p)
{
    uint16_t half;
    uint32_t bits;
    double wide;
    float value;

    if (type == SAFETENSORS_F64) {
        memcpy(&wide, p, sizeof(wide));
        return (float)wide;
    }
    memcpy(&half, p, sizeof(half));
    bits = type == SAFETENSORS_BF16 ? (uint32_t)half << 16 : f32_bits_of_f16(half);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static int32_t i32_of(enum safetensors_type type, const uint8_t *p)
{
    int16_t half;
    int32_t value;

    switch (type) {
    case SAFETENSORS_U8:
        return p[0];
    case SAFETENSORS_I8:
        return (int8_t)p[0];
    case SAFETENSORS_I32:
        memcpy(&value, p, sizeof(value));
        return value;
    default:
        memcpy(&half, p, sizeof(half));
        return type == SAFETENSORS_U16 ? (uint16_t)half : half;
    }
}

/* Elements [first, first + count), a chunk at a time; each as fp32 into `floats` or as int32 into
 * `integers`. */
static int convert(const struct safetensors_tensor *tensor, int64_t first, int64_t count,
                   float *floats, int32_t *integers, struct fleet_error *err)
{
    const size_t size = types[tensor->type].size;
    uint8_t chunk[CHUNK_SIZE];

    for (int64_t at = 0; at < count;) {
        int64_t some =
            count - at < (int64_t)(CHUNK_SIZE / size) ? count - at : (int64_t)(CHUNK_SIZE / size);
        int rc = safetensors_read(tensor, (uint64_t)(first + at) * size, chunk, (size_t)some * size,
                                  err);
        if (rc < 0)
            return rc;
        for (int64_t i = 0; i < some; i++)
            if (floats)
                floats[at + i] = f32_of(tensor->type, chunk + (size_t)i * size);
            else if (integers)
                integers[at + i] = i32_of(tensor->type, chunk + (size_t)i * size);
        at += some;
    }
    return 0;
}

static int refuse_type(const struct safetensors_tensor *tensor, const char *wanted,
                       struct fleet_error *err)
{
    return fleet_error(err, -EINVAL, "tensor %.100s: type %s, expected %s", tensor->name,
                       types[tensor->type].name, wanted);
}

int safetensors_read_f32(const struct safetensors_tensor *tensor, int64_t first, int64_t count,
                         float *out, struct fleet_error *err)
{
    fleet_assert(first >= 0 && count >= 0 && first + count <= safetensors_elements(tensor));
    switch (tensor->type) {
    case SAFETENSORS_F32:
        return safetensors_read(tensor, 4 * (uint64_t)first, out, 4 * (size_t)count, err);
    case SAFETENSORS_F16:
    case SAFETENSORS_BF16:
    case SAFETENSORS_F64:
        return convert(tensor, first, count, out, NULL, err);
    default:
        return refuse_type(tensor, "F32, BF16, F16 or F64", err);
    }
}

int safetensors_read_i32(const struct safetensors_tensor *tensor, int64_t first, int64_t count,
                         int32_t *out, struct fleet_error *err)
{
    fleet_assert(first >= 0 && count >= 0 && first + count <= safetensors_elements(tensor));
    switch (tensor->type) {
    case SAFETENSORS_I32:
    case SAFETENSORS_U8:
    case SAFETENSORS_I8:
    case SAFETENSORS_U16:
    case SAFETENSORS_I16:
        return convert(tensor, first, count, NULL, out, err);
    default:
        return refuse_type(tensor, "I32, U8, I8, U16 or I16", err);
    }
}

/* ---- encoding -------------------------------------------------------------------------------- */

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
    uint8_t length[LENGTH_SIZE];
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
    while ((json.length + LENGTH_SIZE) % DATA_ALIGNMENT != 0)
        fleet_strbuf_append_char(&json, ' ');
    fleet_assert(json.length <= SAFETENSORS_HEADER_MAX);
    for (int i = 0; i < LENGTH_SIZE; i++)
        length[i] = (uint8_t)((uint64_t)json.length >> (8 * i));
    fleet_strbuf_append_bytes(out, length, sizeof(length));
    fleet_strbuf_append_bytes(out, json.text, json.length);
    return LENGTH_SIZE + json.length + at;
}
