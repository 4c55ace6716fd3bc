/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cJSON accepts more than JSON (numbers like 1e999, broken UTF-8) and keeps both of two equal keys,
 * so a text passes json_scan.c and a search for doubles before a caller sees its tree. It also ends
 * a string at the escape \u0000, which is therefore taken out before.
 */
#include "libfleet/base/json.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/json_scan.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"

#define PATH_MAX_BYTES    512
#define KEYS_COMPARED_MAX 16                 /* in an object, each with each */
#define INTEGER_MAX       9007199254740992.0 /* 2^53: beyond it doubles skip integers */

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

/* Does a member of `object` before `child` have its key? */
static bool is_repeated(const cJSON *object, const cJSON *child)
{
    for (const cJSON *other = object->child; other != child; other = other->next)
        if (strcmp(other->string, child->string) == 0)
            return true;
    return false;
}

/* The first duplicate key of an object anywhere below `item`, or NULL. Depth is bounded. Most
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

bool fleet_json_find_nul(const cJSON *root, struct fleet_strbuf *path)
{
    size_t length = path->length;
    int index = 0;

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

/* A copy of the text with another escape, of the same length, in place of each \u0000. */
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
        i++; /* a backslash may be what is escaped */
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
    const char *end = NULL, *duplicate;

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
    root = cJSON_ParseWithLengthOpts(copy ? copy : text, size, &end, 0);
    if (!root) /* halves of surrogate pairs */
        return refuse_at(text,
                         !end   ? text
                         : copy ? text + (end - copy)
                                : end,
                         "half of a surrogate pair", err);
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

/* One step of a path at *p ("name" or "[3]"), which moves behind it; NULL if there is no such. */
static const cJSON *step_into(const cJSON *at, const char **p)
{
    char name[PATH_MAX_BYTES];
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
    if (length == 0 || length >= sizeof(name))
        return NULL;
    memcpy(name, *p, length);
    name[length] = '\0';
    *p += length;
    return cJSON_IsObject(at) ? cJSON_GetObjectItemCaseSensitive(at, name) : NULL;
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

/* Absent and null are the same to a reader; false means: use the default. */
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
        fabs(item->valuedouble) > INTEGER_MAX)
        return -EINVAL;
    *out = (int64_t)item->valuedouble;
    return 0;
}

const char *fleet_json_float_spelling(const cJSON *item)
{
    return cJSON_IsNumber(item) ? item->valuestring
                                : NULL; /* which cJSON leaves alone, and frees */
}

void fleet_json_set_float_spelling(cJSON *item, const char *text, size_t size)
{
    item->valuestring = strndup(text, size);
    fleet_assert(item->valuestring != NULL);
}

const char *fleet_json_bool_spelling(const cJSON *item)
{
    return cJSON_IsBool(item) ? item->valuestring : NULL; /* which cJSON leaves alone, and frees */
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

/* The next number from `p` on that stands outside of strings; there is one. */
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

/* Numbers of the tree come in the order of the text. Returns where to go on. Depth is bounded. */
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

size_t fleet_utf8_length(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t length = p[0] < 0x80   ? 1
                    : p[0] < 0xc2 ? 0
                    : p[0] < 0xe0 ? 2
                    : p[0] < 0xf0 ? 3
                    : p[0] < 0xf5 ? 4
                                  : 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return length;
}

/* How many bytes from `p` stand for themselves. */
static size_t plain_length(const unsigned char *p)
{
    size_t length = 0;

    while (p[length] >= 0x20 && p[length] < 0x7f && p[length] != '"' && p[length] != '\\')
        length++;
    return length;
}

/* The code point of a valid UTF-8 sequence. */
static unsigned int code_point(const unsigned char *p, size_t length)
{
    unsigned int point = *p;

    if (length == 1)
        return point;
    point &= 0xFFU >> (length + 1);
    for (size_t i = 1; i < length; i++)
        point = point << 6 | (p[i] & 0x3F);
    return point;
}

/* Characters that JSON or YAML does not let stand as they are, or YAML takes for ends of lines. */
static bool needs_escape(unsigned int point)
{
    return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x2028 || point == 0x2029 ||
           point == 0xFEFF || point == 0xFFFE || point == 0xFFFF;
}

static void append_character(struct fleet_strbuf *out, const unsigned char *p, size_t length)
{
    unsigned int point = length ? code_point(p, length) : 0xFFFD;

    if (point == '"' || point == '\\')
        fleet_strbuf_appendf(out, "\\%c", (char)point);
    else if (point == '\n' || point == '\t')
        fleet_strbuf_append(out, point == '\n' ? "\\n" : "\\t");
    else if (needs_escape(point))
        fleet_strbuf_appendf(out, "\\u%04x", point);
    else if (length == 0)
        fleet_strbuf_append(out, "\uFFFD"); /* not UTF-8: the replacement character */
    else
        fleet_strbuf_append_bytes(out, p, length);
}

void fleet_json_append_string(struct fleet_strbuf *out, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;

    fleet_strbuf_append_char(out, '"');
    while (*p) {
        size_t length = plain_length(p);

        if (length > 0) {
            fleet_strbuf_append_bytes(out, p, length);
        } else {
            length = fleet_utf8_length((const char *)p);
            append_character(out, p, length);
        }
        p += length ? length : 1;
    }
    fleet_strbuf_append_char(out, '"');
}

static void append_integer(struct fleet_strbuf *out, double value)
{
    char text[24], *at = text + sizeof(text);
    unsigned long long rest = (unsigned long long)fabs(value);

    do
        *--at = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (signbit(value))
        *--at = '-';
    fleet_strbuf_append_bytes(out, at, (size_t)(text + sizeof(text) - at));
}

/* The shortest text that reads as the same double. A decimal of up to 15 digits comes back from a
 * double as it was, and %g drops the zeros at its end: there is no shorter one to look for. */
void fleet_json_append_number(struct fleet_strbuf *out, double value)
{
    char text[40];

    if (!isfinite(value)) {
        fleet_strbuf_append(out, "null");
        return;
    }
    if (value == floor(value) && fabs(value) <= INTEGER_MAX) {
        append_integer(out, value);
        return;
    }
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fleet_strbuf_append(out, text);
}

void fleet_json_append(struct fleet_strbuf *out, const cJSON *item)
{
    if (cJSON_IsObject(item) || cJSON_IsArray(item)) {
        bool object = cJSON_IsObject(item);
        fleet_strbuf_append_char(out, object ? '{' : '[');
        for (const cJSON *child = item->child; child; child = child->next) {
            if (child != item->child)
                fleet_strbuf_append_char(out, ',');
            if (object) {
                fleet_json_append_string(out, child->string);
                fleet_strbuf_append_char(out, ':');
            }
            fleet_json_append(out, child);
        }
        fleet_strbuf_append_char(out, object ? '}' : ']');
    } else if (cJSON_IsString(item)) {
        fleet_json_append_string(out, item->valuestring);
    } else if (cJSON_IsNumber(item)) {
        fleet_json_append_number(out, item->valuedouble);
    } else {
        fleet_strbuf_append(out, cJSON_IsTrue(item)    ? "true"
                                 : cJSON_IsFalse(item) ? "false"
                                                       : "null");
    }
}

char *fleet_json_print(const cJSON *root)
{
    struct fleet_strbuf out = {0};

    fleet_json_append(&out, root);
    return fleet_strbuf_take(&out);
}

/* The keys of two objects mostly stand in the same order, so the next one is looked at first. */
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

    /* the other bits say whether it owns its value */
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
