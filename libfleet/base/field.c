/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decoding by a table: one function a kind, one `switch` that chooses. A place in the input is a
 * chain of stack frames and becomes text only when there is something to complain about.
 */
#include "libfleet/base/field.h"

#include <errno.h>
#include <math.h>
#include <regex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

#define EXACT_MAX     9007199254740991.0 /* 2^53 - 1: no two integers share a double up to here */
#define SHOWN_MAX     40                 /* bytes of a refused value that an error repeats */
#define CANDIDATE_MAX 128                /* keys of one object, for "did you mean" */

/* Where in the input we are. A list element has no name. */
struct place {
    const struct place *up;
    const char *name;
    size_t index;
};

/* Any list member looks like this. */
struct any_list {
    void *items;
    size_t count;
};

static void append_place(struct fleet_strbuf *out, const struct place *place)
{
    if (!place)
        return;
    append_place(out, place->up);
    if (!place->name)
        fleet_strbuf_appendf(out, "[%zu]", place->index);
    else if (place->name[0])
        fleet_strbuf_appendf(out, "%s%s", out->length ? "." : "", place->name);
}

__attribute__((format(printf, 3, 4))) static void
refuse(struct fleet_errors *errors, const struct place *place, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0}, message = {0};
    va_list args;

    append_place(&path, place);
    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    fleet_errors_add(errors, fleet_strbuf_text(&path), "%s", fleet_strbuf_text(&message));
}

/* The value as JSON, cut to SHOWN_MAX bytes. */
static void append_shown(struct fleet_strbuf *out, const cJSON *json)
{
    FLEET_AUTO_FREE char *text = NULL;

    if (cJSON_IsObject(json) || cJSON_IsArray(json)) {
        fleet_strbuf_append(out, cJSON_IsObject(json) ? "an object" : "a list");
        return;
    }
    text = fleet_json_print(json);
    fleet_strbuf_appendf(out, "%.*s%s", SHOWN_MAX, text, strlen(text) > SHOWN_MAX ? "..." : "");
}

static void refuse_value(struct fleet_errors *errors, const struct place *place, const cJSON *json,
                         const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf shown = {0};

    append_shown(&shown, json);
    refuse(errors, place, "must be %s, not %s", wanted, fleet_strbuf_text(&shown));
}

static bool is_absent(const cJSON *json)
{
    return !json || cJSON_IsNull(json);
}

static char *copy_text(const char *text)
{
    char *copy = strdup(text);

    fleet_assert(copy != NULL);
    return copy;
}

/* ---- what is allowed ----------------------------------------------------------------------- */

size_t fleet_field_count_max(const struct fleet_field *field)
{
    if (field->count_max)
        return field->count_max;
    if (field->kind == FLEET_FIELD_JSON)
        return FLEET_FIELD_JSON_MAX;
    return field->kind == FLEET_FIELD_LIST || field->kind == FLEET_FIELD_MAP ||
                   field->kind == FLEET_FIELD_INT_MAP
               ? FLEET_FIELD_LIST_MAX
               : FLEET_FIELD_STRING_MAX;
}

static void append_bounds(struct fleet_strbuf *out, const struct fleet_field *field)
{
    unsigned int low = field->flags & (FLEET_MIN | FLEET_ABOVE);
    unsigned int high = field->flags & (FLEET_MAX | FLEET_BELOW);

    if (low && high) {
        fleet_strbuf_append(out, low & FLEET_MIN ? "in [" : "in (");
        fleet_json_append_number(out, field->min);
        fleet_strbuf_append(out, ", ");
        fleet_json_append_number(out, field->max);
        fleet_strbuf_append(out, high & FLEET_MAX ? "]" : ")");
    } else if (low) {
        fleet_strbuf_append(out, low & FLEET_MIN ? "at least " : "greater than ");
        fleet_json_append_number(out, field->min);
    } else if (high) {
        fleet_strbuf_append(out, high & FLEET_MAX ? "at most " : "less than ");
        fleet_json_append_number(out, field->max);
    }
}

