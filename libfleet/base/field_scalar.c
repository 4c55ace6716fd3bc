/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decodes one scalar by its row of the table: one function for each kind, and one `switch`. Each
 * error names the allowed values and the value found.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <regex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field_internal.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

#define PATTERNS_MAX 32 /* in all tables */

/* ---- refusals -------------------------------------------------------------------------------- */

static void append_place(struct fleet_strbuf *out, const struct fleet_place *place)
{
    if (!place)
        return;
    append_place(out, place->up);
    if (!place->name)
        fleet_strbuf_appendf(out, "[%zu]", place->index);
    else if (place->name[0])
        fleet_strbuf_appendf(out, "%s%s", out->length ? "." : "", place->name);
}

void fleet_field_refuse(struct fleet_errors *errors, const struct fleet_place *place,
                        const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0}, message = {0};
    va_list args;

    append_place(&path, place);
    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    fleet_errors_add(errors, fleet_strbuf_text(&path), "%s", fleet_strbuf_text(&message));
}

void fleet_field_refuse_unknown(struct fleet_errors *errors, const struct fleet_place *place,
                                const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0}, message = {0};
    va_list args;

    append_place(&path, place);
    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    fleet_errors_add_unknown(errors, fleet_strbuf_text(&path), "%s", message.text);
}

/* The value as JSON, truncated to FLEET_SHOWN_MAX bytes. */
static void append_shown(struct fleet_strbuf *out, const cJSON *json)
{
    FLEET_AUTO_FREE char *text = NULL;

    if (cJSON_IsObject(json) || cJSON_IsArray(json)) {
        fleet_strbuf_append(out, cJSON_IsObject(json) ? "an object" : "a list");
        return;
    }
    text = fleet_json_print(json);
    fleet_strbuf_appendf(out, "%.*s%s", FLEET_SHOWN_MAX, text,
                         strlen(text) > FLEET_SHOWN_MAX ? "..." : "");
}

void fleet_field_refuse_value(struct fleet_errors *errors, const struct fleet_place *place,
                              const cJSON *json, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf shown = {0};

    append_shown(&shown, json);
    fleet_json_append_hint(&shown, json, wanted);
    fleet_field_refuse(errors, place, "must be %s, not %s", wanted, fleet_strbuf_text(&shown));
}

/* ---- a kind each ----------------------------------------------------------------------------- */

static bool is_within(const struct fleet_field *field, double value)
{
    return !((field->flags & FLEET_MIN && value < field->min) ||
             (field->flags & FLEET_ABOVE && value <= field->min) ||
             (field->flags & FLEET_MAX && value > field->max) ||
             (field->flags & FLEET_BELOW && value >= field->max));
}

static bool check_bounds(const struct fleet_field *field, const cJSON *json,
                         const struct fleet_place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0};

    if (is_within(field, json->valuedouble))
        return true;
    fleet_field_bounds(field, &wanted);
    fleet_field_refuse_value(errors, place, json, fleet_strbuf_text(&wanted));
    return false;
}

/* The value is not a number of that kind; the error also names the bounds. */
static void refuse_number(const struct fleet_field *field, const char *kind, const cJSON *json,
                          const struct fleet_place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0}, bounds = {0};

    fleet_field_bounds(field, &bounds);
    fleet_strbuf_appendf(&wanted, "%s%s%s", kind, bounds.length ? " " : "",
                         fleet_strbuf_text(&bounds));
    fleet_field_refuse_value(errors, place, json, wanted.text);
}

static void decode_int(const struct fleet_field *field, const cJSON *json, int64_t *out,
                       const struct fleet_place *place, struct fleet_errors *errors)
{
    bool is_whole = cJSON_IsNumber(json) && json->valuedouble == trunc(json->valuedouble);
    int64_t value;

    if (is_whole && !check_bounds(field, json, place, errors))
        return;
    if (!is_whole)
        refuse_number(field, "an integer", json, place, errors);
    else if (fleet_json_item_int(json, &value) < 0)
        fleet_field_refuse_value(errors, place, json, "an integer within 2^53");
    else
        *out = value;
}

static void decode_int32(const struct fleet_field *field, const cJSON *json, int *out,
                         const struct fleet_place *place, struct fleet_errors *errors)
{
    int64_t value = INT64_MIN;

    decode_int(field, json, &value, place, errors);
    if (value >= INT_MIN && value <= INT_MAX)
        *out = (int)value;
    else if (value != INT64_MIN)
        fleet_field_refuse_value(errors, place, json, "an integer within 2^31");
}

static void decode_number(const struct fleet_field *field, const cJSON *json, double *out,
                          const struct fleet_place *place, struct fleet_errors *errors)
{
    if (!cJSON_IsNumber(json) || !isfinite(json->valuedouble))
        refuse_number(field, "a finite number", json, place, errors);
    else if (check_bounds(field, json, place, errors))
        *out = json->valuedouble;
}

/* Compiled once for all threads: the patterns come from the tables, and compiling one takes longer
 * than every other check of a value. */
