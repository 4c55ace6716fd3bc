/* SPDX-License-Identifier: Apache-2.0 */

/* Two decoded objects: one made from the other, and are they the same? */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/field_internal.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"

/* ---- copy ----------------------------------------------------------------------------------- */

static void own_text(char **text)
{
    if (!*text)
        return;
    *text = fleet_dup_text(*text);
}

static void *own_items(const void *items, size_t count, size_t size)
{
    void *copy = count > 0 ? malloc(count * size) : NULL;

    fleet_assert(copy != NULL || count == 0);
    if (count > 0)
        memcpy(copy, items, count * size);
    return copy;
}

static void own_object(const struct fleet_object *type, void *object);

/* What it points to belongs to another object: from now on to this one. */
static void own_item(const struct fleet_field *field, enum fleet_field_kind kind, void *item)
{
    cJSON **json = item;

    if (kind == FLEET_FIELD_STRING) {
        own_text(item);
    } else if (kind == FLEET_FIELD_OBJECT) {
        own_object(field->object, item);
    } else if (kind == FLEET_FIELD_JSON) {
        *json = fleet_json_copy(*json);
    }
}

static void own_member(const struct fleet_field *field, void *member)
{
    if (field->kind == FLEET_FIELD_LIST) {
        struct fleet_any_list *list = member;
        size_t size = fleet_field_item_size(field);
        list->items = own_items(list->items, list->count, size);
        for (size_t i = 0; i < list->count; i++)
            own_item(field, field->item, (char *)list->items + i * size);
    } else if (field->kind == FLEET_FIELD_MAP) {
        struct fleet_string_map *map = member;
        map->items = own_items(map->items, map->count, sizeof(*map->items));
        for (size_t i = 0; i < map->count; i++) {
            own_text(&map->items[i].key);
            own_text(&map->items[i].value);
        }
    } else if (field->kind == FLEET_FIELD_INT_MAP) {
        struct fleet_int_map *map = member;
        map->items = own_items(map->items, map->count, sizeof(*map->items));
        for (size_t i = 0; i < map->count; i++)
            own_text(&map->items[i].key);
    } else {
        own_item(field, field->kind, member);
    }
}

static void own_object(const struct fleet_object *type, void *object)
{
    for (const struct fleet_field *field = type->fields; field->name; field++)
        own_member(field, (char *)object + field->offset);
}

void fleet_object_copy(const struct fleet_object *type, const void *from, void *to)
{
    memcpy(to, from, type->size);
    own_object(type, to);
}

/* ---- equality ------------------------------------------------------------------------------- */

static bool are_texts_equal(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool are_items_equal(const struct fleet_field *field, enum fleet_field_kind kind,
                            const void *a, const void *b)
{
    switch (kind) {
    case FLEET_FIELD_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case FLEET_FIELD_ENUM:
        return *(const int *)a == *(const int *)b;
    case FLEET_FIELD_NUMBER:
        return *(const double *)a == *(const double *)b ||
               (isnan(*(const double *)a) && isnan(*(const double *)b));
    case FLEET_FIELD_STRING:
        return are_texts_equal(*(char *const *)a, *(char *const *)b);
    case FLEET_FIELD_JSON: {
        const cJSON *x = *(cJSON *const *)a, *y = *(cJSON *const *)b;
        return x && y ? fleet_json_equal(x, y) : x == y;
    }
    case FLEET_FIELD_OBJECT:
        return fleet_object_equal(field->object, a, b);
    case FLEET_FIELD_INT:
    case FLEET_FIELD_INT_OR_CHOICE:
    case FLEET_FIELD_SEED:
    case FLEET_FIELD_TIME:
        return *(const int64_t *)a == *(const int64_t *)b;
    case FLEET_FIELD_LIST:
    case FLEET_FIELD_MAP:
    case FLEET_FIELD_INT_MAP:
        break;
    }
    fleet_assert(!"not an item");
    return false;
}

static bool are_members_equal(const struct fleet_field *field, const void *a, const void *b)
{
    if (field->kind == FLEET_FIELD_LIST) {
        const struct fleet_any_list *x = a, *y = b;
        size_t size = fleet_field_item_size(field), i = 0;
        while (i < x->count && i < y->count &&
               are_items_equal(field, field->item, (char *)x->items + i * size,
                               (char *)y->items + i * size))
            i++;
        return i == x->count && i == y->count;
    }
    if (field->kind == FLEET_FIELD_MAP) {
        const struct fleet_string_map *x = a, *y = b;
        size_t i = 0;
        while (i < x->count &&
               are_texts_equal(x->items[i].value, fleet_string_map_get(y, x->items[i].key)))
            i++;
        return i == x->count && i == y->count;
    }
    if (field->kind == FLEET_FIELD_INT_MAP) {
        const struct fleet_int_map *x = a, *y = b;
        size_t i = 0;
        while (i < x->count &&
               fleet_int_map_get(y, x->items[i].key, INT64_MIN) == x->items[i].value)
            i++;
        return i == x->count && i == y->count;
    }
    return are_items_equal(field, field->kind, a, b);
}

static bool is_given(const struct fleet_field *field, const char *object)
{
    return !field->presence || *(const bool *)(object + field->presence - 1);
}

bool fleet_object_equal(const struct fleet_object *type, const void *a, const void *b)
{
    uint32_t mask = fleet_object_choice(type, a);
    const char *x = a, *y = b;

    for (const struct fleet_field *field = type->fields; field->name; field++) {
        if (!fleet_field_belongs(field, mask) || (!is_given(field, x) && !is_given(field, y)))
            continue;
        if (is_given(field, x) != is_given(field, y) ||
            !are_members_equal(field, x + field->offset, y + field->offset))
            return false;
    }
    return true;
}
