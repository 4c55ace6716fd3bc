/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Encodes an object as JSON text. Only the text is allocated, so a caller that reuses its buffer
 * writes without allocating.
 */
#include <inttypes.h>
#include <math.h>
#include <openssl/evp.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/field_internal.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_tree.h"
#include "libfleet/base/strbuf.h"

/* ---- values ---------------------------------------------------------------------------------- */

/* Valid UTF-8 of at most `max` bytes, cut between two characters. */
static void append_cut(struct fleet_strbuf *out, const char *text, size_t max, bool from_front)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf clean = {0};
    const char *start;

    for (const char *p = text; *p;) {
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

static void append_text(struct fleet_strbuf *out, const struct fleet_field *field, const char *text)
{
    size_t max = fleet_field_count_max(field);

    if (text && field->flags & (FLEET_CUT | FLEET_CUT_FRONT) && strlen(text) > max / 3)
        append_cut(out, text, max, field->flags & FLEET_CUT_FRONT);
    else
        fleet_json_append_string(out, text ? text : "");
}

static void append_number(struct fleet_strbuf *out, const struct fleet_field *field, double value)
{
    if (field->flags & FLEET_CLAMP)
        value = fmin(fmax(value, field->min), field->max);
    fleet_json_append_number(out, value);
}

static void append_seed(struct fleet_strbuf *out, uint64_t seed)
{
    fleet_strbuf_appendf(out, (double)seed <= FLEET_EXACT_MAX ? "%" PRIu64 : "\"%" PRIu64 "\"",
                         seed);
}

static void append_time(struct fleet_strbuf *out, int64_t wall_ms)
{
    char text[FLEET_RFC3339_SIZE];

    fleet_rfc3339_format(wall_ms, text);
    fleet_json_append_string(out, text);
}

static void append_hex(struct fleet_strbuf *out, const uint8_t *bytes, size_t size)
{
    static const char digits[] = "0123456789abcdef";

    fleet_strbuf_append_char(out, '"');
    for (size_t i = 0; i < size; i++) {
        fleet_strbuf_append_char(out, digits[bytes[i] >> 4]);
        fleet_strbuf_append_char(out, digits[bytes[i] & 15]);
    }
    fleet_strbuf_append_char(out, '"');
}

/* EVP_EncodeBlock() writes a NUL after the digits. */
static void append_base64(struct fleet_strbuf *out, const struct fleet_any_list *bytes)
{
    size_t length = (bytes->count + 2) / 3 * 4;

    fleet_strbuf_append_char(out, '"');
    fleet_strbuf_reserve(out, length + 1);
    if (bytes->count > 0)
        EVP_EncodeBlock((unsigned char *)out->text + out->length, bytes->items, (int)bytes->count);
    out->length += length;
    fleet_strbuf_append_char(out, '"');
}

static void append_choice(struct fleet_strbuf *out, const struct fleet_field *field, int choice)
{
    for (int i = 0; i < choice; i++)
        fleet_assert(field->choices[i] != NULL);
    fleet_assert(choice >= 0 && field->choices[choice] != NULL);
    fleet_json_append_string(out, field->choices[choice]);
}

/* A member or an element of a list. */
static void append_item(struct fleet_strbuf *out, const struct fleet_field *field,
                        enum fleet_field_kind kind, const void *in)
{
    switch (kind) {
    case FLEET_FIELD_BOOL:
        fleet_strbuf_append(out, *(const bool *)in ? "true" : "false");
        break;
    case FLEET_FIELD_INT:
        fleet_strbuf_append_int(out, *(const int64_t *)in);
        break;
    case FLEET_FIELD_INT32:
        fleet_strbuf_append_int(out, *(const int *)in);
        break;
    case FLEET_FIELD_NUMBER:
        append_number(out, field, *(const double *)in);
        break;
    case FLEET_FIELD_STRING:
        append_text(out, field, *(char *const *)in);
        break;
    case FLEET_FIELD_CHARS:
        fleet_json_append_string(out, in);
        break;
    case FLEET_FIELD_ENUM:
        append_choice(out, field, *(const int *)in);
        break;
    case FLEET_FIELD_INT_OR_CHOICE:
        if (*(const int64_t *)in < 0)
            append_choice(out, field, (int)(-1 - *(const int64_t *)in));
        else
            fleet_strbuf_append_int(out, *(const int64_t *)in);
        break;
    case FLEET_FIELD_SEED:
        append_seed(out, *(const uint64_t *)in);
        break;
    case FLEET_FIELD_TIME:
        append_time(out, *(const int64_t *)in);
        break;
    case FLEET_FIELD_HEX:
        append_hex(out, in, field->count_max);
        break;
    case FLEET_FIELD_BASE64:
        append_base64(out, in);
        break;
    case FLEET_FIELD_JSON:
        fleet_json_append(out, *(cJSON *const *)in);
        break;
    case FLEET_FIELD_OBJECT:
        fleet_object_append(field->object, in, out);
        break;
    case FLEET_FIELD_LIST:
    case FLEET_FIELD_MAP:
    case FLEET_FIELD_INT_MAP:
        fleet_assert(!"not an item");
    }
}

static void append_list(struct fleet_strbuf *out, const struct fleet_field *field, const void *in)
{
    struct fleet_any_list list = fleet_field_list(field, in);
    size_t size = fleet_field_item_size(field);

    fleet_assert(list.count <= fleet_field_count_max(field));
    fleet_strbuf_append_char(out, '[');
    for (size_t i = 0; i < list.count; i++) {
        if (i > 0)
            fleet_strbuf_append_char(out, ',');
        append_item(out, field, field->item, (const char *)list.items + i * size);
    }
    fleet_strbuf_append_char(out, ']');
}

static void append_key(struct fleet_strbuf *out, const char *key)
{
    fleet_json_append_string(out, key);
    fleet_strbuf_append_char(out, ':');
}

static void append_map(struct fleet_strbuf *out, const struct fleet_string_map *map)
{
    for (size_t i = 0; i < map->count; i++) {
        fleet_strbuf_append_char(out, i > 0 ? ',' : '{');
        append_key(out, map->items[i].key);
        fleet_json_append_string(out, map->items[i].value);
    }
    fleet_strbuf_append_char(out, '}');
}

static void append_int_map(struct fleet_strbuf *out, const struct fleet_int_map *map)
{
    for (size_t i = 0; i < map->count; i++) {
        fleet_strbuf_append_char(out, i > 0 ? ',' : '{');
        append_key(out, map->items[i].key);
        fleet_strbuf_append_int(out, map->items[i].value);
    }
    fleet_strbuf_append_char(out, '}');
}

/* ---- objects --------------------------------------------------------------------------------- */

/* Is the field set, and so written? */
static bool has_value(const struct fleet_field *field, const void *in)
{
    bool always = field->default_text || field->presence || field->flags & FLEET_REQUIRED;

    switch (field->kind) {
    case FLEET_FIELD_INT:
    case FLEET_FIELD_INT_OR_CHOICE:
        return always || *(const int64_t *)in != (int64_t)field->unset;
    case FLEET_FIELD_INT32:
        return always || *(const int *)in != (int)field->unset;
    case FLEET_FIELD_NUMBER:
        if (isnan(*(const double *)in))
            return field->flags & FLEET_NULL && always;
        return always || *(const double *)in != field->unset;
    case FLEET_FIELD_STRING:
        return always || field->flags & FLEET_NEVER_NULL || *(char *const *)in;
    case FLEET_FIELD_ENUM:
        return *(const int *)in != 0 || field->choices[0][0];
    case FLEET_FIELD_TIME:
        return *(const int64_t *)in != 0;
    case FLEET_FIELD_JSON:
        return *(cJSON *const *)in;
    case FLEET_FIELD_LIST:
        return fleet_field_list(field, in).count > 0 || field->flags & FLEET_REQUIRED;
    case FLEET_FIELD_MAP:
        return ((const struct fleet_string_map *)in)->count > 0;
    case FLEET_FIELD_INT_MAP:
        return ((const struct fleet_int_map *)in)->count > 0;
    case FLEET_FIELD_BOOL:
    case FLEET_FIELD_CHARS:
    case FLEET_FIELD_SEED:
    case FLEET_FIELD_HEX:
    case FLEET_FIELD_BASE64:
    case FLEET_FIELD_OBJECT:
        break;
    }
    return true;
}

void fleet_object_append_fields(const struct fleet_object *type, const void *object,
                                struct fleet_strbuf *out)
{
    const char *base = object;
    uint32_t mask = fleet_object_choice(type, object);

    for (const struct fleet_field *field = type->fields; field->name; field++) {
        const void *in = base + field->offset;
        if (!fleet_field_belongs(field, mask) || !has_value(field, in) ||
            (field->presence && !*(const bool *)(base + field->presence - 1)))
            continue;
        fleet_strbuf_append_char(out, ',');
        append_key(out, field->name);
        if (field->kind == FLEET_FIELD_LIST)
            append_list(out, field, in);
        else if (field->kind == FLEET_FIELD_MAP)
            append_map(out, in);
        else if (field->kind == FLEET_FIELD_INT_MAP)
            append_int_map(out, in);
        else
            append_item(out, field, field->kind, in);
    }
}

void fleet_object_append(const struct fleet_object *type, const void *object,
                         struct fleet_strbuf *out)
{
    size_t start = out->length;

    fleet_object_append_fields(type, object, out);
    if (out->length == start)
        fleet_strbuf_append_char(out, '{');
    else
        out->text[start] = '{'; /* over the first comma */
    fleet_strbuf_append_char(out, '}');
}

cJSON *fleet_object_encode(const struct fleet_object *type, const void *object)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *half;
    cJSON *json;

    fleet_object_append(type, object, &text);
    json = fleet_json_tree(text.text, text.length, &half);
    fleet_assert(json != NULL);
    return json;
}
