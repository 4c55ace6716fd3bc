/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/errors.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"

#define WORD_MAX 64

void fleet_errors_release(struct fleet_errors *errors)
{
    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++) {
        free(errors->items[i].path);
        free(errors->items[i].message);
    }
    free(errors->items);
    *errors = (struct fleet_errors){0};
}

/* Invisible characters: no-break and zero-width spaces, marks of direction, a byte order mark. The
 * code of the one at `c`, and its number of bytes; 0 if there is none. */
static unsigned int invisible_at(const char *c, size_t *out_size)
{
    const unsigned char *b = (const unsigned char *)c;

    *out_size = 2;
    if (b[0] == 0xc2 && b[1] == 0xa0)
        return 0xa0;
    *out_size = 3;
    if (b[0] == 0xe2 && b[1] == 0x80 &&
        ((b[2] >= 0x8b && b[2] <= 0x8f) || (b[2] >= 0xa8 && b[2] <= 0xaf)))
        return 0x2000U + (b[2] & 0x3fU);
    return b[0] == 0xef && b[1] == 0xbb && b[2] == 0xbf ? 0xfeff : 0;
}

/* Takes `text`. */
static char *escape_controls(char *text)
{
    struct fleet_strbuf out = {0};
    unsigned int code;
    size_t size;

    for (const char *c = text; *c; c++) {
        if ((code = invisible_at(c, &size)) != 0) {
            fleet_strbuf_appendf(&out, "\\u%04x", code);
            c += size - 1;
        } else if (*c == '\n')
            fleet_strbuf_append(&out, "\\n");
        else if (iscntrl((unsigned char)*c))
            fleet_strbuf_appendf(&out, "\\x%02x", (unsigned char)*c);
        else
            fleet_strbuf_append_char(&out, *c);
    }
    free(text);
    return fleet_strbuf_take(&out);
}

static void add(struct fleet_errors *errors, const char *path, bool is_unknown, const char *format,
                va_list args)
{
    struct fleet_strbuf message = {0};
    char *copy;

    if (errors->count >= FLEET_ERRORS_MAX) {
        errors->count++;
        return;
    }
    if (!errors->items)
        errors->items = calloc(FLEET_ERRORS_MAX, sizeof(*errors->items));
    fleet_assert(errors->items != NULL);
    fleet_strbuf_appendv(&message, format, args);
    copy = fleet_dup_text(path);
    errors->items[errors->count].path = escape_controls(copy);
    errors->items[errors->count].message = escape_controls(fleet_strbuf_take(&message));
    errors->items[errors->count].is_unknown = is_unknown;
    errors->count++;
}

void fleet_errors_add(struct fleet_errors *errors, const char *path, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add(errors, path, false, format, args);
    va_end(args);
}

void fleet_errors_add_unknown(struct fleet_errors *errors, const char *path, const char *format,
                              ...)
{
    va_list args;

    va_start(args, format);
    add(errors, path, true, format, args);
    va_end(args);
}

void fleet_errors_reword(struct fleet_errors *errors, size_t index, const char *format, ...)
{
    struct fleet_strbuf message = {0};
    va_list args;

    fleet_assert(index < errors->count && index < FLEET_ERRORS_MAX);
    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    free(errors->items[index].message);
    errors->items[index].message = escape_controls(fleet_strbuf_take(&message));
}

static size_t kept_count(const struct fleet_errors *errors)
{
    return errors->count < FLEET_ERRORS_MAX ? errors->count : FLEET_ERRORS_MAX;
}

static bool has(const struct fleet_errors *errors, const char *path, const char *message)
{
    for (size_t i = 0; i < kept_count(errors); i++)
        if (strcmp(errors->items[i].path, path) == 0 &&
            strcmp(errors->items[i].message, message) == 0)
            return true;
    return false;
}

static void copy_item(struct fleet_errors *errors, const struct fleet_errors *from, size_t i)
{
    if (from->items[i].is_unknown)
        fleet_errors_add_unknown(errors, from->items[i].path, "%s", from->items[i].message);
    else
        fleet_errors_add(errors, from->items[i].path, "%s", from->items[i].message);
}

void fleet_errors_merge(struct fleet_errors *errors, const struct fleet_errors *from)
{
    for (size_t i = 0; i < kept_count(from); i++)
        if (!has(errors, from->items[i].path, from->items[i].message))
            copy_item(errors, from, i);
    errors->count += from->count - kept_count(from);
}

