/* SPDX-License-Identifier: Apache-2.0 */

/*
 * No check of the grammar is repeated here, so each loop may rely on the token that must come next.
 * Numbers of at most 15 digits and a small power of ten are exact products or quotients of two
 * doubles, so they need no strtod().
 */
#include "libfleet/base/json_tree.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

#define EXACT_DIGITS 15 /* each integer of so many digits is a double, … */
#define EXACT_POWER  22 /* … and so is each power of ten up to this one */

struct builder {
    const char *at, *end;
    const char *half; /* the escape that is half of a surrogate pair; NULL = none */
};

static cJSON *take_value(struct builder *b);

static cJSON *new_item(int type)
{
    cJSON *item = calloc(1, sizeof(*item));

    fleet_assert(item);
    item->type = type;
    return item;
}

static void skip_space(struct builder *b)
{
    while (b->at < b->end && (*b->at == ' ' || *b->at == '\t' || *b->at == '\r' || *b->at == '\n'))
        b->at++;
}

/* Skip white space; is `c` next? Then it is skipped, too. */
static bool take(struct builder *b, char c)
{
    skip_space(b);
    if (b->at == b->end || *b->at != c)
        return false;
    b->at++;
    return true;
}

/* ---- strings --------------------------------------------------------------------------------- */

