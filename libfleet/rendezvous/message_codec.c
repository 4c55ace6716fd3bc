/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One loop over a table of fields for writing, one for reading; a case for each kind of field.
 * Unknown members of an object are never looked at, so newer peers may say more.
 */
#include "libfleet/rendezvous/message_codec.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/rendezvous/message.h"

#define AGE_MS_MAX 1e12 /* thirty years */

/* ---- storage --------------------------------------------------------------------------------- */

struct message_chunk {
    struct message_chunk *next;
    size_t used, size;
    max_align_t data[];
};

#define CHUNK_SIZE 1024

/* Zeroed memory that lives as long as the message. */
static void *storage_take(struct message_chunk **storage, size_t size)
{
    struct message_chunk *chunk = *storage;
    size_t rounded = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    void *memory;

    if (!chunk || chunk->size - chunk->used < rounded) {
        size_t room = rounded > CHUNK_SIZE ? rounded : CHUNK_SIZE;
        chunk = calloc(1, sizeof(*chunk) + room);
        fleet_assert(chunk != NULL);
        chunk->size = room;
        chunk->next = *storage;
        *storage = chunk;
    }
    memory = (char *)chunk->data + chunk->used;
    chunk->used += rounded;
    return memory;
}

void message_codec_release(struct message_chunk **storage)
{
    while (*storage) {
        struct message_chunk *next = (*storage)->next;
        free(*storage);
        *storage = next;
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Valid UTF-8 of at most `max` bytes, cut at a character; `from_front` keeps the end. */
static void append_text(struct fleet_strbuf *out, const char *text, size_t max, bool from_front)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf clean = {0};
    const char *start;

    for (const char *p = text ? text : ""; *p;) {
        size_t length = fleet_utf8_length(p);
        if (!from_front && clean.length + (length ? length : 3) > max)
            break;
        if (length == 0)
            fleet_strbuf_append(&clean, "\xef\xbf\xbd");
        else
            fleet_strbuf_append_bytes(&clean, p, length);
        p += length ? length : 1;
    }
    start = fleet_strbuf_text(&clean);
    if (clean.length > max) {
        start += clean.length - max;
        while (fleet_utf8_length(start) == 0)
            start++;
    }
    fleet_json_append_string(out, start);
}

static void append_base64(struct fleet_strbuf *out, const void *bytes, size_t size)
{
    unsigned char *text = malloc(size / 3 * 4 + 8);

    fleet_assert(text != NULL);
    EVP_EncodeBlock(text, bytes, (int)size);
    fleet_strbuf_append_char(out, '"');
    fleet_strbuf_append(out, size ? (const char *)text : "");
    fleet_strbuf_append_char(out, '"');
    free(text);
}

static void append_list(struct fleet_strbuf *out, const struct message_field *field,
                        const char *elements, size_t count)
{
    fleet_assert(count <= (size_t)field->max);
    fleet_strbuf_append_char(out, '[');
    for (size_t i = 0; i < count; i++) {
        size_t start = out->length + (i > 0);
        fleet_strbuf_append(out, i > 0 ? "," : "");
        message_codec_encode(field->fields, elements + i * field->element_size, out);
        out->text[start] = '{'; /* over the leading comma */
        fleet_strbuf_append_char(out, '}');
    }
    fleet_strbuf_append_char(out, ']');
}

static void append_ints(struct fleet_strbuf *out, const int *values, int count)
{
    fleet_strbuf_append_char(out, '[');
    for (int i = 0; i < count; i++)
        fleet_strbuf_appendf(out, "%s%d", i > 0 ? "," : "", values[i]);
    fleet_strbuf_append_char(out, ']');
}

static void append_secret(struct fleet_strbuf *out, const void *secret)
{
    char hex[2 * MESSAGE_SECRET_SIZE + 1];

    fleet_hex_encode(secret, MESSAGE_SECRET_SIZE, hex);
    fleet_strbuf_appendf(out, "\"%s\"", hex);
}

static void append_value(struct fleet_strbuf *out, const struct message_field *field,
                         const char *base)
{
    const void *at = base + field->offset;
    const struct fleet_generation *generation = at;

    switch (field->kind) {
    case MESSAGE_KIND_TEXT:
    case MESSAGE_KIND_LINES:
        append_text(out, *(const char *const *)at, (size_t)field->max,
                    field->kind == MESSAGE_KIND_LINES);
        break;
    case MESSAGE_KIND_INT:
        fleet_strbuf_appendf(out, "%d", *(const int *)at);
        break;
    case MESSAGE_KIND_INT64:
        fleet_strbuf_appendf(out, "%" PRId64, *(const int64_t *)at);
        break;
    case MESSAGE_KIND_NUMBER:
        fleet_json_append_number(out, *(const double *)at);
        break;
    case MESSAGE_KIND_AGE:
        fleet_json_append_number(out, fmin(fmax(*(const double *)at, 0), AGE_MS_MAX));
        break;
    case MESSAGE_KIND_BOOL:
        fleet_strbuf_append(out, *(const bool *)at ? "true" : "false");
        break;
    case MESSAGE_KIND_ENUM:
        fleet_assert(*(const unsigned *)at < (unsigned)field->max);
        fleet_json_append_string(out, field->names[*(const unsigned *)at]);
        break;
    case MESSAGE_KIND_GENERATION:
        fleet_strbuf_appendf(out, "{\"epoch\":%" PRId64 ",\"counter\":%" PRId64 "}",
                             generation->epoch, generation->counter);
        break;
    case MESSAGE_KIND_SECRET:
        append_secret(out, at);
        break;
    case MESSAGE_KIND_BYTES:
        append_base64(out, *(const void *const *)at, *(const size_t *)(base + field->count_offset));
        break;
    case MESSAGE_KIND_INTS:
        append_ints(out, *(const int *const *)at, *(const int *)(base + field->count_offset));
        break;
    case MESSAGE_KIND_LIST:
        append_list(out, field, *(const char *const *)at,
                    *(const size_t *)(base + field->count_offset));
        break;
    }
}

void message_codec_encode(const struct message_field *fields, const void *base,
                          struct fleet_strbuf *out)
{
    for (const struct message_field *field = fields; field->name; field++) {
        fleet_strbuf_append(out, ",\"");
        fleet_strbuf_append(out, field->name);
        fleet_strbuf_append(out, "\":");
        append_value(out, field, base);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_text(const struct message_field *field, const cJSON *item, const char **out,
                     struct message_chunk **storage, struct fleet_error *err)
{
    const char *text = cJSON_GetStringValue(item);
    size_t size, length;
    char *copy;

    if (!text)
        return fleet_error(err, -EINVAL, "%s: must be a string", field->name);
    size = strlen(text);
    if (size < (size_t)field->min || size > (size_t)field->max)
        return fleet_error(err, -EINVAL, "%s: %zu bytes long, allowed are %" PRId64 " to %" PRId64,
                           field->name, size, field->min, field->max);
    for (const char *p = text; *p; p += length) {
        length = fleet_utf8_length(p);
        if (length == 0)
            return fleet_error(err, -EINVAL, "%s: is not UTF-8", field->name);
    }
    copy = storage_take(storage, size + 1);
    memcpy(copy, text, size);
    *out = copy;
    return 0;
}

static int read_int(const struct message_field *field, const cJSON *item, int64_t *out,
                    struct fleet_error *err)
{
    int64_t value;

    if (fleet_json_item_int(item, &value) < 0)
        return fleet_error(err, -EINVAL, "%s: must be an integer", field->name);
    if (value < field->min || value > field->max)
        return fleet_error(err, -EINVAL, "%s: %" PRId64 " is not in %" PRId64 " … %" PRId64,
                           field->name, value, field->min, field->max);
    *out = value;
    return 0;
}

static int read_number(const struct message_field *field, const cJSON *item, double *out,
                       struct fleet_error *err)
{
    if (cJSON_IsNull(item)) {
        *out = NAN;
        return 0;
    }
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return fleet_error(err, -EINVAL, "%s: must be a number or null", field->name);
    *out = item->valuedouble;
    return 0;
}

static int read_age(const struct message_field *field, const cJSON *item, double *out,
                    struct fleet_error *err)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= AGE_MS_MAX))
        return fleet_error(err, -EINVAL, "%s: must be a number in 0 … 1e12", field->name);
    *out = item->valuedouble;
    return 0;
}