void fleet_errors_drop(struct fleet_errors *errors, const char *path, const char *front)
{
    size_t kept = 0, count = kept_count(errors);

    if (errors->count > FLEET_ERRORS_MAX)
        return; /* errors beyond the limit are only counted, so the list does not change */
    for (size_t i = 0; i < count; i++) {
        if (strcmp(errors->items[i].path, path) != 0 ||
            strncmp(errors->items[i].message, front, strlen(front)) != 0) {
            errors->items[kept++] = errors->items[i];
            continue;
        }
        free(errors->items[i].path);
        free(errors->items[i].message);
    }
    errors->count = kept;
}

/* `inner` is `outer`, or lies within it. */
static bool lies_in(const char *inner, const char *outer)
{
    size_t length = strlen(outer);

    return length == 0 || (strncmp(inner, outer, length) == 0 &&
                           (inner[length] == '\0' || inner[length] == '.' || inner[length] == '['));
}

bool fleet_errors_touch(const struct fleet_errors *errors, const char *path)
{
    for (size_t i = 0; i < kept_count(errors); i++)
        if (!errors->items[i].is_unknown &&
            (lies_in(errors->items[i].path, path) || lies_in(path, errors->items[i].path)))
            return true;
    return false;
}

void fleet_errors_append(struct fleet_errors *errors, const struct fleet_errors *from)
{
    for (size_t i = 0; i < kept_count(from); i++)
        copy_item(errors, from, i);
    errors->count += from->count - kept_count(from);
}

static void append_error(const struct fleet_errors *errors, size_t i, struct fleet_strbuf *out)
{
    if (errors->items[i].path[0])
        fleet_strbuf_appendf(out, "%s: ", errors->items[i].path);
    fleet_strbuf_append(out, errors->items[i].message);
}

void fleet_errors_print(const struct fleet_errors *errors, struct fleet_strbuf *out)
{
    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++) {
        append_error(errors, i, out);
        fleet_strbuf_append_char(out, '\n');
    }
    if (errors->count > FLEET_ERRORS_MAX)
        fleet_strbuf_appendf(out, "and %zu more\n", errors->count - FLEET_ERRORS_MAX);
}

int fleet_errors_result(const struct fleet_errors *errors, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (errors->count == 0)
        return 0;
    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++) {
        if (i > 0)
            fleet_strbuf_append(&text, "; ");
        append_error(errors, i, &text);
    }
    return fleet_error(err, -EINVAL, "%s", text.text);
}

/*
 * Lower case without separators, so that learning_rate, learningRate and learning-rate are equal.
 */
static size_t fold(const char *word, char out[WORD_MAX])
{
    size_t n = 0;

    for (; *word && n < WORD_MAX; word++)
        if (*word != '_' && *word != '-')
            out[n++] = (char)tolower((unsigned char)*word);
    return n;
}

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;

    return least < c ? least : c;
}

/* Optimal string alignment distance, keeping three rows of the table. */
static size_t distance(const char *a, size_t a_count, const char *b, size_t b_count)
{
    size_t rows[3][WORD_MAX + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];

    for (size_t j = 0; j <= b_count; j++)
        last[j] = j;
    for (size_t i = 1; i <= a_count; i++) {
        now[0] = i;
        for (size_t j = 1; j <= b_count; j++) {
            now[j] = smallest(last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
        size_t *oldest = before;
        before = last;
        last = now;
        now = oldest;
    }
    return last[b_count];
}

const char *fleet_closest_word(const char *word, const char *const *candidates, size_t count)
{
    char folded[WORD_MAX], other[WORD_MAX];
    const char *best = NULL;
    size_t length, limit, best_distance;

    if (strnlen(word, WORD_MAX + 1) > WORD_MAX)
        return NULL;
    length = fold(word, folded);
    limit = length / 3 > 1 ? length / 3 : 1;
    best_distance = limit + 1;
    for (size_t i = 0; i < count; i++) {
        size_t other_length = fold(candidates[i], other);
        size_t d = distance(folded, length, other, other_length);
        if (d < best_distance) {
            best_distance = d;
            best = candidates[i];
        }
    }
    return best;
}

bool fleet_same_word(const char *a, const char *b)
{
    char folded[2][WORD_MAX];
    size_t length = fold(a, folded[0]);

    return strnlen(a, WORD_MAX + 1) <= WORD_MAX && strnlen(b, WORD_MAX + 1) <= WORD_MAX &&
           fold(b, folded[1]) == length && memcmp(folded[0], folded[1], length) == 0;
}
