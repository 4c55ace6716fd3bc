/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decodes lists, maps and objects by their tables. The discriminator of an object is read first,
 * wherever it is in the input, because it decides which other fields are allowed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field_internal.h"
#include "libfleet/base/json_tree.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

#define CANDIDATE_MAX   128 /* number of keys of one object, for "did you mean" */
#define SHOWN_FIELD_MAX 16  /* number of field names in one message */

static bool is_absent(const cJSON *json)
{
    return !json || cJSON_IsNull(json);
}

/* ---- lists and maps -------------------------------------------------------------------------- */

static void decode_object(const struct fleet_object *type, const cJSON *json, char *out,
                          const struct fleet_place *place, struct fleet_errors *errors);

/* Decode a scalar or an object into `out`, a member or a list element. */
static void decode_item(const struct fleet_field *field, enum fleet_field_kind kind,
                        const cJSON *json, void *out, const struct fleet_place *place,
                        struct fleet_errors *errors)
{
    if (kind == FLEET_FIELD_OBJECT)
        decode_object(field->object, json, out, place, errors);
    else
        fleet_field_decode_scalar(field, kind, json, out, place, errors);
}

static bool check_count(const struct fleet_field *field, size_t count,
                        const struct fleet_place *place, struct fleet_errors *errors)
{
    size_t max = fleet_field_count_max(field);

    if (count > max)
        fleet_field_refuse(errors, place, "must have at most %zu entries, not %zu", max, count);
    else if (count == 0 && field->flags & FLEET_NOT_EMPTY)
        fleet_field_refuse(errors, place, "must not be empty");
    else
        return true;
    return false;
}

static void decode_list(const struct fleet_field *field, const cJSON *json, void *member,
                        const struct fleet_place *place, struct fleet_errors *errors)
{
    size_t size = fleet_field_item_size(field), count = (size_t)cJSON_GetArraySize(json);
    struct fleet_any_list list = {0};
    const cJSON *element;

    if (!cJSON_IsArray(json)) {
        fleet_field_refuse_value(errors, place, json, "a list");
        return;
    }
    if (!check_count(field, count, place, errors) || count == 0)
        return;
    list.items = field->flags & FLEET_INLINE ? member : calloc(count, size);
    fleet_assert(list.items != NULL);
    cJSON_ArrayForEach(element, json)
    {
        struct fleet_place here = {.up = place, .index = list.count};
        decode_item(field, field->item, element, (char *)list.items + list.count * size, &here,
                    errors);
        list.count++;
    }
    fleet_field_set_list(field, member, list);
}

/*
 * Allocate zeroed items of `size` bytes, one for each entry of a map. NULL if there is nothing to
 * read: the value is not an object (the error names `wanted`), has too many entries, or is empty.
 */
static void *begin_map(const struct fleet_field *field, const cJSON *json, const char *wanted,
                       size_t size, const struct fleet_place *place, struct fleet_errors *errors)
{
    size_t count = (size_t)cJSON_GetArraySize(json);
    void *items;

    if (!cJSON_IsObject(json)) {
        fleet_field_refuse_value(errors, place, json, wanted);
        return NULL;
    }
    if (!check_count(field, count, place, errors) || count == 0)
        return NULL;
    items = calloc(count, size);
    fleet_assert(items != NULL);
    return items;
}

static void decode_map(const struct fleet_field *field, const cJSON *json,
                       struct fleet_string_map *out, const struct fleet_place *place,
                       struct fleet_errors *errors)
{
    const cJSON *entry;

    out->items = begin_map(field, json, "an object of strings", sizeof(*out->items), place, errors);
    if (!out->items)
        return;
    cJSON_ArrayForEach(entry, json)
    {
        struct fleet_place here = {.up = place, .name = entry->string};
        if (!cJSON_IsString(entry)) {
            fleet_field_refuse_value(errors, &here, entry, "a string");
            continue;
        }
        out->items[out->count].key = fleet_dup_text(entry->string);
        out->items[out->count++].value = fleet_dup_text(entry->valuestring);
    }
}

static void decode_int_map(const struct fleet_field *field, const cJSON *json,
                           struct fleet_int_map *out, const struct fleet_place *place,
                           struct fleet_errors *errors)
{
    const cJSON *entry;