static int read_enum(const struct message_field *field, const cJSON *item, unsigned *out,
                     struct fleet_error *err)
{
    const char *word = cJSON_GetStringValue(item);

    for (unsigned i = 0; word && i < (unsigned)field->max; i++)
        if (strcmp(word, field->names[i]) == 0) {
            *out = i;
            return 0;
        }
    return fleet_error(err, -EINVAL, "%s: \"%.40s\" is none of its %d words", field->name,
                       word ? word : "", (int)field->max);
}

static int read_generation(const struct message_field *field, const cJSON *item,
                           struct fleet_generation *out, struct fleet_error *err)
{
    struct fleet_generation g;

    if (fleet_json_item_int(cJSON_GetObjectItemCaseSensitive(item, "epoch"), &g.epoch) < 0 ||
        fleet_json_item_int(cJSON_GetObjectItemCaseSensitive(item, "counter"), &g.counter) < 0 ||
        g.epoch < 0 || g.counter < 0 || g.epoch > FLEET_GENERATION_NUMBER_MAX ||
        g.counter > FLEET_GENERATION_NUMBER_MAX)
        return fleet_error(err, -EINVAL, "%s: must be {epoch, counter}, integers from 0 to 2^52",
                           field->name);
    *out = g;
    return 0;
}

static int read_secret(const struct message_field *field, const cJSON *item, uint8_t *out,
                       struct fleet_error *err)
{
    const char *text = cJSON_GetStringValue(item);