static void append_choices(struct fleet_strbuf *out, const struct fleet_field *field)
{
    const char *separator = "";

    for (const char *const *choice = field->choices; *choice; choice++) {
        if (!(*choice)[0])
            continue;
        fleet_strbuf_appendf(out, "%s%s", separator, *choice);
        separator = ", ";
    }
}

void fleet_field_allowed(const struct fleet_field *field, struct fleet_strbuf *out)
{
    if (field->kind == FLEET_FIELD_ENUM) {
        fleet_strbuf_append(out, "one of ");
        append_choices(out, field);
    } else if (field->kind == FLEET_FIELD_INT_OR_CHOICE) {
        append_choices(out, field);
        fleet_strbuf_append(out, " or an integer");
        if (field->flags & (FLEET_MIN | FLEET_MAX))
            fleet_strbuf_append_char(out, ' ');
        append_bounds(out, field);
    } else if (field->pattern_words) {
        fleet_strbuf_append(out, field->pattern_words);
    } else {
        append_bounds(out, field);
    }
}

/* ---- scalars ------------------------------------------------------------------------------- */

static bool is_within(const struct fleet_field *field, double value)
{
    return !((field->flags & FLEET_MIN && value < field->min) ||
             (field->flags & FLEET_ABOVE && value <= field->min) ||
             (field->flags & FLEET_MAX && value > field->max) ||
             (field->flags & FLEET_BELOW && value >= field->max));
}

static bool check_bounds(const struct fleet_field *field, const cJSON *json,
                         const struct place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0};

    if (is_within(field, json->valuedouble))
        return true;
    append_bounds(&wanted, field);
    refuse_value(errors, place, json, fleet_strbuf_text(&wanted));
    return false;
}

static void decode_int(const struct fleet_field *field, const cJSON *json, int64_t *out,
                       const struct place *place, struct fleet_errors *errors)
{
    int64_t value;

    if (fleet_json_item_int(json, &value) < 0)
        refuse_value(errors, place, json, "an integer");
    else if (check_bounds(field, json, place, errors))
        *out = value;
}

static void decode_number(const struct fleet_field *field, const cJSON *json, double *out,
                          const struct place *place, struct fleet_errors *errors)
{
    if (!cJSON_IsNumber(json) || !isfinite(json->valuedouble))
        refuse_value(errors, place, json, "a finite number");
    else if (check_bounds(field, json, place, errors))
        *out = json->valuedouble;
}

static bool matches(const char *pattern, const char *text)
{
    regex_t regex;
    bool yes;

    fleet_assert(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) == 0);
    yes = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return yes;
}

static void decode_string(const struct fleet_field *field, const cJSON *json, char **out,
                          const struct place *place, struct fleet_errors *errors)
{
    size_t max =
        field->kind == FLEET_FIELD_STRING ? fleet_field_count_max(field) : FLEET_FIELD_STRING_MAX;

    if (!cJSON_IsString(json))
        refuse_value(errors, place, json, "a string");
    else if (strlen(json->valuestring) > max)
        refuse(errors, place, "must have at most %zu bytes, not %zu", max,
               strlen(json->valuestring));
    else if (field->flags & FLEET_NOT_EMPTY && !json->valuestring[0])
        refuse(errors, place, "must not be empty");
    else if (field->pattern && !matches(field->pattern, json->valuestring))
        refuse_value(errors, place, json, field->pattern_words);
    else
        *out = copy_text(json->valuestring);
}

/* The index of `text` among the choices, or -1. */
static int find_choice(const struct fleet_field *field, const char *text)
{
    for (int i = 0; field->choices[i]; i++)
        if (strcmp(field->choices[i], text) == 0)
            return i;
    return -1;
}

