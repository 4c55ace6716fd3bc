/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One loop over the tokens. What is open is one bit a level: set for an object, clear for a list.
 *
 *   VALUE ── scalar, } or ] ──▶ AFTER ── , ──▶ VALUE or KEY        KEY ── string and : ──▶ VALUE
 *   VALUE ── { ──▶ KEY or }     VALUE ── [ ──▶ VALUE or ]          AFTER with nothing open: the end
 */
#include "libfleet/base/json_scan.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json.h"

#define NUMBER_MAX 512 /* longest accepted number, in bytes */

struct scanner {
    const char *at, *end;
    uint64_t objects; /* bit i is set if level i is an object */
    int depth, depth_max;
    const char *what, *where; /* the first thing that is wrong */
    const char *nul;          /* the first \u0000 */
};

static bool refuse(struct scanner *s, const char *at, const char *what)
{
    s->what = what;
    s->where = at;
    return false;
}

static void skip_space(struct scanner *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

/* Never 0 inside the text: a text with NUL bytes has been refused. */
static char peek(const struct scanner *s)
{
    return s->at < s->end ? *s->at : '\0';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/*
 * Bytes of the UTF-8 sequence at `at`, which may be cut off by the end of the text; 0: not valid.
 */
static size_t utf8_length(const struct scanner *s)
{
    char copy[8] = {0};
    size_t left = (size_t)(s->end - s->at);

    memcpy(copy, s->at, left < 4 ? left : 4);
    return fleet_utf8_length(copy);
}

static bool scan_escape(struct scanner *s)
{
    const char *start = s->at++;
    char c = peek(s);

    if (c != 'u') {
        s->at++;
        return (c && strchr("\"\\/bfnrt", c)) || refuse(s, start, "no such escape in a string");
    }
    s->at++;
    for (int i = 0; i < 4; i++, s->at++)
        if (!is_hex(peek(s)))
            return refuse(s, start, "\\u needs four hexadecimal digits");
    if (!s->nul && memcmp(start, "\\u0000", 6) == 0)
        s->nul = start;
    return true;
}

/* Most bytes of a string stand for themselves. */
static void skip_plain(struct scanner *s)
{
    const char *at = s->at, *end = s->end;

    while (at < end && (signed char)*at >= 0x20 && *at != '"' && *at != '\\')
        at++;
    s->at = at;
}

static bool scan_string(struct scanner *s)
{
    const char *start = s->at++;

    for (skip_plain(s); s->at < s->end && *s->at != '"'; skip_plain(s)) {
        unsigned char c = (unsigned char)*s->at;
        size_t length = c >= 0x20 && c < 0x80 ? 1 : utf8_length(s);

        if (length == 0)
            return refuse(s, s->at, "a byte that is not UTF-8");
        if (c < 0x20)
            return refuse(s, s->at, "a control character in a string");
        if (c == '\\') {
            if (!scan_escape(s))
                return false;
        } else {
            s->at += length;
        }
    }
    if (s->at >= s->end)
        return refuse(s, start, "a string that does not end");
    s->at++;
    return true;
}

static bool scan_digits(struct scanner *s, const char *start)
{
    if (!is_digit(peek(s)))
        return refuse(s, start, "not a number");
    while (is_digit(peek(s)))
        s->at++;
    return true;
}

static bool scan_number(struct scanner *s)
{
    const char *start = s->at;
    char copy[NUMBER_MAX + 1];
    bool has_exponent = false;

    if (peek(s) == '-')
        s->at++;
    if (peek(s) == '0' && s->at + 1 < s->end && is_digit(s->at[1]))
        return refuse(s, start, "a number that starts with 0");
    if (!scan_digits(s, start))
        return false;
    if (peek(s) == '.') {
        s->at++;
        if (!scan_digits(s, start))
            return false;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        has_exponent = true;
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (!scan_digits(s, start))
            return false;
    }
    if (s->at - start > NUMBER_MAX)
        return refuse(s, start, "a number of too many digits");
    if (s->at - start < DBL_MAX_10_EXP && !has_exponent)
        return true;
    memcpy(copy, start, (size_t)(s->at - start));
    copy[s->at - start] = '\0';
    return isfinite(strtod(copy, NULL)) || refuse(s, start, "a number out of range (±1.8e308)");
}

static bool scan_word(struct scanner *s)
{
    static const char *const words[] = {"true", "false", "null"};

    for (size_t i = 0; i < FLEET_COUNT(words); i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(s->end - s->at) >= length && memcmp(s->at, words[i], length) == 0) {
            s->at += length;
            return true;
        }
    }
    return refuse(s, s->at,
                  s->at < s->end ? "no value starts like this"
                                 : "the text ends where a value must stand");
}

static bool in_object(const struct scanner *s)
{
    return s->depth > 0 && (s->objects >> (s->depth - 1) & 1);
}

/* "key" : */
static bool scan_key(struct scanner *s)
{
    skip_space(s);
    if (peek(s) != '"')
        return refuse(s, s->at, "a key in quotes must stand here");
    if (!scan_string(s))
        return false;
    skip_space(s);
    if (peek(s) != ':')
        return refuse(s, s->at, "a colon must follow a key");
    s->at++;
    return true;
}

/* Open a level. *out_is_empty: the next token closes it. */
static bool scan_open(struct scanner *s, bool *out_is_empty)
{
    bool is_object = *s->at == '{';

    if (s->depth == s->depth_max)
        return refuse(s, s->at, "nested too deeply");
    s->objects &= ~(UINT64_C(1) << s->depth);
    s->objects |= (uint64_t)is_object << s->depth;
    s->depth++;
    s->at++;
    skip_space(s);
    *out_is_empty = peek(s) == (is_object ? '}' : ']');
    return *out_is_empty || !is_object || scan_key(s);
}

/* A scalar; or the start of an object or a list, up to its first value. */
static bool scan_value(struct scanner *s, bool *out_is_open)
{
    bool is_empty = false;
    char c;

    *out_is_open = false;
    skip_space(s);
    c = peek(s);
    if (c == '{' || c == '[') {
        if (!scan_open(s, &is_empty))
            return false;
        *out_is_open = !is_empty;
        return true;
    }
    if (c == '"')
        return scan_string(s);
    return c == '-' || is_digit(c) ? scan_number(s) : scan_word(s);
}

/* After a value: close the levels that end here. *out_is_done: no level is open. */
static bool scan_after(struct scanner *s, bool *out_is_done)
{
    *out_is_done = false;
    for (;;) {
        skip_space(s);
        if (s->depth == 0) {
            *out_is_done = true;
            return s->at == s->end || refuse(s, s->at, "text after the end of the value");
        }
        if (peek(s) == ',') {
            s->at++;
            return !in_object(s) || scan_key(s);
        }
        if (peek(s) != (in_object(s) ? '}' : ']'))
            return refuse(s, s->at,
                          in_object(s) ? "a comma or } must stand here"
                                       : "a comma or ] must stand here");
        s->at++;
        s->depth--;
    }
}

struct fleet_json_scan_error fleet_json_scan(const char *text, size_t size, int depth_max)
{
    struct scanner s = {.at = text, .end = text + size, .depth_max = depth_max};
    bool is_open, is_done = false;

    fleet_assert(depth_max <= 64);
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        s.at += 3;
    while (!is_done) {
        if (!scan_value(&s, &is_open))
            break;
        if (!is_open && !scan_after(&s, &is_done))
            break;
    }
    return (struct fleet_json_scan_error){
        .what = s.what, .at = s.where, .nul = s.what ? NULL : s.nul};
}
