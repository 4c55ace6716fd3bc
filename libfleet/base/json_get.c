/* SPDX-License-Identifier: Apache-2.0 */

/* Values of a tree by path, with their types; and the spelling of numbers and booleans. */
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"

#define PATH_MAX_BYTES 512

static const cJSON *find_member(const cJSON *object, const char *name, size_t length)
{
    const cJSON *item = object->child;

    while (item && (item->string[0] != name[0] || strncmp(item->string, name, length) != 0 ||
                    item->string[length] != '\0'))
        item = item->next;
    return item;
}

/* Read one component of a path at *p ("name" or "[3]") and advance *p; NULL if it does not
 * exist. */
static const cJSON *step_into(const cJSON *at, const char **p)
{
    const char *name = *p;
    size_t length;

    if (**p == '[') {
        char *end;
        long index = strtol(*p + 1, &end, 10);
        if (end == *p + 1 || *end != ']' || index < 0 || index > 1000000)
            return NULL;
        *p = end + 1;
        return cJSON_IsArray(at) ? cJSON_GetArrayItem(at, (int)index) : NULL;
    }
    length = strcspn(*p, ".[");
    if (length == 0 || length >= PATH_MAX_BYTES)
        return NULL;
    *p += length;
    return cJSON_IsObject(at) ? find_member(at, name, length) : NULL;
}

const cJSON *fleet_json_at(const cJSON *root, const char *path)
{
    const cJSON *at = root;
    const char *p = path;

    while (at && *p) {
        at = step_into(at, &p);
        if (*p == '.')
            p++;
    }
    return at;
}

/* Absent and null mean the same; false means: use the default. */
static bool is_present(const cJSON *item)
{
    return item && !cJSON_IsNull(item);
}

static int refuse_absent(const char *path, struct fleet_error *err)
{
    return fleet_error(err, -ENOENT, "%s: required, but absent", path);
}

const char *fleet_json_text_at(const cJSON *root, const char *path)
{
    const char *text = "";

    (void)fleet_json_opt_string(root, path, &text, NULL);
    return text;
}

int fleet_json_item_int(const cJSON *item, int64_t *out)
{
    if (!cJSON_IsNumber(item) || item->valuedouble != floor(item->valuedouble) ||
        fabs(item->valuedouble) > FLEET_JSON_INTEGER_MAX)
        return -EINVAL;
    *out = (int64_t)item->valuedouble;
    return 0;
}

const char *fleet_json_float_spelling(const cJSON *item)
{
    return cJSON_IsNumber(item) ? item->valuestring : NULL; /* cJSON only frees it */
}

void fleet_json_set_float_spelling(cJSON *item, const char *text, size_t size)
{
    item->valuestring = strndup(text, size);
    fleet_assert(item->valuestring != NULL);
}

const char *fleet_json_bool_spelling(const cJSON *item)
{
    return cJSON_IsBool(item) ? item->valuestring : NULL; /* cJSON only frees it */
}

void fleet_json_set_bool_spelling(cJSON *item, const char *text)
{
    item->valuestring = fleet_dup_text(text);
}

static bool begins(const char *text, const char *front)
{
    return strncmp(text, front, strlen(front)) == 0;
}

static bool is_number_text(const char *text)
{
    char *end;

    (void)strtod(text, &end);
    return *text && *end == '\0' && !isspace((unsigned char)*text);
}

void fleet_json_append_hint(struct fleet_strbuf *out, const cJSON *item, const char *wanted)
{
    const char *spelling = fleet_json_bool_spelling(item);
    const char *text = cJSON_IsString(item) ? item->valuestring : "";

    if (spelling) {
        fleet_strbuf_appendf(out, " (YAML reads %s as %s", spelling,
                             cJSON_IsTrue(item) ? "true" : "false");
        if (!begins(wanted, "an object") && !begins(wanted, "a list") &&
            !begins(wanted, "an integer") && !begins(wanted, "a finite number"))
            fleet_strbuf_appendf(out, "; quote it: \"%s\"", spelling);
        fleet_strbuf_append(out, ")");
    }
    if (cJSON_IsNumber(item) && begins(wanted, "a string"))
        fleet_strbuf_append(out, "; quote it");
    else if ((begins(wanted, "an integer") || begins(wanted, "a finite number") ||
              begins(wanted, "a number")) &&
             is_number_text(text))
        fleet_strbuf_append(out, "; write it without quotes");
    else if (begins(wanted, "true or false") &&
             (strcmp(text, "true") == 0 || strcmp(text, "false") == 0))
        fleet_strbuf_append(out, "; write it without quotes");
}