static const regex_t *compile(const char *pattern)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        const char *pattern;
        regex_t regex;
    } compiled[PATTERNS_MAX];
    size_t i = 0;

    (void)pthread_mutex_lock(&lock);
    while (i < PATTERNS_MAX && compiled[i].pattern && compiled[i].pattern != pattern)
        i++;
    fleet_assert(i < PATTERNS_MAX);
    if (!compiled[i].pattern) {
        int rc = regcomp(&compiled[i].regex, pattern, REG_EXTENDED | REG_NOSUB);
        fleet_assert(rc == 0);
    }
    compiled[i].pattern = pattern;
    (void)pthread_mutex_unlock(&lock);
    return &compiled[i].regex;
}

static bool matches(const char *pattern, const char *text)
{
    return regexec(compile(pattern), text, 0, NULL, 0) == 0;
}

/* The text, or NULL after an error. */
static const char *check_text(const struct fleet_field *field, const cJSON *json,
                              const struct fleet_place *place, struct fleet_errors *errors)
{
    bool is_item = field->kind == FLEET_FIELD_LIST; /* its count_max is a number of elements */
    size_t max = is_item ? FLEET_FIELD_STRING_MAX : fleet_field_count_max(field);
    bool is_cut = field->kind == FLEET_FIELD_CHARS && field->flags & FLEET_CUT;

    if (!cJSON_IsString(json))
        fleet_field_refuse_value(errors, place, json, "a string");
    else if (!is_cut && strlen(json->valuestring) > max)
        fleet_field_refuse(errors, place, "must have at most %zu bytes, not %zu", max,
                           strlen(json->valuestring));
    else if (field->flags & FLEET_NOT_EMPTY && !json->valuestring[0])
        fleet_field_refuse(errors, place, "must not be empty");
    else if (field->pattern && !matches(field->pattern, json->valuestring))
        fleet_field_refuse_value(errors, place, json, field->pattern_words);
    else
        return json->valuestring;
    return NULL;
}

static void decode_string(const struct fleet_field *field, const cJSON *json, char **out,
                          const struct fleet_place *place, struct fleet_errors *errors)
{
    const char *text = check_text(field, json, place, errors);

    if (text)
        *out = fleet_dup_text(text);
}

/* A text that is too long is truncated at the start of a character. */
static void decode_chars(const struct fleet_field *field, const cJSON *json, char *out,
                         const struct fleet_place *place, struct fleet_errors *errors)
{
    const char *text = check_text(field, json, place, errors);
    size_t length = text ? strlen(text) : 0;

    if (length > field->count_max)
        for (length = field->count_max; length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80;)
            length--;
    if (!text)
        return;
    memcpy(out, text, length);
    out[length] = '\0';
}

/* Errors do not repeat the value, because it may be a secret. */
static void decode_hex(const struct fleet_field *field, const cJSON *json, uint8_t *out,
                       const struct fleet_place *place, struct fleet_errors *errors)
{
    if (!cJSON_IsString(json) || fleet_hex_decode(json->valuestring, out, field->count_max) < 0)
        fleet_field_refuse(errors, place, "must be %zu hexadecimal digits", 2 * field->count_max);
}

static void decode_base64(const struct fleet_field *field, const cJSON *json,
                          struct fleet_any_list *out, const struct fleet_place *place,
                          struct fleet_errors *errors)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *text = cJSON_IsString(json) ? json->valuestring : "=";
    size_t length = strlen(text), padding = 0, size;
    unsigned char *bytes = malloc(length / 4 * 3 + 1);

    fleet_assert(bytes != NULL);
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=')
        padding++;
    size = length / 4 * 3 - padding;
    if (length % 4 != 0 || size > field->count_max || strspn(text, digits) != length - padding ||
        EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)length) < 0) {
        fleet_field_refuse(errors, place, "must be base64 of at most %zu bytes", field->count_max);
        free(bytes);
        return;
    }
    *out = (struct fleet_any_list){.items = bytes, .count = size};
}

/* The word is not allowed: list the allowed ones and name the most similar one. */
static void refuse_choice(const struct fleet_field *field, const cJSON *json,
                          const struct fleet_place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0};
    const char *nearest = NULL, *help = fleet_field_help(field->hints, cJSON_GetStringValue(json));
    size_t count = 0;

    while (field->choices[count])
        count++;
    if (cJSON_IsString(json))
        nearest = fleet_closest_word(json->valuestring, field->choices, count);
    fleet_field_allowed(field, &wanted);
    if (help)
        fleet_field_refuse(errors, place, "\"%.*s\" is not known here: write %s; must be %s",
                           FLEET_SHOWN_MAX, json->valuestring, help, wanted.text);
    else if (nearest && nearest[0])
        fleet_field_refuse(errors, place, "\"%.*s\" is unknown; did you mean \"%s\"? Must be %s",
                           FLEET_SHOWN_MAX, json->valuestring, nearest, wanted.text);
    else
        fleet_field_refuse_value(errors, place, json, wanted.text);
}