    out->items =
        begin_map(field, json, "an object of integers", sizeof(*out->items), place, errors);
    if (!out->items)
        return;
    cJSON_ArrayForEach(entry, json)
    {
        struct fleet_place here = {.up = place, .name = entry->string};
        fleet_field_decode_scalar(field, FLEET_FIELD_INT, entry, &out->items[out->count].value,
                                  &here, errors);
        out->items[out->count++].key = fleet_dup_text(entry->string);
    }
}

static void decode_member(const struct fleet_field *field, const cJSON *json, void *member,
                          const struct fleet_place *place, struct fleet_errors *errors)
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

/* ---- objects --------------------------------------------------------------------------------- */

/* The value of an absent field. */
static void set_absent(const struct fleet_field *field, void *member)
{
    if (field->default_text && field->kind == FLEET_FIELD_BOOL) {
        *(bool *)member = strcmp(field->default_text, "true") == 0;
    } else if (field->default_text) {
        const char *half;
        FLEET_AUTO_JSON cJSON *json =
            fleet_json_tree(field->default_text, strlen(field->default_text), &half);
        struct fleet_errors errors = {0};
        fleet_assert(json != NULL);
        decode_member(field, json, member, NULL, &errors);
        fleet_assert(errors.count == 0); /* a default is within its limits */
    } else if (field->kind == FLEET_FIELD_INT || field->kind == FLEET_FIELD_INT_OR_CHOICE) {
        *(int64_t *)member = (int64_t)field->unset;
    } else if (field->kind == FLEET_FIELD_STRING && field->flags & FLEET_NEVER_NULL) {
        *(char **)member = fleet_dup_text("");
    } else if (field->kind == FLEET_FIELD_INT32) {
        *(int *)member = (int)field->unset;
    } else if (field->kind == FLEET_FIELD_NUMBER) {
        *(double *)member = field->unset;
    } else if (field->kind == FLEET_FIELD_OBJECT && !field->presence) {
        fleet_object_init(field->object, member);
    }
}

/* The value of the discriminator as a bit. All bits if it cannot be read: then its own error is the
 * only one. */
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
    choice = cJSON_IsString(item) ? fleet_field_choice(field, item->valuestring) : -1;
    return choice < 0 ? UINT32_MAX : UINT32_C(1) << choice;
}

/* The names of the fields, "a, b, c", if there are few. */
static void append_fields(const struct fleet_object *type, uint32_t mask, struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf names = {0};
    size_t count = 0;

    for (const struct fleet_field *f = type->fields; f->name; f++)
        if (fleet_field_belongs(f, mask))
            fleet_strbuf_appendf(&names, "%s%s", count++ ? ", " : "", f->name);
    if (count > 0 && count <= SHOWN_FIELD_MAX)
        fleet_strbuf_append(out, names.text);
}

/* A key that the table does not know. */
static void refuse_key(const struct fleet_object *type, uint32_t mask, const char *key,
                       const struct fleet_place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf all = {0};
    struct fleet_place here = {.up = place, .name = key};
    const char *names[CANDIDATE_MAX], *nearest, *help = fleet_field_help(type->hints, key);
    size_t count = 0;

    for (const struct fleet_field *f = type->fields; f->name && count < CANDIDATE_MAX; f++)
        if (fleet_field_belongs(f, mask))
            names[count++] = f->name;
    nearest = fleet_closest_word(key, names, count);
    append_fields(type, mask, &all);
    if (help)
        fleet_field_refuse_unknown(errors, &here, "unknown field: write %s", help);
    else if (nearest)
        fleet_field_refuse_unknown(errors, &here, "unknown field; did you mean \"%s\"?", nearest);
    else
        fleet_field_refuse_unknown(errors, &here, "unknown field of %s%s%s", type->name,
                                   all.length ? ", which has " : "", fleet_strbuf_text(&all));
}

/* The block that a single word stands for: "cosine" is {name: cosine}, "ck" is {path: ck}. */
static void append_block(const struct fleet_object *type, const char *word,
                         struct fleet_strbuf *out)
{
    const struct fleet_field *by =
        type->discriminator ? fleet_object_field(type, type->discriminator) : NULL;

    if (by && fleet_field_choice(by, word) >= 0) {
        fleet_strbuf_appendf(out, "; write {%s: %s}", by->name, word);
        return;
    }
    for (const struct fleet_field *f = type->fields; f->name && !by; f++)
        if (f->flags & FLEET_PATH && f->flags & FLEET_REQUIRED)
            fleet_strbuf_appendf(out, "; write {%s: %.*s}", f->name, FLEET_SHOWN_MAX, word);
}