static unsigned int hex_digits(const char *at)
{
    unsigned int value = 0;

    for (int i = 0; i < 4; i++) {
        char c = at[i];
        value = value << 4 | (unsigned int)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
}

static char *put_utf8(char *out, unsigned int point)
{
    if (point < 0x80) {
        *out++ = (char)point;
        return out;
    }
    if (point >= 0x10000) {
        *out++ = (char)(0xf0 | point >> 18);
        *out++ = (char)(0x80 | (point >> 12 & 0x3f));
    } else if (point >= 0x800) {
        *out++ = (char)(0xe0 | point >> 12);
    }
    *out++ = (char)(point >= 0x800 ? 0x80 | (point >> 6 & 0x3f) : 0xc0 | point >> 6);
    *out++ = (char)(0x80 | (point & 0x3f));
    return out;
}

/* At the u of an escape. Behind its digits afterwards, or behind those of the pair's second. */
static char *take_point(struct builder *b, const char *end, char *out)
{
    const char *start = b->at - 1;
    unsigned int point = hex_digits(b->at + 1), low;

    b->at += 5;
    if (point < 0xd800 || point > 0xdfff)
        return put_utf8(out, point);
    low = end - b->at >= 6 && b->at[0] == '\\' && b->at[1] == 'u' ? hex_digits(b->at + 2) : 0;
    if (point > 0xdbff || low < 0xdc00 || low > 0xdfff) {
        b->half = b->half ? b->half : start;
        return out;
    }
    b->at += 6;
    return put_utf8(out, 0x10000 + ((point & 0x3ff) << 10 | (low & 0x3ff)));
}

/* The string up to `end`, its quote. The result is never longer than its spelling. */
static char *unescape(struct builder *b, const char *end, char *out)
{
    static const char letters[] = "bfnrt", meanings[] = "\b\f\n\r\t";

    while (b->at < end) {
        const char *letter;
        if (*b->at != '\\') {
            *out++ = *b->at++;
            continue;
        }
        b->at++;
        if (*b->at == 'u') {
            out = take_point(b, end, out);
            continue;
        }
        letter = strchr(letters, *b->at);
        *out++ = letter ? meanings[letter - letters] : *b->at;
        b->at++;
    }
    return out;
}

/* At the first quote; behind the last one afterwards. */
static char *take_string(struct builder *b)
{
    const char *start = ++b->at, *end = start;
    bool has_escapes = false;
    char *text, *last;

    while (*end != '"') {
        has_escapes |= *end == '\\';
        end += *end == '\\' ? 2 : 1;
    }
    text = malloc((size_t)(end - start) + 1);
    fleet_assert(text);
    if (has_escapes) {
        last = unescape(b, end, text);
    } else {
        memcpy(text, start, (size_t)(end - start));
        last = text + (end - start);
    }
    *last = '\0';
    b->at = end + 1;
    return text;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_digit(const struct builder *b)
{
    return b->at < b->end && *b->at >= '0' && *b->at <= '9';
}

/* Read digits into *value, and return how many there are. */
static int take_digits(struct builder *b, uint64_t *value)
{
    const char *start = b->at;

    for (; is_digit(b); b->at++)
        *value = *value * 10 + (uint64_t)(*b->at - '0'); /* may wrap: then it is not used */
    return (int)(b->at - start);
}

static int take_exponent(struct builder *b)
{
    uint64_t value = 0;
    bool is_negative;
    int digits;

    if (b->at == b->end || (*b->at != 'e' && *b->at != 'E'))
        return 0;
    b->at++;
    is_negative = *b->at == '-';
    b->at += *b->at == '-' || *b->at == '+';
    digits = take_digits(b, &value);
    if (digits > 4 || value > EXACT_POWER)
        return INT_MAX; /* or smaller: not exact in any case */
    return is_negative ? -(int)value : (int)value;
}

static double read_number(const char *start, const char *end)
{
    char copy[64], *text = copy;
    size_t size = (size_t)(end - start);
    double value;

    if (size >= sizeof(copy)) {
        text = malloc(size + 1);
        fleet_assert(text);
    }
    memcpy(text, start, size);
    text[size] = '\0';
    value = strtod(text, NULL);
    if (text != copy)
        free(text);
    return value;
}

static double take_double(struct builder *b)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *start = b->at;
    uint64_t whole = 0;
    int digits, fraction = 0, power;
    double value;

    b->at += *b->at == '-';
    digits = take_digits(b, &whole);
    if (b->at < b->end && *b->at == '.') {
        b->at++;
        fraction = take_digits(b, &whole);
    }
    power = take_exponent(b);
    if (digits + fraction > EXACT_DIGITS || power == INT_MAX || power - fraction < -EXACT_POWER)
        return read_number(start, b->at);
    power -= fraction;
    value = power < 0 ? (double)whole / powers[-power] : (double)whole * powers[power];
    return *start == '-' ? -value : value;
}

static cJSON *take_number(struct builder *b)
{
    cJSON *item = new_item(cJSON_Number);
    double value = take_double(b);

    item->valuedouble = value;
    item->valueint = value >= INT_MAX ? INT_MAX : value <= INT_MIN ? INT_MIN : (int)value;
    return item;
}

/* ---- objects and lists ----------------------------------------------------------------------- */

/* cJSON's lists know their last element by the first one's `prev`. */
static void append(cJSON *list, cJSON *item)
{
    if (!list->child) {
        list->child = item->prev = item;
        return;
    }
    item->prev = list->child->prev;
    item->prev->next = item;
    list->child->prev = item;
}

/* At the bracket. */
static cJSON *take_list(struct builder *b, bool is_object)
{
    cJSON *list = new_item(is_object ? cJSON_Object : cJSON_Array);
    char close = is_object ? '}' : ']';

    b->at++;
    while (!take(b, close)) {
        char *key = NULL;
        cJSON *item;
        (void)take(b, ',');
        skip_space(b);
        if (is_object) {
            key = take_string(b);
            (void)take(b, ':');
        }
        item = take_value(b);
        item->string = key;
        append(list, item);
    }
    return list;
}

static cJSON *take_word(struct builder *b)
{
    char c = *b->at;
    cJSON *item = new_item(c == 't' ? cJSON_True : c == 'f' ? cJSON_False : cJSON_NULL);

    item->valueint = c == 't';
    b->at += c == 'f' ? 5 : 4;
    return item;
}

static cJSON *take_value(struct builder *b)
{
    cJSON *item;

    skip_space(b);
    switch (*b->at) {
    case '{':
    case '[':
        return take_list(b, *b->at == '{');
    case '"':
        item = new_item(cJSON_String);
        item->valuestring = take_string(b);
        return item;
    case 't':
    case 'f':
    case 'n':
        return take_word(b);
    default:
        return take_number(b);
    }
}

cJSON *fleet_json_tree(const char *text, size_t size, const char **out_half)
{
    struct builder b = {.at = text, .end = text + size};
    cJSON *root;

    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        b.at += 3;
    root = take_value(&b);
    *out_half = b.half;
    if (!b.half)
        return root;
    cJSON_Delete(root);
    return NULL;
}