static void decode_enum(const struct fleet_field *field, const cJSON *json, int *out,
                        const struct fleet_place *place, struct fleet_errors *errors)
{
    int choice = cJSON_IsString(json) ? fleet_field_choice(field, json->valuestring) : -1;

    if (choice < 0)
        refuse_choice(field, json, place, errors);
    else
        *out = choice;
}

static void decode_int_or_choice(const struct fleet_field *field, const cJSON *json, int64_t *out,
                                 const struct fleet_place *place, struct fleet_errors *errors)
{
    int choice = cJSON_IsString(json) ? fleet_field_choice(field, json->valuestring) : -1;

    if (choice >= 0)
        *out = -1 - (int64_t)choice;
    else if (cJSON_IsNumber(json))
        decode_int(field, json, out, place, errors);
    else
        refuse_choice(field, json, place, errors);
}

static void decode_seed(const cJSON *json, uint64_t *out, const struct fleet_place *place,
                        struct fleet_errors *errors)
{
    int64_t value;

    if (cJSON_IsNumber(json)) {
        if (json->valuedouble > FLEET_EXACT_MAX)
            fleet_field_refuse(errors, place,
                               "integers above 2^53 - 1 must be written as a string of digits");
        else if (fleet_json_item_int(json, &value) < 0 || value < 0)
            fleet_field_refuse_value(errors, place, json, "an integer of at least 0");
        else
            *out = (uint64_t)value;
        return;
    }
    if (cJSON_IsString(json)) {
        const char *text = json->valuestring;
        size_t digits = strspn(text, "0123456789");
        errno = 0;
        uint64_t seed = strtoull(text, NULL, 10);
        if (digits > 0 && digits <= 20 && !text[digits] && errno == 0) {
            *out = seed;
            return;
        }
    }
    fleet_field_refuse_value(errors, place, json, "an integer from 0 to 2^64 - 1");
}

static void decode_time(const cJSON *json, int64_t *out, const struct fleet_place *place,
                        struct fleet_errors *errors)
{
    if (!cJSON_IsString(json) || fleet_rfc3339_parse(json->valuestring, out) < 0)
        fleet_field_refuse_value(errors, place, json, "a time as in 2026-01-31T12:00:00Z");
}

static void decode_json(const struct fleet_field *field, const cJSON *json, cJSON **out,
                        const struct fleet_place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_FREE char *text = NULL;
    bool is_list = (field->flags & FLEET_TUPLES) != 0;

    if (is_list ? !cJSON_IsArray(json) : !cJSON_IsObject(json)) {
        fleet_field_refuse_value(errors, place, json,
                                 is_list ? "a list of lists of integers" : "an object");
        return;
    }
    text = fleet_json_print(json);
    if (strlen(text) > fleet_field_count_max(field)) {
        fleet_field_refuse(errors, place, "must have at most %zu bytes of JSON, not %zu",
                           fleet_field_count_max(field), strlen(text));
        return;
    }
    *out = fleet_json_copy(json);
}

void fleet_field_decode_scalar(const struct fleet_field *field, enum fleet_field_kind kind,
                               const cJSON *json, void *out, const struct fleet_place *place,
                               struct fleet_errors *errors)
{
    switch (kind) {
    case FLEET_FIELD_BOOL:
        if (cJSON_IsBool(json))
            *(bool *)out = cJSON_IsTrue(json);
        else
            fleet_field_refuse_value(errors, place, json, "true or false");
        break;
    case FLEET_FIELD_INT:
        decode_int(field, json, out, place, errors);
        break;
    case FLEET_FIELD_INT32:
        decode_int32(field, json, out, place, errors);
        break;
    case FLEET_FIELD_NUMBER:
        decode_number(field, json, out, place, errors);
        break;
    case FLEET_FIELD_STRING:
        decode_string(field, json, out, place, errors);
        break;
    case FLEET_FIELD_CHARS:
        decode_chars(field, json, out, place, errors);
        break;
    case FLEET_FIELD_HEX:
        decode_hex(field, json, out, place, errors);
        break;
    case FLEET_FIELD_BASE64:
        decode_base64(field, json, out, place, errors);
        break;
    case FLEET_FIELD_ENUM:
        decode_enum(field, json, out, place, errors);
        break;
    case FLEET_FIELD_INT_OR_CHOICE:
        decode_int_or_choice(field, json, out, place, errors);
        break;
    case FLEET_FIELD_SEED:
        decode_seed(json, out, place, errors);
        break;
    case FLEET_FIELD_TIME:
        decode_time(json, out, place, errors);
        break;
    case FLEET_FIELD_JSON:
        decode_json(field, json, out, place, errors);
        break;
    case FLEET_FIELD_OBJECT:
    case FLEET_FIELD_LIST:
    case FLEET_FIELD_MAP:
    case FLEET_FIELD_INT_MAP:
        fleet_assert(!"not a scalar");
    }
}
