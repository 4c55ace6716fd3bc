/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The syntax: one function for each production. Values go into a copy, which replaces the strategy
 * only after the whole text was read.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/strategy/prototxt_lexer.h"

#define SHOWN_MAX 64 /* number of bytes of a token in an error */

struct parser {
    struct prototxt_lexer lexer;
    struct fleet_error *err;
};

/* ---- small tools --------------------------------------------------------------------------- */

static int advance(struct parser *p)
{
    return prototxt_lexer_advance(&p->lexer, p->err);
}

static int shown_length(const struct prototxt_token *token)
{
    return token->length < SHOWN_MAX ? (int)token->length : SHOWN_MAX;
}

/* Fail at a token with "<text><token>"; the end of the file also has a name. */
static int fail_got(struct parser *p, const struct prototxt_token *at, const char *wanted)
{
    const struct prototxt_token *got = &p->lexer.token;

    if (got->kind == PROTOTXT_END)
        return prototxt_lexer_error(&p->lexer, at, p->err, "%send of file", wanted);
    return prototxt_lexer_error(&p->lexer, at, p->err, "%s%.*s", wanted, shown_length(got),
                                got->text);
}

static int expect(struct parser *p, char symbol)
{
    const struct prototxt_token *got = &p->lexer.token;

    if (prototxt_lexer_at(&p->lexer, symbol))
        return advance(p);
    if (got->kind == PROTOTXT_END)
        return prototxt_lexer_error(&p->lexer, got, p->err, "Expected \"%c\", found end of file.",
                                    symbol);
    return prototxt_lexer_error(&p->lexer, got, p->err, "Expected \"%c\", found \"%.*s\".", symbol,
                                shown_length(got), got->text);
}

static bool is_word(const struct prototxt_token *token, const char *word)
{
    return token->kind == PROTOTXT_WORD && strlen(word) == token->length &&
           strncmp(token->text, word, token->length) == 0;
}

static bool is_integer(const struct prototxt_token *token)
{
    return token->kind == PROTOTXT_DECIMAL || token->kind == PROTOTXT_OCTAL ||
           token->kind == PROTOTXT_HEX;
}

/* An integer token's value, saturated at UINT64_MAX. */
static uint64_t integer_value(const struct prototxt_token *token)
{
    char digits[80];
    size_t length = token->length;

    if (length >= sizeof(digits)) {
        /* Too long for a 64-bit number, unless it begins with many zeros, as only octal numbers
         * may. */
        for (size_t i = 0; i + 24 < length; i++)
            if (token->text[i] != '0')
                return UINT64_MAX;
        memcpy(digits, token->text + length - 24, 24);
        digits[24] = '\0';
        digits[0] = '0';
        return strtoull(digits, NULL, 8);
    }
    memcpy(digits, token->text, length);
    digits[length] = '\0';
    errno = 0;
    return strtoull(digits, NULL,
                    token->kind == PROTOTXT_HEX     ? 16
                    : token->kind == PROTOTXT_OCTAL ? 8
                                                    : 10);
}

/* ---- values -------------------------------------------------------------------------------- */

static int parse_bool(struct parser *p, const struct knob_field *field, bool *out)
{
    static const char *const yes[] = {"true", "True", "t"}, *const no[] = {"false", "False", "f"};
    const struct prototxt_token *token = &p->lexer.token;

    for (size_t i = 0; i < 3; i++)
        if (is_word(token, yes[i]) || is_word(token, no[i])) {
            *out = is_word(token, yes[i]);
            return advance(p);
        }
    if (is_integer(token) && integer_value(token) <= 1) {
        *out = integer_value(token) == 1;
        return advance(p);
    }
    return prototxt_lexer_error(&p->lexer, token, p->err,
                                "Invalid value for boolean field \"%s\". Value: \"%.*s\".",
                                field->name, shown_length(token), token->text);
}

/* Accept a minus sign, if there is one. *out_start is the value's first token, for errors. */
static int parse_sign(struct parser *p, bool *out_minus, struct prototxt_token *out_start)
{
    *out_start = p->lexer.token;
    *out_minus = prototxt_lexer_at(&p->lexer, '-');
    return *out_minus ? advance(p) : 0;
}