/* The next number at or after `p` outside of strings; there is one. */
static const char *next_number(const char *p)
{
    bool in_string = false;

    for (; in_string || (*p != '-' && (*p < '0' || *p > '9')); p++) {
        if (in_string && *p == '\\')
            p++;
        else if (*p == '"')
            in_string = !in_string;
    }
    return p;
}

/* Numbers of the tree come in the order of the text. Returns the position after the last one. The
 * depth is bounded. */
static const char *keep_spellings(cJSON *item, const char *p, const char *end)
{
    size_t size = 0;
    bool is_float = false;

    for (cJSON *child = item->child; child; child = child->next)
        p = keep_spellings(child, p, end);
    if (!cJSON_IsNumber(item))
        return p;
    for (p = next_number(p); p + size < end && p[size] && strchr("+-.eE0123456789", p[size]);
         size++)
        is_float = is_float || p[size] == '.' || p[size] == 'e' || p[size] == 'E';
    if (is_float)
        fleet_json_set_float_spelling(item, p, size);
    return p + size;
}

void fleet_json_keep_float_spellings(cJSON *root, const char *text, size_t size)
{
    (void)keep_spellings(root, text, text + size);
}

int fleet_json_opt_string(const cJSON *root, const char *path, const char **out,
                          struct fleet_error *err)
{
    const cJSON *item = fleet_json_at(root, path);

    if (!is_present(item))
        return 0;
    if (!cJSON_IsString(item))
        return fleet_error(err, -EINVAL, "%s: must be a string", path);
    *out = item->valuestring;
    return 0;
}

int fleet_json_opt_int(const cJSON *root, const char *path, int64_t *out, struct fleet_error *err)
{
    const cJSON *item = fleet_json_at(root, path);

    if (!is_present(item))
        return 0;
    if (fleet_json_item_int(item, out) < 0)
        return fleet_error(err, -EINVAL, "%s: must be an integer within 2^53", path);
    return 0;
}

int fleet_json_opt_number(const cJSON *root, const char *path, double *out, struct fleet_error *err)
{
    const cJSON *item = fleet_json_at(root, path);

    if (!is_present(item))
        return 0;
    if (!cJSON_IsNumber(item))
        return fleet_error(err, -EINVAL, "%s: must be a number", path);
    *out = item->valuedouble;
    return 0;
}

int fleet_json_opt_bool(const cJSON *root, const char *path, bool *out, struct fleet_error *err)
{
    const cJSON *item = fleet_json_at(root, path);

    if (!is_present(item))
        return 0;
    if (!cJSON_IsBool(item))
        return fleet_error(err, -EINVAL, "%s: must be true or false", path);
    *out = cJSON_IsTrue(item);
    return 0;
}

int fleet_json_get_string(const cJSON *root, const char *path, const char **out,
                          struct fleet_error *err)
{
    if (!is_present(fleet_json_at(root, path)))
        return refuse_absent(path, err);
    return fleet_json_opt_string(root, path, out, err);
}

int fleet_json_dup_string(const cJSON *root, const char *path, char **out, struct fleet_error *err)
{
    const char *text;
    int rc = fleet_json_get_string(root, path, &text, err);

    if (rc < 0)
        return rc;
    *out = fleet_dup_text(text);
    return 0;
}

int fleet_json_get_int(const cJSON *root, const char *path, int64_t *out, struct fleet_error *err)
{
    if (!is_present(fleet_json_at(root, path)))
        return refuse_absent(path, err);
    return fleet_json_opt_int(root, path, out, err);
}

int fleet_json_get_number(const cJSON *root, const char *path, double *out, struct fleet_error *err)
{
    if (!is_present(fleet_json_at(root, path)))
        return refuse_absent(path, err);
    return fleet_json_opt_number(root, path, out, err);
}

int fleet_json_get_bool(const cJSON *root, const char *path, bool *out, struct fleet_error *err)
{
    if (!is_present(fleet_json_at(root, path)))
        return refuse_absent(path, err);
    return fleet_json_opt_bool(root, path, out, err);
}