/* A word that is no choice: list them, and the nearest. */
static void refuse_choice(const struct fleet_field *field, const cJSON *json,
                          const struct place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0};
    const char *nearest = NULL;
    size_t count = 0;

    while (field->choices[count])
        count++;
    if (cJSON_IsString(json))
        nearest = fleet_closest_word(json->valuestring, field->choices, count);
    fleet_field_allowed(field, &wanted);
    if (nearest && nearest[0])
        refuse(errors, place, "\"%.*s\" is unknown; did you mean \"%s\"? Must be %s", SHOWN_MAX,
               json->valuestring, nearest, wanted.text);
    else
        refuse_value(errors, place, json, wanted.text);
}

static void decode_enum(const struct fleet_field *field, const cJSON *json, int *out,
                        const struct place *place, struct fleet_errors *errors)
{
    int choice = cJSON_IsString(json) ? find_choice(field, json->valuestring) : -1;

    if (choice < 0)
        refuse_choice(field, json, place, errors);
    else
        *out = choice;
}

static void decode_int_or_choice(const struct fleet_field *field, const cJSON *json, int64_t *out,
                                 const struct place *place, struct fleet_errors *errors)
{
    int choice = cJSON_IsString(json) ? find_choice(field, json->valuestring) : -1;

    if (choice >= 0)
        *out = -1 - (int64_t)choice;
    else if (cJSON_IsNumber(json))
        decode_int(field, json, out, place, errors);
    else
        refuse_choice(field, json, place, errors);
}

static void decode_seed(const cJSON *json, uint64_t *out, const struct place *place,
                        struct fleet_errors *errors)
{
    int64_t value;

    if (cJSON_IsNumber(json)) {
        if (json->valuedouble > EXACT_MAX)
            refuse(errors, place, "integers above 2^53 - 1 must be written as a string of digits");
        else if (fleet_json_item_int(json, &value) < 0 || value < 0)
            refuse_value(errors, place, json, "an integer of at least 0");
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
    refuse_value(errors, place, json, "an integer from 0 to 2^64 - 1");
}

static void decode_time(const cJSON *json, int64_t *out, const struct place *place,
                        struct fleet_errors *errors)
{
    if (!cJSON_IsString(json) || fleet_rfc3339_parse(json->valuestring, out) < 0)
        refuse_value(errors, place, json, "a time as in 2026-01-31T12:00:00Z");
}

static void decode_json(const struct fleet_field *field, const cJSON *json, cJSON **out,
                        const struct place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_FREE char *text = NULL;

    if (!cJSON_IsObject(json) && !(field->flags & FLEET_ANY_JSON && cJSON_IsArray(json))) {
        refuse_value(errors, place, json, "an object");
        return;
    }
    text = fleet_json_print(json);
    if (strlen(text) > fleet_field_count_max(field)) {
        refuse(errors, place, "must have at most %zu bytes of JSON, not %zu",
               fleet_field_count_max(field), strlen(text));
        return;
    }
    *out = cJSON_Duplicate(json, 1);
    fleet_assert(*out != NULL);
}

/* ---- decode -------------------------------------------------------------------------------- */

static void decode_object(const struct fleet_object *type, const cJSON *json, char *out,
                          const struct place *place, struct fleet_errors *errors);

size_t fleet_field_item_size(const struct fleet_field *field)
{
    switch (field->item) {
    case FLEET_FIELD_BOOL:
        return sizeof(bool);
    case FLEET_FIELD_ENUM:
        return sizeof(int);
    case FLEET_FIELD_INT:
    case FLEET_FIELD_INT_OR_CHOICE:
    case FLEET_FIELD_SEED:
    case FLEET_FIELD_TIME:
        return sizeof(int64_t);
    case FLEET_FIELD_NUMBER:
        return sizeof(double);
    case FLEET_FIELD_STRING:
        return sizeof(char *);
    case FLEET_FIELD_JSON:
        return sizeof(cJSON *);
    case FLEET_FIELD_OBJECT:
        return field->object->size;
    case FLEET_FIELD_LIST:
    case FLEET_FIELD_MAP:
    case FLEET_FIELD_INT_MAP:
        break;
    }
    fleet_assert(!"lists of lists or maps have no C type");
    return 0;
}

/* A scalar or an object at `out`, whether a member or a list element. */
static void decode_item(const struct fleet_field *field, enum fleet_field_kind kind,
                        const cJSON *json, void *out, const struct place *place,
                        struct fleet_errors *errors)
{
    switch (kind) {
    case FLEET_FIELD_BOOL:
        if (cJSON_IsBool(json))
            *(bool *)out = cJSON_IsTrue(json);
        else
            refuse_value(errors, place, json, "true or false");
        break;
    case FLEET_FIELD_INT:
        decode_int(field, json, out, place, errors);
        break;
    case FLEET_FIELD_NUMBER:
        decode_number(field, json, out, place, errors);
        break;
    case FLEET_FIELD_STRING:
        decode_string(field, json, out, place, errors);
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
        decode_object(field->object, json, out, place, errors);
        break;
    case FLEET_FIELD_LIST:
    case FLEET_FIELD_MAP:
    case FLEET_FIELD_INT_MAP:
        fleet_assert(!"not an item");
    }
}

static bool check_count(const struct fleet_field *field, size_t count, const struct place *place,
                        struct fleet_errors *errors)
{
    size_t max = fleet_field_count_max(field);

