/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One loop over the tokens; `open` is the path from the root to where we are.
 *
 *   VALUE ── scalar, } or ] ──▶ AFTER ── , ──▶ VALUE or KEY        KEY ── string and : ──▶ VALUE
 *   VALUE ── { ──▶ KEY or }     VALUE ── [ ──▶ VALUE or ]          AFTER with nothing open: the end
 */
#include "libfleet/base/json_read.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"

#define NUMBER_MAX 512 /* bytes of a number; more are only meant to annoy */
#define EXACT_MAX  15  /* decimal digits that any double holds */

struct reader {
    const char *at, *end;
    cJSON *root;
    cJSON *open[JSON_READ_DEPTH_MAX]; /* [depth] lists and objects that are not closed */
    int depth, depth_max;
    char *key;                /* of the value that comes next; NULL = none */
    const char *what, *where; /* the first thing that is wrong */
};

/* A value that has been read, at its place in the tree. */
static void add(struct reader *r, cJSON *item)
{
    cJSON *parent = r->depth > 0 ? r->open[r->depth - 1] : NULL;

    fleet_assert(item != NULL);
    item->string = r->key;
    r->key = NULL;
    if (!parent) {
        r->root = item;
    } else if (!parent->child) {
        parent->child = item->prev = item; /* the first one's `prev` is the last */
    } else {
        item->prev = parent->child->prev;
        item->prev->next = parent->child->prev = item;
    }
}

static bool refuse(struct reader *r, const char *at, const char *what)
{
    r->what = what;
    r->where = at;
    return false;
}

static void skip_space(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n'))
        r->at++;
}

