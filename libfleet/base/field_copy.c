/* SPDX-License-Identifier: Apache-2.0 */

/* The walks over decoded objects: copy, compare, release, visit the paths. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/field_internal.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

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

/* Its pointers are shared with another object: give it its own copies. */
static void own_item(const struct fleet_field *field, enum fleet_field_kind kind, void *item)
{
    cJSON **json = item;

    struct fleet_any_list *bytes = item;

    if (kind == FLEET_FIELD_STRING) {
        own_text(item);
    } else if (kind == FLEET_FIELD_BASE64) {
        bytes->items = own_items(bytes->items, bytes->count, 1);
    } else if (kind == FLEET_FIELD_OBJECT) {
        own_object(field->object, item);
    } else if (kind == FLEET_FIELD_JSON) {
        *json = fleet_json_copy(*json);
    }
}

static void own_member(const struct fleet_field *field, void *member)
{
    if (field->kind == FLEET_FIELD_LIST) {
        struct fleet_any_list list = fleet_field_list(field, member);
        size_t size = fleet_field_item_size(field);
        if (!(field->flags & FLEET_INLINE))
            list.items = own_items(list.items, list.count, size);
        for (size_t i = 0; i < list.count; i++)
            own_item(field, field->item, (char *)list.items + i * size);
        fleet_field_set_list(field, member, list);
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
    const struct fleet_any_list *x = a, *y = b;

    switch (kind) {
    case FLEET_FIELD_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case FLEET_FIELD_ENUM:
    case FLEET_FIELD_INT32:
        return *(const int *)a == *(const int *)b;
    case FLEET_FIELD_CHARS:
        return strcmp(a, b) == 0;
    case FLEET_FIELD_HEX:
        return memcmp(a, b, field->count_max) == 0;
    case FLEET_FIELD_BASE64:
        return x->count == y->count && (x->count == 0 || memcmp(x->items, y->items, x->count) == 0);
    case FLEET_FIELD_NUMBER:
        return *(const double *)a == *(const double *)b ||
               (isnan(*(const double *)a) && isnan(*(const double *)b));
    case FLEET_FIELD_STRING:
        return are_texts_equal(*(char *const *)a, *(char *const *)b);
    case FLEET_FIELD_JSON: {
        const cJSON *c = *(cJSON *const *)a, *d = *(cJSON *const *)b;
        return c && d ? fleet_json_equal(c, d) : c == d;
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
        struct fleet_any_list x = fleet_field_list(field, a), y = fleet_field_list(field, b);
        size_t size = fleet_field_item_size(field), i = 0;
        while (i < x.count && i < y.count &&
               are_items_equal(field, field->item, (char *)x.items + i * size,
                               (char *)y.items + i * size))
            i++;
        return i == x.count && i == y.count;
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

/* ---- release --------------------------------------------------------------------------------- */

static void release_item(const struct fleet_field *field, enum fleet_field_kind kind, void *item)
{
    if (kind == FLEET_FIELD_STRING || kind == FLEET_FIELD_BASE64)
        free(*(void **)item);
    else if (kind == FLEET_FIELD_JSON)
        cJSON_Delete(*(cJSON **)item);
    else if (kind == FLEET_FIELD_OBJECT)
        fleet_object_release(field->object, item);
}

static void release_member(const struct fleet_field *field, void *member)
{
    if (field->kind == FLEET_FIELD_LIST) {
        struct fleet_any_list list = fleet_field_list(field, member);
        for (size_t i = 0; i < list.count; i++)
            release_item(field, field->item, (char *)list.items + i * fleet_field_item_size(field));
        if (!(field->flags & FLEET_INLINE))
            free(list.items);
    } else if (field->kind == FLEET_FIELD_MAP) {
        struct fleet_string_map *map = member;
        for (size_t i = 0; i < map->count; i++) {
            free(map->items[i].key);
            free(map->items[i].value);
        }
        free(map->items);
    } else if (field->kind == FLEET_FIELD_INT_MAP) {
        struct fleet_int_map *map = member;
        for (size_t i = 0; i < map->count; i++)
            free(map->items[i].key);
        free(map->items);
    } else {
        release_item(field, field->kind, member);
    }
}

void fleet_object_release(const struct fleet_object *type, void *object)
{
    for (const struct fleet_field *field = type->fields; field->name; field++)
        release_member(field, (char *)object + field->offset);
    memset(object, 0, type->size);
}

/* ---- paths ----------------------------------------------------------------------------------- */

struct path_walk {
    struct fleet_strbuf name; /* of the field that is being visited */
    void (*visit)(void *context, const char *name, char **value);
    void *context;
};

static void walk_paths(const struct fleet_object *type, char *object, struct path_walk *walk);

static void cut(struct fleet_strbuf *sb, size_t length)
{
    sb->length = length;
    sb->text[length] = '\0';
}

static void walk_list(const struct fleet_field *field, struct fleet_any_list *list,
                      struct path_walk *walk)
{
    size_t length = walk->name.length;

    for (size_t i = 0; i < list->count; i++) {
        fleet_strbuf_appendf(&walk->name, "[%zu]", i);
        walk_paths(field->object, (char *)list->items + i * field->object->size, walk);
        cut(&walk->name, length);
    }
}

static void walk_paths(const struct fleet_object *type, char *object, struct path_walk *walk)
{
    size_t length = walk->name.length;

    for (const struct fleet_field *field = type->fields; field->name; field++) {
        void *member = object + field->offset;
        fleet_strbuf_appendf(&walk->name, "%s%s", length ? "." : "", field->name);
        if (field->kind == FLEET_FIELD_OBJECT)
            walk_paths(field->object, member, walk);
        else if (field->kind == FLEET_FIELD_LIST && field->item == FLEET_FIELD_OBJECT)
            walk_list(field, member, walk);
        else if (field->flags & FLEET_PATH && *(char **)member && **(char **)member)
            walk->visit(walk->context, fleet_strbuf_text(&walk->name), member);
        cut(&walk->name, length);
    }
}

void fleet_object_paths(const struct fleet_object *type, void *object, const char *path,
                        void (*visit)(void *context, const char *name, char **value), void *context)
{
    struct path_walk walk = {.visit = visit, .context = context};

    fleet_strbuf_append(&walk.name, path);
    walk_paths(type, object, &walk);
    fleet_strbuf_release(&walk.name);
}