static int parse_int(struct parser *p, int32_t *out)
{
    struct prototxt_token start;
    uint64_t value;
    bool minus;
    int code = parse_sign(p, &minus, &start);

    if (code < 0)
        return code;
    if (!is_integer(&p->lexer.token))
        return fail_got(p, &start, "Expected integer, got: ");
    value = integer_value(&p->lexer.token);
    if (value > (minus ? 2147483648U : 2147483647U))
        return prototxt_lexer_error(&p->lexer, &start, p->err, "Integer out of range (%s%.*s)",
                                    minus ? "-" : "", shown_length(&p->lexer.token),
                                    p->lexer.token.text);
    *out = (int32_t)(minus ? -(int64_t)value : (int64_t)value);
    return advance(p);
}

/* "inf", "infinity", "nan" in any case. */
static bool float_word(const struct prototxt_token *token, double *out)
{
    if (token->kind != PROTOTXT_WORD)
        return false;
    if ((token->length == 3 && strncasecmp(token->text, "inf", 3) == 0) ||
        (token->length == 8 && strncasecmp(token->text, "infinity", 8) == 0))
        *out = INFINITY;
    else if (token->length == 3 && strncasecmp(token->text, "nan", 3) == 0)
        *out = NAN;
    else
        return false;
    return true;
}

static int parse_float(struct parser *p, float *out)
{
    const struct prototxt_token *token = &p->lexer.token;
    FLEET_AUTO_STRBUF struct fleet_strbuf digits = {0};
    struct prototxt_token start;
    double value;
    bool minus;
    int code = parse_sign(p, &minus, &start);

    if (code < 0)
        return code;
    if (token->kind == PROTOTXT_DECIMAL || token->kind == PROTOTXT_FLOAT) {
        fleet_strbuf_append_bytes(&digits, token->text, token->length);
        value = strtod(digits.text, NULL); /* stops before a suffix f */
    } else if (!float_word(token, &value)) {
        return fail_got(p, &start, "Expected double, got: ");
    }
    *out = (float)(minus ? -value : value); /* out of range becomes inf */
    return advance(p);
}

static int parse_mode(struct parser *p, const struct knob_field *field, int32_t *out)
{
    const struct prototxt_token token = p->lexer.token;
    char name[16] = {0};
    int mode = 0;

    if (token.kind == PROTOTXT_WORD && token.length < sizeof(name)) {
        memcpy(name, token.text, token.length);
        mode = knob_mode_number(name);
    } else if (is_integer(&token) && integer_value(&token) <= 4) {
        mode = (int)integer_value(&token);
    }
    if (mode == 0)
        return prototxt_lexer_error(&p->lexer, &token, p->err,
                                    "Unknown enumeration value of \"%.*s\" for field \"%s\".",
                                    shown_length(&token), token.text, field->name);
    *out = mode;
    return advance(p);
}

/* The name of an enum's value, or its number. */
static int parse_word(struct parser *p, const struct knob_field *field, char **out)
{
    const struct prototxt_token token = p->lexer.token;
    char name[64] = {0}, word[64];
    const char *found = NULL;

    if (token.kind == PROTOTXT_WORD && token.length < sizeof(name)) {
        memcpy(name, token.text, token.length);
        if (knob_word_number(field, name) >= 0)
            found = name;
    } else if (is_integer(&token) && integer_value(&token) <= INT32_MAX) {
        found = knob_word_name(field, (int)integer_value(&token), word);
    }
    if (!found)
        return prototxt_lexer_error(&p->lexer, &token, p->err,
                                    "Unknown enumeration value of \"%.*s\" for field \"%s\".",
                                    shown_length(&token), token.text, field->name);
    knob_set_string(out, found);
    return advance(p);
}

/* Adjacent strings are one value. Errors about it give the position after it, as Paddle's reader
 * does. */