/* The value is not an object, as it should be. */
static void refuse_block(const struct fleet_object *type, const cJSON *json,
                         const struct fleet_place *place, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf help = {0}, all = {0}, wanted = {0};

    if (cJSON_IsString(json))
        append_block(type, json->valuestring, &help);
    if (help.length > 0) {
        fleet_field_refuse(errors, place, "must be an object, not \"%.*s\"%s", FLEET_SHOWN_MAX,
                           json->valuestring, help.text);
        return;
    }
    append_fields(type, UINT32_MAX, &all);
    fleet_strbuf_appendf(&wanted, all.length ? "an object (%s)" : "an object%s",
                         fleet_strbuf_text(&all));
    fleet_field_refuse_value(errors, place, json, wanted.text);
}

/* A key that is allowed only with another value of the discriminator. */
static void refuse_foreign(const struct fleet_object *type, uint32_t mask,
                           const struct fleet_field *field, const struct fleet_place *place,
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
    fleet_field_refuse(errors, place, "belongs to %s %s, not to %s%s%s",
                       strcmp(by->name, "name") == 0 ? type->name : by->name,
                       fleet_strbuf_text(&theirs), chosen, ours.length ? ", which has " : "",
                       fleet_strbuf_text(&ours));
}

static void decode_field(const struct fleet_field *field, const cJSON *item, char *out,
                         const struct fleet_place *place, struct fleet_errors *errors)
{
    if (!is_absent(item)) {
        if (field->presence)
            *(bool *)(out + field->presence - 1) = true;
        /* An optional field keeps its unset value until a good one is read. */
        if (field->kind == FLEET_FIELD_INT || field->kind == FLEET_FIELD_INT32 ||
            field->kind == FLEET_FIELD_NUMBER || field->kind == FLEET_FIELD_INT_OR_CHOICE)
            set_absent(field, out + field->offset);
        decode_member(field, item, out + field->offset, place, errors);
        return;
    }
    set_absent(field, out + field->offset);
    if (field->flags & FLEET_REQUIRED && !(item && field->flags & FLEET_NULL))
        fleet_field_refuse(errors, place, "required");
    else if (field->kind == FLEET_FIELD_OBJECT && !field->presence &&
             !(field->flags & FLEET_MAY_MISS)) {
        fleet_object_release(field->object, out + field->offset);
        decode_object(field->object, NULL, out + field->offset, place, errors);
    }
}

/* If the discriminator is wrong, the missing fields are unknown. */
static bool is_owed(const struct fleet_field *field, uint32_t mask)
{
    return field->only == 0 || mask != UINT32_MAX;
}

/* The member `name`. Members are mostly in the order of the table, so the one behind the last that
 * was found, *next, is compared first. */
static const cJSON *find_member(const cJSON *json, const char *name, const cJSON **next)
{
    const cJSON *item = *next;

    if (!item || strcmp(item->string, name) != 0)
        item = cJSON_GetObjectItemCaseSensitive(json, name);
    if (item)
        *next = item->next;
    return item;
}

static void decode_object(const struct fleet_object *type, const cJSON *json, char *out,
                          const struct fleet_place *place, struct fleet_errors *errors)
{
    const cJSON *item, *next = json ? json->child : NULL;
    uint32_t mask;

    memset(out, 0, type->size);
    if (!is_absent(json) && !cJSON_IsObject(json)) {
        refuse_block(type, json, place, errors);
        return;
    }
    mask = read_discriminator(type, json, out);
    for (const struct fleet_field *field = type->fields; field->name; field++) {
        struct fleet_place here = {.up = place, .name = field->name};
        item = find_member(json, field->name, &next);
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
    struct fleet_place root = {.name = path};

    decode_object(type, json, out, &root, errors);
    return errors->count > before ? -EINVAL : 0;
}

int fleet_object_read(const struct fleet_object *type, const cJSON *json, void *out,
                      struct fleet_error *err)
{
    struct fleet_errors errors = {0};
    int rc;

    (void)fleet_object_decode(type, json, "", out, &errors);
    rc = fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (rc < 0)
        fleet_object_release(type, out);
    return rc;
}