    if (count > max)
        refuse(errors, place, "must have at most %zu entries, not %zu", max, count);
    else if (count == 0 && field->flags & FLEET_NOT_EMPTY)
        refuse(errors, place, "must not be empty");
    else
        return true;
    return false;
}

static void decode_list(const struct fleet_field *field, const cJSON *json, struct any_list *out,
                        const struct place *place, struct fleet_errors *errors)
{
    size_t size = fleet_field_item_size(field), count = (size_t)cJSON_GetArraySize(json);
    const cJSON *element;

    if (!cJSON_IsArray(json)) {
        refuse_value(errors, place, json, "a list");
        return;
    }
    if (!check_count(field, count, place, errors) || count == 0)
        return;
    out->items = calloc(count, size);
    fleet_assert(out->items != NULL);
    cJSON_ArrayForEach(element, json)
    {
        struct place here = {.up = place, .index = out->count};
        decode_item(field, field->item, element, (char *)out->items + out->count * size, &here,
                    errors);
        out->count++;
    }
}

static void decode_map(const struct fleet_field *field, const cJSON *json,
                       struct fleet_string_map *out, const struct place *place,
                       struct fleet_errors *errors)
{
    size_t count = (size_t)cJSON_GetArraySize(json);
    const cJSON *entry;

    if (!cJSON_IsObject(json)) {
        refuse_value(errors, place, json, "an object of strings");
        return;
    }
    if (!check_count(field, count, place, errors) || count == 0)
        return;
    out->items = calloc(count, sizeof(*out->items));
    fleet_assert(out->items != NULL);
    cJSON_ArrayForEach(entry, json)
    {
        struct place here = {.up = place, .name = entry->string};
        if (!cJSON_IsString(entry)) {
            refuse_value(errors, &here, entry, "a string");
            continue;
        }
        out->items[out->count].key = copy_text(entry->string);
        out->items[out->count++].value = copy_text(entry->valuestring);
    }
}

static void decode_int_map(const struct fleet_field *field, const cJSON *json,
                           struct fleet_int_map *out, const struct place *place,
                           struct fleet_errors *errors)
{
    size_t count = (size_t)cJSON_GetArraySize(json);
    const cJSON *entry;