/* Never 0 inside the text: a text with NUL bytes has been refused. */
static char peek(const struct reader *r)
{
    return r->at < r->end ? *r->at : '\0';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Bytes of the sequence at `at`, which may stand at the very end of the text; 0: not valid. */
static size_t utf8_length(const struct reader *r)
{
    char copy[8] = {0};
    size_t left = (size_t)(r->end - r->at);

    memcpy(copy, r->at, left < 4 ? left : 4);
    return fleet_utf8_length(copy);
}

static bool read_escape(struct reader *r)
{
    const char *start = r->at++;
    char c = peek(r);

    if (c != 'u') {
        r->at++;
        return (c && strchr("\"\\/bfnrt", c)) || refuse(r, start, "no such escape in a string");
    }
    r->at++;
    for (int i = 0; i < 4; i++, r->at++)
        if (!is_hex(peek(r)))
            return refuse(r, start, "\\u needs four hexadecimal digits");
    return true;
}

/* To behind the closing quote. */
static bool skip_string(struct reader *r)
{
    const char *start = r->at++;

    while (r->at < r->end && *r->at != '"') {
        unsigned char c = (unsigned char)*r->at;
        size_t length = c >= 0x20 && c < 0x80 ? 1 : utf8_length(r);

        if (length == 0)
            return refuse(r, r->at, "a byte that is not UTF-8");
        if (c < 0x20)
            return refuse(r, r->at, "a control character in a string");
        if (c == '\\') {
            if (!read_escape(r))
                return false;
        } else {
            r->at += length;
        }
    }
    if (r->at >= r->end)
        return refuse(r, start, "a string that does not end");
    r->at++;
    return true;
}

/* The four digits of a \u. */
static unsigned int read_hex(const char *p)
{
    char digits[5] = {p[0], p[1], p[2], p[3]};

    return (unsigned int)strtoul(digits, NULL, 16);
}

static size_t encode_utf8(unsigned int point, char *out)
{
    static const unsigned char heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t size = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;

    for (size_t i = size; i-- > 1; point >>= 6)
        out[i] = (char)(0x80 | (point & 0x3f));
    out[0] = (char)(heads[size] | point);
    return size;
}

/* The escape at *p, which moves behind it; 0: it is half of a pair. */
static size_t decode_escape(const char **p, const char *end, char *out)
{
    static const char names[] = "bfnrt", values[] = "\b\f\n\r\t";
    const char *at = *p + 1, *name = strchr(names, *at);
    unsigned int point, low = 0;

    *p += 2;
    if (*at != 'u') {
        *out = name ? values[name - names] : *at;
        return 1;
    }
    point = read_hex(at + 1);
    *p += 4;
    if (point >= 0xd800 && point < 0xdc00 && end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u') {
        low = read_hex(*p + 2);
        *p += 6;
        if (low < 0xdc00 || low > 0xdfff)
            return 0;
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    return point >= 0xd800 && point < 0xe000 ? 0 : encode_utf8(point, out);
}

/* Its value, heap; NULL if it is refused. */
static char *read_string(struct reader *r)
{
    const char *start = r->at + 1, *end;
    char *text, *to;

    if (!skip_string(r))
        return NULL;
    end = r->at - 1;
    text = to = malloc((size_t)(end - start) + 1); /* an escape is not shorter than what it says */
    fleet_assert(text != NULL);
    for (const char *p = start, *next; p < end; p = next) {
        size_t size;
        next = memchr(p, '\\', (size_t)(end - p));
        size = (size_t)((next ? next : end) - p);
        memcpy(to, p, size);
        to += size;
        if (!next)
            break;
        p = next;
        size = decode_escape(&next, end, to);
        if (size == 0) {
            free(text);
            (void)refuse(r, p, "half of a surrogate pair");
            return NULL;
        }
        to += size;
    }
    *to = '\0';
    return text;
}

static bool read_digits(struct reader *r, const char *start)
{
    if (!is_digit(peek(r)))
        return refuse(r, start, "not a number");
    while (is_digit(peek(r)))
        r->at++;
    return true;
}

/* Shape, then value: short integers are exact without the help of strtod(). */
static bool read_number(struct reader *r)
{
    const char *start = r->at;
    bool is_negative = peek(r) == '-', is_integer = true;
    char copy[NUMBER_MAX + 1];
    double value = 0;

    r->at += is_negative;
    if (peek(r) == '0' && r->at + 1 < r->end && is_digit(r->at[1]))
        return refuse(r, start, "a number that starts with 0");
    if (!read_digits(r, start))
        return false;
    if (peek(r) == '.') {
        is_integer = false;
        r->at++;
        if (!read_digits(r, start))
            return false;
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        is_integer = false;
        r->at++;
        if (peek(r) == '+' || peek(r) == '-')
            r->at++;
        if (!read_digits(r, start))
            return false;
    }
    if (r->at - start > NUMBER_MAX)
        return refuse(r, start, "a number of too many digits");
    if (is_integer && r->at - start <= EXACT_MAX) {
        for (const char *p = start + is_negative; p < r->at; p++)
            value = 10 * value + (*p - '0');
        value = is_negative ? -value : value;
    } else {
        memcpy(copy, start, (size_t)(r->at - start));
        copy[r->at - start] = '\0';
        value = strtod(copy, NULL);
    }
    if (!isfinite(value))
        return refuse(r, start, "a number beyond all limits");
    add(r, cJSON_CreateNumber(value));
    return true;
}

static bool read_word(struct reader *r)
{
    static const char *const words[] = {"true", "false", "null"};

    for (size_t i = 0; i < FLEET_COUNT(words); i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(r->end - r->at) >= length && memcmp(r->at, words[i], length) == 0) {
            r->at += length;
            add(r, i == 0 ? cJSON_CreateTrue() : i == 1 ? cJSON_CreateFalse() : cJSON_CreateNull());
            return true;
        }
    }
    return refuse(r, r->at,
                  r->at < r->end ? "no value starts like this"
                                 : "the text ends where a value must stand");
}

static bool in_object(const struct reader *r)
{
    return r->depth > 0 && r->open[r->depth - 1]->type == cJSON_Object;
}

/* "key" : */
static bool read_key(struct reader *r)
{
    skip_space(r);
    if (peek(r) != '"')
        return refuse(r, r->at, "a key in quotes must stand here");
    r->key = read_string(r);
    if (!r->key)
        return false;
    skip_space(r);
    if (peek(r) != ':')
        return refuse(r, r->at, "a colon must stand behind a key");
    r->at++;
    return true;
}

/* Opens a level; *out_is_empty: it is closed again at once. */
static bool read_open(struct reader *r, bool *out_is_empty)
{
    bool is_object = *r->at == '{';
    cJSON *item;

    if (r->depth == r->depth_max)
        return refuse(r, r->at, "nested too deeply");
    item = is_object ? cJSON_CreateObject() : cJSON_CreateArray();
    add(r, item);
    r->open[r->depth++] = item;
    r->at++;
    skip_space(r);
    *out_is_empty = peek(r) == (is_object ? '}' : ']');
    return *out_is_empty || !is_object || read_key(r);
}

static bool read_text(struct reader *r)
{
    char *text = read_string(r);
    cJSON *item;

    if (!text)
        return false;
    item = cJSON_CreateNull();
    add(r, item);
    item->type = cJSON_String;
    item->valuestring = text;
    return true;
}

/* One value, or as much of it as stands before the first value inside. */
static bool read_value(struct reader *r, bool *out_is_open)
{
    bool is_empty = false;
    char c;

    *out_is_open = false;
    skip_space(r);
    c = peek(r);
    if (c == '{' || c == '[') {
        if (!read_open(r, &is_empty))
            return false;
        *out_is_open = !is_empty;
        return true;
    }
    if (c == '"')
        return read_text(r);
    return c == '-' || is_digit(c) ? read_number(r) : read_word(r);
}

/* Behind a value: close what ends here. *out_is_done: nothing is open any more. */
static bool read_after(struct reader *r, bool *out_is_done)
{
    *out_is_done = false;
    for (;;) {
        skip_space(r);
        if (r->depth == 0) {
            *out_is_done = true;
            return r->at == r->end || refuse(r, r->at, "text after the end of the value");
        }
        if (peek(r) == ',') {
            r->at++;
            return !in_object(r) || read_key(r);
        }
        if (peek(r) != (in_object(r) ? '}' : ']'))
            return refuse(r, r->at,
                          in_object(r) ? "a comma or } must stand here"
                                       : "a comma or ] must stand here");
        r->at++;
        r->depth--;
    }
}

struct json_read_error json_read(const char *text, size_t size, int depth_max, cJSON **out_root)
{
    struct reader r = {.at = text, .end = text + size, .depth_max = depth_max};
    bool is_open, is_done = false;

    fleet_assert(depth_max <= JSON_READ_DEPTH_MAX);
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        r.at += 3;
    while (!is_done) {
        if (!read_value(&r, &is_open))
            break;
        if (!is_open && !read_after(&r, &is_done))
            break;
    }
    if (r.what) {
        cJSON_Delete(r.root);
        free(r.key);
        r.root = NULL;
    }
    *out_root = r.root;
    return (struct json_read_error){.what = r.what, .at = r.where};
}
