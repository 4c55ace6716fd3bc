/* SPDX-License-Identifier: Apache-2.0 */

/* The walks over a decoded object: encode, release, paths. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/field_internal.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"

/* ---- encode -------------------------------------------------------------------------------- */

static cJSON *encode_seed(uint64_t seed)
{
    char text[24];

    if ((double)seed <= FLEET_EXACT_MAX)
        return fleet_json_new_number((double)seed);
    (void)snprintf(text, sizeof(text), "%" PRIu64, seed);
    return fleet_json_new_string(text);
}

static cJSON *encode_time(int64_t wall_ms)
{
    char text[FLEET_RFC3339_SIZE];

    if (wall_ms == 0)
        return NULL;
    fleet_rfc3339_format(wall_ms, text);
    return fleet_json_new_string(text);
}

/* NULL: there is nothing to write. */
static cJSON *encode_item(const struct fleet_field *field, enum fleet_field_kind kind,
                          const void *in)
{
    switch (kind) {
    case FLEET_FIELD_BOOL:
        return fleet_json_new_bool(*(const bool *)in);
    case FLEET_FIELD_INT:
        return fleet_json_new_number((double)*(const int64_t *)in);
    case FLEET_FIELD_NUMBER:
        return fleet_json_new_number(*(const double *)in);
    case FLEET_FIELD_STRING:
        return *(char *const *)in ? fleet_json_new_string(*(char *const *)in) : NULL;
    case FLEET_FIELD_ENUM: {
        const char *text = field->choices[*(const int *)in];
        return text[0] ? fleet_json_new_string(text) : NULL;
    }
    case FLEET_FIELD_INT_OR_CHOICE: {
        int64_t value = *(const int64_t *)in;
        return value < 0 ? fleet_json_new_string(field->choices[-1 - value])
                         : fleet_json_new_number((double)value);
    }
    case FLEET_FIELD_SEED:
        return encode_seed(*(const uint64_t *)in);
    case FLEET_FIELD_TIME:
        return encode_time(*(const int64_t *)in);
    case FLEET_FIELD_JSON:
        return fleet_json_copy(*(cJSON *const *)in);
    case FLEET_FIELD_OBJECT:
        return fleet_object_encode(field->object, in);
    case FLEET_FIELD_LIST:
    case FLEET_FIELD_MAP:
    case FLEET_FIELD_INT_MAP:
        break;
    }
    fleet_assert(!"not an item");
    return NULL;
}

static cJSON *encode_list(const struct fleet_field *field, const struct fleet_any_list *list)
{
    size_t size = fleet_field_item_size(field);
    cJSON *json;

    if (list->count == 0)
        return NULL;
    json = fleet_json_new_list();
    for (size_t i = 0; i < list->count; i++)
        fleet_json_add(json, encode_item(field, field->item, (char *)list->items + i * size));
    return json;
}

static cJSON *encode_map(const struct fleet_string_map *map)
{
    cJSON *json;

    if (map->count == 0)
        return NULL;
    json = fleet_json_new_object();
    for (size_t i = 0; i < map->count; i++)
        fleet_json_set(json, map->items[i].key, fleet_json_new_string(map->items[i].value));
    return json;
}

static cJSON *encode_int_map(const struct fleet_int_map *map)
{
    cJSON *json;

    if (map->count == 0)
        return NULL;
    json = fleet_json_new_object();
    for (size_t i = 0; i < map->count; i++)
        fleet_json_set(json, map->items[i].key, fleet_json_new_number((double)map->items[i].value));
    return json;
}

static bool is_unset(const struct fleet_field *field, const void *in)
{
    if (field->kind == FLEET_FIELD_NUMBER && isnan(*(const double *)in))
        return true;
    if (field->default_text || field->flags & FLEET_REQUIRED)
        return false;
    if (field->kind == FLEET_FIELD_INT || field->kind == FLEET_FIELD_INT_OR_CHOICE)
        return *(const int64_t *)in == (int64_t)field->unset;
    if (field->kind == FLEET_FIELD_NUMBER)
        return *(const double *)in == field->unset;
    return false;
}

static cJSON *encode_member(const struct fleet_field *field, const void *in)
{
    if (is_unset(field, in))
        return NULL;
    if (field->kind == FLEET_FIELD_LIST)
        return encode_list(field, in);
    if (field->kind == FLEET_FIELD_MAP)
        return encode_map(in);
    if (field->kind == FLEET_FIELD_INT_MAP)
        return encode_int_map(in);
    return encode_item(field, field->kind, in);
}

cJSON *fleet_object_encode(const struct fleet_object *type, const void *object)
{
    const char *in = object;
    uint32_t mask = fleet_object_choice(type, in);
    cJSON *json = fleet_json_new_object();

    for (const struct fleet_field *field = type->fields; field->name; field++) {
        if (!fleet_field_belongs(field, mask) ||
            (field->presence && !*(const bool *)(in + field->presence - 1)))
            continue;
        fleet_json_set(json, field->name, encode_member(field, in + field->offset));
    }
    return json;
}

/* ---- release and paths --------------------------------------------------------------------- */

static void release_item(const struct fleet_field *field, enum fleet_field_kind kind, void *item)
{
    if (kind == FLEET_FIELD_STRING)
        free(*(char **)item);
    else if (kind == FLEET_FIELD_JSON)
        cJSON_Delete(*(cJSON **)item);
    else if (kind == FLEET_FIELD_OBJECT)
        fleet_object_release(field->object, item);
}

static void release_member(const struct fleet_field *field, void *member)
{
    if (field->kind == FLEET_FIELD_LIST) {
        struct fleet_any_list *list = member;
        for (size_t i = 0; i < list->count; i++)
            release_item(field, field->item,
                         (char *)list->items + i * fleet_field_item_size(field));
        free(list->items);
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

struct path_walk {
    struct fleet_strbuf name; /* of the field that is being looked at */
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
