/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Lookups in the tables, for decoders, encoders and generators; and the small maps inside objects.
 */
#include "libfleet/base/field.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/field_internal.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

/* ---- fields ---------------------------------------------------------------------------------- */

bool fleet_field_belongs(const struct fleet_field *field, uint32_t choice)
{
    return field->only == 0 || (field->only & choice) != 0;
}

size_t fleet_field_item_size(const struct fleet_field *field)
{
    switch (field->item) {
    case FLEET_FIELD_BOOL:
        return sizeof(bool);
    case FLEET_FIELD_ENUM:
    case FLEET_FIELD_INT32:
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
    case FLEET_FIELD_CHARS:
    case FLEET_FIELD_HEX:
    case FLEET_FIELD_BASE64:
    case FLEET_FIELD_LIST:
    case FLEET_FIELD_MAP:
    case FLEET_FIELD_INT_MAP:
        break;
    }
    fleet_assert(!"lists of these have no C type");
    return 0;
}

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

/* The address of a list's count. */
static void *list_count(const struct fleet_field *field, void *member)
{
    return (char *)member + (field->flags & FLEET_INLINE
                                 ? field->count_max * fleet_field_item_size(field)
                                 : offsetof(struct fleet_any_list, count));
}

struct fleet_any_list fleet_field_list(const struct fleet_field *field, const void *member)
{
    void *count = list_count(field, (void *)member);
    bool is_int = field->flags & FLEET_INT_COUNT;

    return (struct fleet_any_list){
        .items = field->flags & FLEET_INLINE ? (void *)member : *(void *const *)member,
        .count = is_int ? (size_t) * (int *)count : *(size_t *)count,
    };
}

void fleet_field_set_list(const struct fleet_field *field, void *member, struct fleet_any_list list)
{
    void *count = list_count(field, member);

    if (!(field->flags & FLEET_INLINE))
        *(void **)member = list.items;
    if (field->flags & FLEET_INT_COUNT)
        *(int *)count = (int)list.count;
    else
        *(size_t *)count = list.count;
}

void fleet_field_bounds(const struct fleet_field *field, struct fleet_strbuf *out)
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
        fleet_field_bounds(field, out);
    } else if (field->pattern_words) {
        fleet_strbuf_append(out, field->pattern_words);
    } else {
        fleet_field_bounds(field, out);
    }
}

int fleet_field_choice(const struct fleet_field *field, const char *text)
{
    for (int i = 0; field->choices[i]; i++)
        if (strcmp(field->choices[i], text) == 0)
            return i;
    return -1;
}

const char *fleet_field_help(const struct fleet_hint *hints, const char *word)
{
    for (const struct fleet_hint *hint = hints; word && hint && hint->word; hint++)
        if (strcasecmp(hint->word, word) == 0)
            return hint->help;
    return NULL;
}

/* ---- objects --------------------------------------------------------------------------------- */

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
    fleet_assert(field);
    return UINT32_C(1) << *(const int *)((const char *)object + field->offset);
}

/* ---- maps ------------------------------------------------------------------------------------ */

const char *fleet_string_map_get(const struct fleet_string_map *map, const char *key)
{
    for (size_t i = 0; i < map->count; i++)
        if (strcmp(map->items[i].key, key) == 0)
            return map->items[i].value;
    return NULL;
}

static struct fleet_int_pair *find_pair(const struct fleet_int_map *map, const char *key)
{
    for (size_t i = 0; i < map->count; i++)
        if (strcmp(map->items[i].key, key) == 0)
            return &map->items[i];
    return NULL;
}

int64_t fleet_int_map_get(const struct fleet_int_map *map, const char *key, int64_t otherwise)
{
    const struct fleet_int_pair *pair = find_pair(map, key);

    return pair ? pair->value : otherwise;
}

void fleet_int_map_set(struct fleet_int_map *map, const char *key, int64_t value)
{
    struct fleet_int_pair *pair = find_pair(map, key);

    if (!pair) {
        map->items = fleet_grow(map->items, map->count, sizeof(*map->items));
        pair = &map->items[map->count++];
        pair->key = fleet_dup_text(key);
    }
    pair->value = value;
}