    if (!text || fleet_hex_decode(text, out, MESSAGE_SECRET_SIZE) < 0)
        return fleet_error(err, -EINVAL, "%s: must be %d hexadecimal digits", field->name,
                           2 * MESSAGE_SECRET_SIZE);
    return 0;
}

static int read_bytes(const struct message_field *field, const cJSON *item, const void **out,
                      size_t *out_size, struct message_chunk **storage, struct fleet_error *err)
{
    const char *text = cJSON_GetStringValue(item);
    size_t length = text ? strlen(text) : 0, padding = 0;
    unsigned char *bytes;

    if (!text || length % 4 != 0 || length / 4 * 3 > (size_t)field->max + 2)
        return fleet_error(err, -EINVAL, "%s: must be base64 of at most %" PRId64 " bytes",
                           field->name, field->max);
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=')
        padding++;
    bytes = storage_take(storage, length / 4 * 3 + 1);
    if (length - padding != strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                         "0123456789+/") ||
        EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)length) < 0 ||
        length / 4 * 3 - padding > (size_t)field->max)
        return fleet_error(err, -EINVAL, "%s: must be base64 of at most %" PRId64 " bytes",
                           field->name, field->max);
    *out = bytes;
    *out_size = length / 4 * 3 - padding;
    return 0;
}

static int read_ints(const struct message_field *field, const cJSON *item, const int **out,
                     int *out_count, struct message_chunk **storage, struct fleet_error *err)
{
    int count = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : -1;
    const cJSON *element;
    int64_t value;
    int *values, i = 0;

    if (count < field->min || count > field->max)
        return fleet_error(err, -EINVAL,
                           "%s: must be a list of %" PRId64 " to %" PRId64 " integers", field->name,
                           field->min, field->max);
    values = storage_take(storage, (size_t)count * sizeof(*values));
    cJSON_ArrayForEach(element, item)
    {
        if (fleet_json_item_int(element, &value) < 0 || value < 0 || value > 65535)
            return fleet_error(err, -EINVAL, "%s[%d]: must be in 0 … 65535", field->name, i);
        values[i++] = (int)value;
    }
    *out = values;
    *out_count = count;
    return 0;
}