static int parse_string(struct parser *p, struct fleet_strbuf *out)
{
    int code = 0;

    if (p->lexer.token.kind != PROTOTXT_STRING)
        return fail_got(p, &p->lexer.token, "Expected string, got: ");
    fleet_strbuf_append(out, "");
    while (p->lexer.token.kind == PROTOTXT_STRING && code == 0) {
        code = prototxt_unescape(&p->lexer, &p->lexer.token, out, p->err);
        if (code == 0)
            code = advance(p);
    }
    if (code < 0)
        return code;
    if (out->length > KNOB_STRING_MAX)
        return prototxt_lexer_error(&p->lexer, &p->lexer.before, p->err,
                                    "String of %zu bytes; at most %d are allowed.", out->length,
                                    KNOB_STRING_MAX);
    if (strlen(out->text) != out->length)
        return prototxt_lexer_error(&p->lexer, &p->lexer.before, p->err,
                                    "A string cannot hold a NUL byte.");
    for (const char *c = out->text; *c; c += fleet_utf8_length(c))
        if (fleet_utf8_length(c) == 0)
            return prototxt_lexer_error(&p->lexer, &p->lexer.token, p->err,
                                        "String is not valid UTF-8.");
    return 0;
}

/* ---- fields -------------------------------------------------------------------------------- */

static int parse_message(struct parser *p, const struct knob_message *message, void *out);

/* One element of a repeated field, or the value of a singular one. */
static int parse_value(struct parser *p, const struct knob_field *field, void *value)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int32_t integer;
    float number;
    int code;

    switch (field->kind) {
    case KNOB_BOOL:
        return parse_bool(p, field, value);
    case KNOB_INT:
        return parse_int(p, value);
    case KNOB_FLOAT:
        return parse_float(p, value);
    case KNOB_MODE:
        return parse_mode(p, field, value);
    case KNOB_WORD:
        return parse_word(p, field, value);
    case KNOB_STRING:
    case KNOB_STRINGS:
        code = parse_string(p, &text);
        if (code == 0 && field->kind == KNOB_STRING)
            knob_set_string(value, text.text);
        else if (code == 0)
            knob_append_string(value, text.text);
        return code;
    case KNOB_INTS:
        code = parse_int(p, &integer);
        if (code == 0)
            knob_append_int(value, integer);
        return code;
    case KNOB_FLOATS:
        code = parse_float(p, &number);
        if (code == 0)
            knob_append_float(value, number);
        return code;
    case KNOB_MESSAGE:
        return parse_message(p, field->message(), value);
    case KNOB_MESSAGES:
        return parse_message(p, field->message(), knob_append_message(field, value));
    }
    return -EINVAL;
}

static size_t list_count(const struct knob_field *field, const void *value)
{
    switch (field->kind) {
    case KNOB_STRINGS:
        return ((const struct strategy_strings *)value)->count;
    case KNOB_INTS:
        return ((const struct strategy_ints *)value)->count;
    case KNOB_FLOATS:
        return ((const struct strategy_floats *)value)->count;
    case KNOB_MESSAGES:
        return ((const struct strategy_messages *)value)->count;
    default:
        return 0;
    }
}

/* One more element of a repeated field whose name is at `at`. */
static int parse_element(struct parser *p, const struct knob_field *field,
                         const struct prototxt_token *at, void *value)
{
    if (list_count(field, value) >= KNOB_LIST_MAX)
        return prototxt_lexer_error(&p->lexer, at, p->err,
                                    "Field \"%s\" has more than %d elements.", field->name,
                                    KNOB_LIST_MAX);
    return parse_value(p, field, value);
}

/* "[a, b]"; the bracket is the current token. *out_any: it was not empty. */
static int parse_list(struct parser *p, const struct knob_field *field,
                      const struct prototxt_token *at, void *value, bool *out_any)
{
    int code = advance(p);

    *out_any = code == 0 && !prototxt_lexer_at(&p->lexer, ']');
    while (code == 0 && *out_any) {
        code = parse_element(p, field, at, value);
        if (code == 0 && prototxt_lexer_at(&p->lexer, ']'))
            break;
        if (code == 0)
            code = expect(p, ',');
    }
    return code < 0 ? code : expect(p, ']');
}

static double number_at(const struct knob_field *field, const void *value)
{
    return field->kind == KNOB_INT ? *(const int32_t *)value : (double)*(const float *)value;
}