    if (!cJSON_IsObject(json)) {
        refuse_value(errors, place, json, "an object of integers");
        return;
    }
    if (!check_count(field, count, place, errors) || count == 0)
        return;
    out->items = calloc(count, sizeof(*out->items));
    fleet_assert(out->items != NULL);
    cJSON_ArrayForEach(entry, json)
    {
        struct place here = {.up = place, .name = entry->string};
        decode_int(field, entry, &out->items[out->count].value, &here, errors);
        out->items[out->count++].key = copy_text(entry->string);
    }
}

static void decode_member(const struct fleet_field *field, const cJSON *json, void *member,
                          const struct place *place, struct fleet_errors *errors)
{
    if (field->kind == FLEET_FIELD_LIST)
        decode_list(field, json, member, place, errors);
    else if (field->kind == FLEET_FIELD_MAP)
        decode_map(field, json, member, place, errors);
    else if (field->kind == FLEET_FIELD_INT_MAP)
        decode_int_map(field, json, member, place, errors);
    else
        decode_item(field, field->kind, json, member, place, errors);
}

/* The value of a field that is not given. */
static void set_absent(const struct fleet_field *field, void *member)
{
    if (field->default_text) {
        FLEET_AUTO_JSON cJSON *json = cJSON_Parse(field->default_text);
        struct fleet_errors errors = {0};
        fleet_assert(json != NULL);
        decode_member(field, json, member, NULL, &errors);
        fleet_assert(errors.count == 0); /* a default within its own limits */
    } else if (field->kind == FLEET_FIELD_INT || field->kind == FLEET_FIELD_INT_OR_CHOICE) {
        *(int64_t *)member = (int64_t)field->unset;
    } else if (field->kind == FLEET_FIELD_NUMBER) {
        *(double *)member = field->unset;
    } else if (field->kind == FLEET_FIELD_OBJECT && !field->presence) {
        fleet_object_init(field->object, member);
    }
}

const struct fleet_field *fleet_object_field(const struct fleet_object *type, const char *name)
{
    for (const struct fleet_field *field = type->fields; field->name; field++)
        if (strcmp(field->name, name) == 0)
            return field;
    return NULL;
}

uint32_t fleet_object_choice(const struct fleet_object *type, const void *object)
{
    const struct fleet_field *field;

    if (!type->discriminator)
        return UINT32_MAX;
    field = fleet_object_field(type, type->discriminator);
    return UINT32_C(1) << *(const int *)((const char *)object + field->offset);
}

bool fleet_field_belongs(const struct fleet_field *field, uint32_t choice)
{
    return field->only == 0 || (field->only & choice) != 0;
}

/* Read the discriminator alone, so that the fields it rules are judged by it wherever they stand.
 * All bits if it cannot be read: its own error is enough. */
static uint32_t read_discriminator(const struct fleet_object *type, const cJSON *json, char *out)
{
    const struct fleet_field *field;
    const cJSON *item;
    int choice;

    if (!type->discriminator)
        return UINT32_MAX;
    field = fleet_object_field(type, type->discriminator);
    item = cJSON_GetObjectItemCaseSensitive(json, field->name);
    if (is_absent(item)) {
        set_absent(field, out + field->offset);
        return field->default_text ? fleet_object_choice(type, out) : UINT32_MAX;
    }
    choice = cJSON_IsString(item) ? find_choice(field, item->valuestring) : -1;
    return choice < 0 ? UINT32_MAX : UINT32_C(1) << choice;
}

/* A key that the table does not know. */
static void refuse_key(const struct fleet_object *type, uint32_t mask, const char *key,
                       const struct place *place, struct fleet_errors *errors)
{
    struct place here = {.up = place, .name = key};
    const char *names[CANDIDATE_MAX], *nearest;
    size_t count = 0;

    for (const struct fleet_field *f = type->fields; f->name && count < CANDIDATE_MAX; f++)
        if (fleet_field_belongs(f, mask))
            names[count++] = f->name;
    nearest = fleet_closest_word(key, names, count);
    if (nearest)
        refuse(errors, &here, "unknown field; did you mean \"%s\"?", nearest);
    else
        refuse(errors, &here, "unknown field of %s", type->name);
}

/* A key that another choice of the discriminator would have. */
static void refuse_foreign(const struct fleet_object *type, uint32_t mask,
                           const struct fleet_field *field, const struct place *place,
                           struct fleet_errors *errors)
{
    const struct fleet_field *by = fleet_object_field(type, type->discriminator);
    FLEET_AUTO_STRBUF struct fleet_strbuf theirs = {0}, ours = {0};
    const char *chosen = "";