static int read_list(const struct message_field *field, const cJSON *item, const void **out,
                     size_t *out_count, struct message_chunk **storage, struct fleet_error *err)
{
    int count = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : -1;
    const cJSON *element;
    size_t i = 0;
    char *elements;

    if (count < field->min || count > field->max)
        return fleet_error(err, -EINVAL, "%s: must be a list of %" PRId64 " to %" PRId64 " objects",
                           field->name, field->min, field->max);
    elements = storage_take(storage, (size_t)count * field->element_size);
    cJSON_ArrayForEach(element, item)
    {
        if (message_codec_decode(field->fields, element, elements + i * field->element_size,
                                 storage, err) < 0)
            return fleet_error_wrap(err, "%s[%zu]", field->name, i);
        i++;
    }
    *out = elements;
    *out_count = (size_t)count;
    return 0;
}

static int read_value(const struct message_field *field, const cJSON *item, char *base,
                      struct message_chunk **storage, struct fleet_error *err)
{
    void *at = base + field->offset, *count = base + field->count_offset;
    int64_t integer = 0;

    switch (field->kind) {
    case MESSAGE_KIND_TEXT:
    case MESSAGE_KIND_LINES:
        return read_text(field, item, at, storage, err);
    case MESSAGE_KIND_INT:
        if (read_int(field, item, &integer, err) < 0)
            return -EINVAL;
        *(int *)at = (int)integer;
        return 0;
    case MESSAGE_KIND_INT64:
        return read_int(field, item, at, err);
    case MESSAGE_KIND_NUMBER:
        return read_number(field, item, at, err);
    case MESSAGE_KIND_AGE:
        return read_age(field, item, at, err);
    case MESSAGE_KIND_BOOL:
        *(bool *)at = cJSON_IsTrue(item);
        if (!cJSON_IsBool(item))
            return fleet_error(err, -EINVAL, "%s: must be true or false", field->name);
        return 0;
    case MESSAGE_KIND_ENUM:
        return read_enum(field, item, at, err);
    case MESSAGE_KIND_GENERATION:
        return read_generation(field, item, at, err);
    case MESSAGE_KIND_SECRET:
        return read_secret(field, item, at, err);
    case MESSAGE_KIND_BYTES:
        return read_bytes(field, item, at, count, storage, err);
    case MESSAGE_KIND_INTS:
        return read_ints(field, item, at, count, storage, err);
    case MESSAGE_KIND_LIST:
        return read_list(field, item, at, count, storage, err);
    }
    return fleet_error(err, -EINVAL, "%s: unknown kind", field->name);
}

static void set_absent(const struct message_field *field, char *base)
{
    if (field->kind == MESSAGE_KIND_TEXT || field->kind == MESSAGE_KIND_LINES)
        *(const char **)(base + field->offset) = "";
    else if (field->kind == MESSAGE_KIND_NUMBER)
        *(double *)(base + field->offset) = NAN;
}

int message_codec_decode(const struct message_field *fields, const cJSON *object, void *base,
                         struct message_chunk **storage, struct fleet_error *err)
{
    if (!cJSON_IsObject(object))
        return fleet_error(err, -EINVAL, "must be an object");
    for (const struct message_field *field = fields; field->name; field++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, field->name);
        bool is_absent = !item || (cJSON_IsNull(item) && field->kind != MESSAGE_KIND_NUMBER);

        if (is_absent && !field->is_optional)
            return fleet_error(err, -EINVAL, "%s: required, but absent", field->name);
        if (is_absent)
            set_absent(field, base);
        else if (read_value(field, item, base, storage, err) < 0)
            return -EINVAL;
    }
    return 0;
}