/* Colon, value and separator of a field whose name `at` was just read. */
static int parse_field_value(struct parser *p, const struct knob_field *field,
                             enum knob_spelling spelling, const struct prototxt_token *at,
                             void *out)
{
    bool is_message = field->kind == KNOB_MESSAGE || field->kind == KNOB_MESSAGES;
    void *value = knob_value(field, out);
    uint8_t *has = knob_has(field, out);
    bool other_name = *has & ~(unsigned int)spelling, any = true;
    double before = field->alias ? number_at(field, value) : 0;
    int code = 0;

    if (!is_message || prototxt_lexer_at(&p->lexer, ':'))
        code = expect(p, ':');
    if (code < 0)
        return code;
    if (prototxt_lexer_at(&p->lexer, '[')) {
        if (!knob_is_list(field))
            return prototxt_lexer_error(&p->lexer, &p->lexer.token, p->err,
                                        "Field \"%s\" is not repeated.", field->name);
        code = parse_list(p, field, at, value, &any);
    } else {
        code = parse_element(p, field, at, value);
    }
    if (code < 0)
        return code;
    if (field->alias && other_name && before != number_at(field, value))
        return prototxt_lexer_error(&p->lexer, at, p->err,
                                    "\"%s\" and \"%s\" name the same setting and differ.",
                                    field->alias, field->name);
    if (any)
        *has |= (uint8_t)spelling;
    return 0;
}

static int fail_unknown(struct parser *p, const struct knob_message *message, const char *name)
{
    const char *closest = knobs_closest(message, name);

    if (closest && knobs_find(message, closest, NULL)->since == KNOB_OWN)
        closest = NULL; /* not a name of this format */
    return prototxt_lexer_error(
        &p->lexer, &p->lexer.token, p->err,
        "Message type \"paddle.fleet.%s\" has no field named \"%.*s\".%s%s%s", message->name,
        SHOWN_MAX, name, closest ? " Did you mean \"" : "", closest ? closest : "",
        closest ? "\"?" : "");
}

static int parse_field(struct parser *p, const struct knob_message *message, void *out)
{
    const struct prototxt_token at = p->lexer.token;
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
    enum knob_spelling spelling = KNOB_BY_NAME;
    const struct knob_field *field;
    int code;

    if (at.kind != PROTOTXT_WORD)
        return fail_got(p, &at, "Expected identifier, got: ");
    fleet_strbuf_append_bytes(&name, at.text, at.length);
    field = knobs_find(message, name.text, &spelling);
    if (!field || field->since == KNOB_OWN)
        return fail_unknown(p, message, name.text);
    code = advance(p);
    if (code == 0)
        code = parse_field_value(p, field, spelling, &at, out);
    if (code == 0 && (prototxt_lexer_at(&p->lexer, ',') || prototxt_lexer_at(&p->lexer, ';')))
        code = advance(p);
    return code;
}

static int parse_message(struct parser *p, const struct knob_message *message, void *out)
{
    char closing = prototxt_lexer_at(&p->lexer, '<') ? '>' : '}';
    int code = closing == '>' ? advance(p) : expect(p, '{');

    while (code == 0 && !prototxt_lexer_at(&p->lexer, closing)) {
        if (p->lexer.token.kind == PROTOTXT_END)
            return prototxt_lexer_error(&p->lexer, &p->lexer.before, p->err,
                                        "Expected \"%c\", found end of file.", closing);
        code = parse_field(p, message, out);
    }
    return code < 0 ? code : advance(p);
}

int prototxt_merge(struct strategy *s, const char *name, const char *text, size_t size,
                   struct fleet_error *err)
{
    struct parser p = {.err = err};
    struct strategy scratch;
    int code;

    if (size > PROTOTXT_SIZE_MAX)
        return fleet_error(err, -EFBIG, "%s: %zu bytes; at most %d are read", name, size,
                           PROTOTXT_SIZE_MAX);
    strategy_copy(&scratch, s);
    code = prototxt_lexer_init(&p.lexer, name, text, size, err);
    while (code == 0 && p.lexer.token.kind != PROTOTXT_END)
        code = parse_field(&p, knobs_root(), &scratch);
    if (code < 0) {
        strategy_release(&scratch);
        return code;
    }
    strategy_release(s);
    *s = scratch;
    return 0;
}
