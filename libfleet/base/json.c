/* SPDX-License-Identifier: Apache-2.0 */

/*
 * json_scan.c checks a text first, json_tree.c builds its tree, and a search for duplicate keys
 * follows before the caller gets it. A string of cJSON ends at the escape \u0000, so that escape is
 * replaced before the tree is built.
 */
#include "libfleet/base/json.h"

#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/json_scan.h"
#include "libfleet/base/json_tree.h"
#include "libfleet/base/map.h"

#define KEYS_COMPARED_MAX 16 /* up to this many keys of an object are compared pairwise */

static void find_position(const char *text, const char *at, int *out_line, int *out_column)
{
    *out_line = *out_column = 1;
    for (const char *p = text; p < at; p++) {
        ++*out_column;
        if (*p == '\n') {
            ++*out_line;
            *out_column = 1;
        }
    }
}

static int refuse_at(const char *text, const char *at, const char *what, struct fleet_error *err)
{
    int line, column;

    find_position(text, at, &line, &column);
    return fleet_error(err, -EINVAL, "line %d, column %d: not JSON: %s", line, column, what);
}

/* Does an earlier member of `object` have the key of `child`? */
static bool is_repeated(const cJSON *object, const cJSON *child)
{
    for (const cJSON *other = object->child; other != child; other = other->next)
        if (other->string[0] == child->string[0] && strcmp(other->string, child->string) == 0)
            return true;
    return false;
}

/* The first duplicate key of an object anywhere below `item`, or NULL. The depth is bounded. Most
 * objects are small, so only large ones get a map of their keys. */
static const char *find_duplicate_key(const cJSON *item)
{
    struct fleet_map seen = {0};
    const char *duplicate = NULL;
    bool is_object = cJSON_IsObject(item), is_small = cJSON_GetArraySize(item) <= KEYS_COMPARED_MAX;

    for (const cJSON *child = item->child; child && !duplicate; child = child->next) {
        if (is_object && (is_small ? is_repeated(item, child)
                                   : !fleet_map_insert(&seen, child->string, (void *)child)))
            duplicate = child->string;
        else if (child->child)
            duplicate = find_duplicate_key(child);
    }
    fleet_map_release(&seen);
    return duplicate;
}

/* ---- NUL ------------------------------------------------------------------------------------- */

static bool has_nul(const cJSON *root)
{
    if (cJSON_IsString(root) && strstr(root->valuestring, FLEET_JSON_NUL))
        return true;
    for (const cJSON *child = root ? root->child : NULL; child; child = child->next)
        if ((child->string && strstr(child->string, FLEET_JSON_NUL)) || has_nul(child))
            return true;
    return false;
}

bool fleet_json_find_nul(const cJSON *root, struct fleet_strbuf *path)
{
    size_t length = path->length;
    int index = 0;

    if (!has_nul(root)) /* the usual case, in which no path is needed */
        return false;
    if (cJSON_IsString(root) && strstr(root->valuestring, FLEET_JSON_NUL))
        return true;
    for (const cJSON *child = root ? root->child : NULL; child; child = child->next) {
        if (child->string)
            fleet_strbuf_appendf(path, "%s%.100s", path->length > 0 ? "." : "", child->string);
        else
            fleet_strbuf_appendf(path, "[%d]", index++);
        if ((child->string && strstr(child->string, FLEET_JSON_NUL)) ||
            fleet_json_find_nul(child, path))
            return true;
        path->length = length;
        path->text[length] = '\0';
    }
    return false;
}

/* A copy of the text with another escape of the same length in place of each \u0000. */
static char *without_nul(const char *text, size_t size)
{
    char *copy = malloc(size + 1);

    fleet_assert(copy);
    memcpy(copy, text, size);
    copy[size] = '\0';
    for (size_t i = 0; i + 6 <= size; i++) {
        if (copy[i] != '\\')
            continue;
        if (memcmp(copy + i, "\\u0000", 6) == 0)
            memcpy(copy + i, "\\uffff", 6);
        i++; /* the backslash may itself be escaped */
    }
    return copy;
}

