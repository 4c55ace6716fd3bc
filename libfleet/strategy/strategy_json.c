/* SPDX-License-Identifier: Apache-2.0 */

/* One walk over the tables in each direction; see strategy_json.h for the rules (1) … (6). */
#include "libfleet/strategy/strategy_json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/value_path.h"
#include "libfleet/strategy/knobs.h"

#define SHOWN_SIZE 80  /* bytes of a value in an error */
#define RANGE_SIZE 128 /* bytes of a range in an error */

struct decoder {
    struct fleet_strbuf path; /* of the value being read */
    struct fleet_errors *errors;
};

/* Names of Python properties that differ from the name of the field they set. */
static const struct {
    const char *property;
    const char *field;
} properties[] = {
    {"_fuse_grad_size_in_TFLOPS", "fuse_grad_size_in_TFLOPS"},
    {"_calc_comm_same_stream", "calc_comm_same_stream"},
    {"is_with_coordinator", "with_coordinator"},
};

/* ---- reading ------------------------------------------------------------------------------- */

/* A value as an error prints it: short, on one line. */
static void show(const cJSON *item, char *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (cJSON_IsObject(item) || cJSON_IsArray(item)) {
        (void)snprintf(out, SHOWN_SIZE, "%s", cJSON_IsObject(item) ? "an object" : "a list");
        return;
    }
    if (cJSON_IsString(item))
        fleet_json_append_string(&text, item->valuestring);
    else if (fleet_json_float_spelling(item))
        fleet_strbuf_append(&text, fleet_json_float_spelling(item));
    else if (cJSON_IsNumber(item))
        fleet_json_append_number(&text, item->valuedouble);
    else
        fleet_strbuf_append(&text, cJSON_IsNull(item)   ? "null"
                                   : cJSON_IsTrue(item) ? "true"
                                                        : "false");
    (void)snprintf(out, SHOWN_SIZE, text.length < SHOWN_SIZE ? "%s" : "%.70s…",
                   fleet_strbuf_text(&text));
}

static void refuse(struct decoder *d, const cJSON *item, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf hint = {0};
    char shown[SHOWN_SIZE];

    show(item, shown);
    fleet_json_append_hint(&hint, item, wanted);
    fleet_errors_add(d->errors, d->path.text, "must be %s, not %s%s", wanted, shown,
                     fleet_strbuf_text(&hint));
}

static void refuse_unknown(struct decoder *d, const struct knob_message *message, const char *name)
{
    /* Errors beyond the limit are only counted, because the search for similar names is slow. */
    const char *closest = d->errors->count < FLEET_ERRORS_MAX ? knobs_closest(message, name) : NULL;

    if (closest)
        fleet_errors_add_unknown(d->errors, d->path.text,
                                 "is not a field of %s; did you mean \"%s\"?", message->name,
                                 closest);
    else
        fleet_errors_add_unknown(d->errors, d->path.text, "is not a field of %s", message->name);
}

static bool read_int(struct decoder *d, const cJSON *item, int32_t *out)
{
    int64_t number;

    if (fleet_json_item_int(item, &number) < 0 || fleet_json_float_spelling(item)) {
        refuse(d, item, "an integer"); /* Paddle's setters refuse 2.0, too */
        return false;
    }
    if (number < INT32_MIN || number > INT32_MAX) {
        refuse(d, item, "an integer from -2147483648 to 2147483647");
        return false;
    }
    *out = (int32_t)number;
    return true;
}

static bool read_float(struct decoder *d, const cJSON *item, float *out)
{
    static const char *const words[] = {"inf", "-inf", "nan"};
    static const float numbers[] = {INFINITY, -INFINITY, NAN};

    if (cJSON_IsNumber(item)) {
        *out = (float)item->valuedouble;
        return true;
    }
    for (size_t i = 0; i < FLEET_COUNT(words); i++)
        if (cJSON_IsString(item) && strcmp(item->valuestring, words[i]) == 0) {
            *out = numbers[i];
            return true;
        }
    refuse(d, item, "a number");
    return false;
}

static bool read_string(struct decoder *d, const cJSON *item, const char **out)
{
    if (!cJSON_IsString(item)) {
        refuse(d, item, "a string");
        return false;
    }
    if (strlen(item->valuestring) > KNOB_STRING_MAX) {
        fleet_errors_add(d->errors, d->path.text, "has %zu bytes; at most %d are allowed",
                         strlen(item->valuestring), KNOB_STRING_MAX);
        return false;
    }
    *out = item->valuestring;
    return true;
}