    for (int i = 0; by->choices[i]; i++) {
        if (mask == UINT32_C(1) << i)
            chosen = by->choices[i];
        if (field->only & UINT32_C(1) << i)
            fleet_strbuf_appendf(&theirs, "%s%s", theirs.length ? ", " : "", by->choices[i]);
    }
    for (const struct fleet_field *f = type->fields; f->name; f++)
        if (f->only && fleet_field_belongs(f, mask))
            fleet_strbuf_appendf(&ours, "%s%s", ours.length ? ", " : "", f->name);
    refuse(errors, place, "belongs to %s %s, not to %s%s%s",
           strcmp(by->name, "name") == 0 ? type->name : by->name, fleet_strbuf_text(&theirs),
           chosen, ours.length ? ", which has " : "", fleet_strbuf_text(&ours));
}

static void decode_field(const struct fleet_field *field, const cJSON *item, char *out,
                         const struct place *place, struct fleet_errors *errors)
{
    if (!is_absent(item)) {
        if (field->presence)
            *(bool *)(out + field->presence - 1) = true;
        /* Fields of an unset kind hold that value until a good one is read. */
        if (field->kind == FLEET_FIELD_INT || field->kind == FLEET_FIELD_NUMBER ||
            field->kind == FLEET_FIELD_INT_OR_CHOICE)
            set_absent(field, out + field->offset);
        decode_member(field, item, out + field->offset, place, errors);
        return;
    }
    set_absent(field, out + field->offset);
    if (field->flags & FLEET_REQUIRED)
        refuse(errors, place, "required");
    else if (field->kind == FLEET_FIELD_OBJECT && !field->presence) {
        fleet_object_release(field->object, out + field->offset);
        decode_object(field->object, NULL, out + field->offset, place, errors);
    }
}

/* Nobody knows which choice's fields are missing while the choice itself is wrong. */
static bool is_owed(const struct fleet_field *field, uint32_t mask)
{
    return field->only == 0 || mask != UINT32_MAX;
}

static void decode_object(const struct fleet_object *type, const cJSON *json, char *out,
                          const struct place *place, struct fleet_errors *errors)
{
    const cJSON *item;
    uint32_t mask;

    memset(out, 0, type->size);
    if (!is_absent(json) && !cJSON_IsObject(json)) {
        refuse_value(errors, place, json, "an object");
        return;
    }
    mask = read_discriminator(type, json, out);
    for (const struct fleet_field *field = type->fields; field->name; field++) {
        struct place here = {.up = place, .name = field->name};
        item = cJSON_GetObjectItemCaseSensitive(json, field->name);
        if (fleet_field_belongs(field, mask) && (!is_absent(item) || is_owed(field, mask)))
            decode_field(field, item, out, &here, errors);
        else if (!is_absent(item))
            refuse_foreign(type, mask, field, &here, errors);
    }
    for (item = json && !type->open ? json->child : NULL; item; item = item->next)
        if (!fleet_object_field(type, item->string))
            refuse_key(type, mask, item->string, place, errors);
}

void fleet_object_init(const struct fleet_object *type, void *out)
{
    uint32_t mask;

    memset(out, 0, type->size);
    mask = read_discriminator(type, NULL, out);
    for (const struct fleet_field *field = type->fields; field->name; field++)
        if (fleet_field_belongs(field, mask))
            set_absent(field, (char *)out + field->offset);
}

int fleet_object_decode(const struct fleet_object *type, const cJSON *json, const char *path,
                        void *out, struct fleet_errors *errors)
{
    size_t before = errors->count;
    struct place root = {.name = path};

    decode_object(type, json, out, &root, errors);
    return errors->count > before ? -EINVAL : 0;
}