static int refuse_nul(const cJSON *root, const char *text, const char *at, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    int line, column;

    (void)fleet_json_find_nul(root, &path);
    find_position(text, at, &line, &column);
    return fleet_error(
        err, -EINVAL,
        "line %d, column %d: %.200s%sa NUL character (\\u0000) in a string: leave it out", line,
        column, fleet_strbuf_text(&path), path.length > 0 ? ": " : "");
}

/* ---- parsing --------------------------------------------------------------------------------- */

static int parse(const char *text, size_t size, size_t size_max, bool is_foreign, cJSON **out_root,
                 struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    FLEET_AUTO_FREE char *copy = NULL;
    struct fleet_json_scan_error found;
    const char *half, *duplicate;

    if (size > size_max)
        return fleet_error(err, -EFBIG, "JSON of %zu bytes is larger than the limit of %zu", size,
                           size_max);
    if (memchr(text, '\0', size))
        return refuse_at(text, memchr(text, '\0', size), "a NUL byte", err);
    found = fleet_json_scan(text, size, FLEET_JSON_DEPTH_MAX);
    if (found.what)
        return refuse_at(text, found.at, found.what, err);
    if (found.nul)
        copy = without_nul(text, size);
    root = fleet_json_tree(copy ? copy : text, size, &half);
    if (!root)
        return refuse_at(text, copy ? text + (half - copy) : half, "half of a surrogate pair", err);
    if (found.nul && !is_foreign)
        return refuse_nul(root, text, found.nul, err);
    duplicate = find_duplicate_key(root);
    if (duplicate)
        return fleet_error(err, -EINVAL, "duplicate key \"%.100s\"", duplicate);
    *out_root = root;
    root = NULL;
    return 0;
}

int fleet_json_parse(const char *text, size_t size, size_t size_max, cJSON **out_root,
                     struct fleet_error *err)
{
    return parse(text, size, size_max, false, out_root, err);
}

int fleet_json_parse_foreign(const char *text, size_t size, size_t size_max, cJSON **out_root,
                             struct fleet_error *err)
{
    return parse(text, size, size_max, true, out_root, err);
}

/* Two objects mostly have their keys in the same order, so the next key is compared first. */
static bool are_members_equal(const cJSON *a, const cJSON *b)
{
    const cJSON *next = b->child;

    if (cJSON_GetArraySize(a) != cJSON_GetArraySize(b))
        return false;
    for (const cJSON *item = a->child; item; item = item->next) {
        const cJSON *other = next && strcmp(next->string, item->string) == 0
                                 ? next
                                 : cJSON_GetObjectItemCaseSensitive(b, item->string);
        if (!fleet_json_equal(item, other))
            return false;
        next = other->next;
    }
    return true;
}

bool fleet_json_equal(const cJSON *a, const cJSON *b)
{
    const cJSON *x, *y;

    /* the other bits tell whether it owns its value */
    if (!a || !b || (a->type & 0xFF) != (b->type & 0xFF))
        return false;
    if (cJSON_IsObject(a))
        return are_members_equal(a, b);
    if (cJSON_IsString(a))
        return strcmp(a->valuestring, b->valuestring) == 0;
    if (cJSON_IsNumber(a))
        return a->valuedouble == b->valuedouble;
    for (x = a->child, y = b->child; x && y && fleet_json_equal(x, y); x = x->next, y = y->next)
        ;
    return !x && !y;
}

cJSON *fleet_json_merge_patch(const cJSON *before, const cJSON *after)
{
    cJSON *patch = fleet_json_new_object();

    for (const cJSON *old = before ? before->child : NULL; old; old = old->next)
        if (!cJSON_GetObjectItemCaseSensitive(after, old->string))
            fleet_json_set_null(patch, old->string);
    for (const cJSON *now = after->child; now; now = now->next) {
        const cJSON *old = before ? cJSON_GetObjectItemCaseSensitive(before, now->string) : NULL;
        if (old && fleet_json_equal(old, now))
            continue;
        if (cJSON_IsObject(old) && cJSON_IsObject(now))
            fleet_json_set(patch, now->string, fleet_json_merge_patch(old, now));
        else
            fleet_json_set(patch, now->string, fleet_json_copy(now));
    }
    return patch;
}