static void read_message(struct decoder *d, const struct knob_message *message, const cJSON *json,
                         void *out);

static void read_element(struct decoder *d, const struct knob_field *field, const cJSON *item,
                         void *list)
{
    const char *text;
    int32_t integer;
    float number;

    if (field->kind == KNOB_STRINGS) {
        if (read_string(d, item, &text))
            knob_append_string(list, text);
    } else if (field->kind == KNOB_INTS) {
        if (read_int(d, item, &integer))
            knob_append_int(list, integer);
    } else if (field->kind == KNOB_FLOATS) {
        if (read_float(d, item, &number))
            knob_append_float(list, number);
    } else if (!cJSON_IsObject(item)) {
        refuse(d, item, "an object");
    } else {
        read_message(d, field->message(), item, knob_append_message(field, list));
    }
}

/* A list replaces the earlier one: a resource states values, it does not add to them. */
static bool read_list(struct decoder *d, const struct knob_field *field, const cJSON *json,
                      void *list)
{
    const cJSON *item;
    size_t index = 0;

    if (!cJSON_IsArray(json)) {
        refuse(d, json, "a list");
        return false;
    }
    if (cJSON_GetArraySize(json) > KNOB_LIST_MAX) {
        fleet_errors_add(d->errors, d->path.text, "has %d elements; at most %d are allowed",
                         cJSON_GetArraySize(json), KNOB_LIST_MAX);
        return false;
    }
    knob_clear_list(field, list);
    cJSON_ArrayForEach(item, json)
    {
        size_t length = fleet_value_path_enter_element(&d->path, index++);

        read_element(d, field, item, list);
        fleet_value_path_leave(&d->path, length);
    }
    return true;
}

static bool read_value(struct decoder *d, const struct knob_field *field, const cJSON *item,
                       void *value)
{
    const char *text;
    char range[RANGE_SIZE];

    switch (field->kind) {
    case KNOB_BOOL:
        if (!cJSON_IsBool(item)) {
            refuse(d, item, "true or false");
            return false;
        }
        *(bool *)value = cJSON_IsTrue(item);
        return true;
    case KNOB_INT:
        return read_int(d, item, value);
    case KNOB_FLOAT:
        return read_float(d, item, value);
    case KNOB_STRING:
    case KNOB_WORD:
        if (!read_string(d, item, &text))
            return false;
        if (field->kind == KNOB_WORD && knob_word_number(field, text) < 0) {
            knob_print_range(field, range, sizeof(range));
            refuse(d, item, range);
            return false;
        }
        knob_set_string(value, text);
        return true;
    case KNOB_MODE:
        fleet_errors_add(d->errors, d->path.text, "is read-only: it follows from the kind of job");
        return false;
    case KNOB_MESSAGE:
        if (!cJSON_IsObject(item)) {
            refuse(d, item, "an object");
            return false;
        }
        read_message(d, field->message(), item, value);
        return true;
    case KNOB_STRINGS:
    case KNOB_INTS:
    case KNOB_FLOATS:
    case KNOB_MESSAGES:
        break;
    }
    return read_list(d, field, item, value);
}

/* (4): the other name came first, with another value. Only numbers have two names. */
static bool contradicts(const struct knob_field *field, const cJSON *item, const void *value)
{
    if (field->kind == KNOB_INT)
        return *(const int32_t *)value != item->valuedouble;
    return *(const float *)value != (float)item->valuedouble;
}

static const char *field_of_property(const struct knob_message *message, const char *name)
{
    for (size_t i = 0; message == knobs_root() && i < FLEET_COUNT(properties); i++)
        if (strcmp(name, properties[i].property) == 0)
            return properties[i].field;
    return name;
}

static void read_field(struct decoder *d, const struct knob_message *message, const cJSON *item,
                       void *out)
{
    enum knob_spelling spelling = KNOB_BY_NAME;
    const struct knob_field *field =
        knobs_find(message, field_of_property(message, item->string), &spelling);
    uint8_t *has;

    if (!field) {
        refuse_unknown(d, message, item->string);
        return;
    }
    has = knob_has(field, out);
    if ((*has & ~(unsigned int)spelling) && cJSON_IsNumber(item) &&
        contradicts(field, item, knob_value(field, out))) {
        fleet_errors_add(d->errors, d->path.text,
                         "\"%s\" and \"%s\" name the same setting and differ", field->name,
                         field->alias);
        return;
    }
    if (read_value(d, field, item, knob_value(field, out)))
        *has |= spelling;
}

static void read_message(struct decoder *d, const struct knob_message *message, const cJSON *json,
                         void *out)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, json)
    {
        size_t length = fleet_value_path_enter(&d->path, item->string);

        read_field(d, message, item, out);
        fleet_value_path_leave(&d->path, length);
    }
}

int strategy_json_decode(const cJSON *json, const char *path, struct strategy *out,
                         struct fleet_errors *errors)
{
    struct decoder d = {.errors = errors};
    size_t before = errors->count;

    strategy_init(out);
    fleet_strbuf_append(&d.path, path);
    if (!cJSON_IsObject(json)) {
        refuse(&d, json, "an object");
    } else {
        if (cJSON_IsBool(cJSON_GetObjectItemCaseSensitive(json, "a_sync")))
            strategy_set_a_sync(out, out->a_sync); /* (6): later fields may set k_steps again */
        read_message(&d, knobs_root(), json, out);
    }
    fleet_strbuf_release(&d.path);
    return errors->count > before ? -EINVAL : 0;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* The double whose shortest text is that of the single-precision number: 0.8f gives 0.8. */
static cJSON *float_item(float number)
{
    char text[32];

    if (isnan(number))
        return fleet_json_new_string("nan");
    if (isinf(number))
        return fleet_json_new_string(number > 0 ? "inf" : "-inf");
    knob_print_float(number, text);
    return fleet_json_new_number(strtod(text, NULL));
}

static cJSON *encode_message(const struct knob_message *message, const void *value);

static cJSON *encode_list(const struct knob_field *field, const void *value)
{
    cJSON *array = fleet_json_new_list();

    if (field->kind == KNOB_STRINGS) {
        const struct strategy_strings *list = value;
        for (size_t i = 0; i < list->count; i++)
            fleet_json_add_string(array, list->items[i]);
    } else if (field->kind == KNOB_INTS) {
        const struct strategy_ints *list = value;
        for (size_t i = 0; i < list->count; i++)
            fleet_json_add_number(array, list->items[i]);
    } else if (field->kind == KNOB_FLOATS) {
        const struct strategy_floats *list = value;
        for (size_t i = 0; i < list->count; i++)
            fleet_json_add(array, float_item(list->items[i]));
    } else {
        const struct strategy_messages *list = value;
        const struct knob_message *message = field->message();
        for (size_t i = 0; i < list->count; i++)
            fleet_json_add(array,
                           encode_message(message, (const char *)list->items + i * message->size));
    }
    return array;
}

static cJSON *encode_value(const struct knob_field *field, const void *value)
{
    switch (field->kind) {
    case KNOB_BOOL:
        return fleet_json_new_bool(*(const bool *)value);
    case KNOB_INT:
        return fleet_json_new_number(*(const int32_t *)value);
    case KNOB_FLOAT:
        return float_item(*(const float *)value);
    case KNOB_STRING:
    case KNOB_WORD:
        return fleet_json_new_string(*(char *const *)value);
    case KNOB_MODE:
        return fleet_json_new_string(knob_mode_name(*(const int32_t *)value));
    case KNOB_MESSAGE:
        return encode_message(field->message(), value);
    case KNOB_STRINGS:
    case KNOB_INTS:
    case KNOB_FLOATS:
    case KNOB_MESSAGES:
        break;
    }
    return encode_list(field, value);
}

static cJSON *encode_message(const struct knob_message *message, const void *value)
{
    cJSON *object = fleet_json_new_object();

    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        uint8_t has = *knob_has(field, value);

        if (has & KNOB_BY_NAME)
            fleet_json_set(object, field->name, encode_value(field, knob_value(field, value)));
        if (has & KNOB_BY_ALIAS)
            fleet_json_set(object, field->alias, encode_value(field, knob_value(field, value)));
    }
    return object;
}

cJSON *strategy_json_encode(const struct strategy *s)
{
    return encode_message(knobs_root(), s);
}
