/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The lexical grammar: longest match; no letter directly after a number; no line end inside a
 * string. Character classes are written out, so that they do not depend on the locale.
 */
#include "libfleet/strategy/prototxt_lexer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_octal(char c)
{
    return c >= '0' && c <= '7';
}

static int hex_value(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int prototxt_lexer_error(const struct prototxt_lexer *lexer, const struct prototxt_token *at,
                         struct fleet_error *err, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    return fleet_error(err, -EINVAL, "%s:%d:%d: %s", lexer->name, at->line, at->column,
                       fleet_strbuf_text(&text));
}

/* The byte `ahead` positions further; NUL at the end. No token contains a NUL. */
static char peek(const struct prototxt_lexer *lexer, size_t ahead)
{
    return (size_t)(lexer->end - lexer->next) > ahead ? lexer->next[ahead] : '\0';
}

static void step(struct prototxt_lexer *lexer)
{
    lexer->column++;
    if (*lexer->next == '\n') {
        lexer->line++;
        lexer->column = 1;
    }
    lexer->next++;
}

static void skip_blanks(struct prototxt_lexer *lexer)
{
    while (lexer->next < lexer->end) {
        if (strchr(" \t\n\v\f\r", *lexer->next) && *lexer->next) {
            step(lexer);
        } else if (*lexer->next == '#') {
            while (lexer->next < lexer->end && *lexer->next != '\n')
                step(lexer);
        } else {
            return;
        }
    }
}

/* ---- numbers ------------------------------------------------------------------------------- */

static size_t count_digits(const struct prototxt_lexer *lexer, size_t from)
{
    size_t count = 0;

    while (is_digit(peek(lexer, from + count)))
        count++;
    return count;
}

/* Length of "e-10" at `from`, 0 if there is no exponent. */
static size_t exponent_length(const struct prototxt_lexer *lexer, size_t from)
{
    size_t sign, digits;

    if (peek(lexer, from) != 'e' && peek(lexer, from) != 'E')
        return 0;
    sign = peek(lexer, from + 1) == '+' || peek(lexer, from + 1) == '-';
    digits = count_digits(lexer, from + 1 + sign);
    return digits ? 1 + sign + digits : 0;
}

/* Kind and length of the number at `next`, which starts with a digit or with ".5". */
static enum prototxt_kind measure_number(const struct prototxt_lexer *lexer, size_t *out_length)
{
    enum prototxt_kind kind = PROTOTXT_DECIMAL;
    size_t n = 0, more;

    if (peek(lexer, 0) == '0' && (peek(lexer, 1) == 'x' || peek(lexer, 1) == 'X') &&
        hex_value(peek(lexer, 2)) >= 0) {
        for (n = 2; hex_value(peek(lexer, n)) >= 0;)
            n++;
        *out_length = n;
        return PROTOTXT_HEX;
    }
    if (peek(lexer, 0) == '0' && is_octal(peek(lexer, 1))) {
        for (n = 1; is_octal(peek(lexer, n));)
            n++;
        *out_length = n;
        return PROTOTXT_OCTAL;
    }
    n = peek(lexer, 0) == '0' ? 1 : count_digits(lexer, 0);
    if (peek(lexer, n) == '.') {
        n += 1 + count_digits(lexer, n + 1);
        kind = PROTOTXT_FLOAT;
    }
    more = exponent_length(lexer, n);
    if (more)
        kind = PROTOTXT_FLOAT;
    n += more;
    if (peek(lexer, n) == 'f' || peek(lexer, n) == 'F') {
        n++;
        kind = PROTOTXT_FLOAT;
    }
    *out_length = n;
    return kind;
}

static int lex_number(struct prototxt_lexer *lexer, struct fleet_error *err)
{
    struct prototxt_token *token = &lexer->token;
    char after;

    token->kind = measure_number(lexer, &token->length);
    after = peek(lexer, token->length);
    if (is_letter(after) || is_digit(after) || after == '.')
        return prototxt_lexer_error(lexer, token, err,
                                    "Need space between number and identifier, or a malformed "
                                    "number: %.*s",
                                    (int)(token->length < 40 ? token->length + 1 : 40),
                                    token->text);
    return 0;
}

/* ---- strings ------------------------------------------------------------------------------- */

static int lex_string(struct prototxt_lexer *lexer, struct fleet_error *err)
{
    struct prototxt_token *token = &lexer->token;
    char quote = *lexer->next;
    size_t n = 1;

    token->kind = PROTOTXT_STRING;
    while (lexer->next + n < lexer->end && lexer->next[n] != quote) {
        if (lexer->next[n] == '\\' && lexer->next + n + 1 < lexer->end &&
            lexer->next[n + 1] != '\n')
            n++;
        if (lexer->next[n] == '\n')
            return prototxt_lexer_error(lexer, token, err,
                                        "String literals cannot cross line boundaries.");
        n++;
    }
    if (lexer->next + n >= lexer->end)
        return prototxt_lexer_error(lexer, token, err,
                                    "String literals cannot cross line boundaries.");
    token->length = n + 1;
    return 0;
}

static void append_utf8(struct fleet_strbuf *out, uint32_t point)
{
    if (point < 0x80) {
        fleet_strbuf_append_char(out, (char)point);
    } else if (point < 0x800) {
        fleet_strbuf_append_char(out, (char)(0xC0 | point >> 6));
        fleet_strbuf_append_char(out, (char)(0x80 | (point & 0x3F)));
    } else if (point < 0x10000) {
        fleet_strbuf_append_char(out, (char)(0xE0 | point >> 12));
        fleet_strbuf_append_char(out, (char)(0x80 | (point >> 6 & 0x3F)));
        fleet_strbuf_append_char(out, (char)(0x80 | (point & 0x3F)));
    } else {
        fleet_strbuf_append_char(out, (char)(0xF0 | point >> 18));
        fleet_strbuf_append_char(out, (char)(0x80 | (point >> 12 & 0x3F)));
        fleet_strbuf_append_char(out, (char)(0x80 | (point >> 6 & 0x3F)));
        fleet_strbuf_append_char(out, (char)(0x80 | (point & 0x3F)));
    }
}

/* Hexadecimal digits from `text`, at most `digits_max`; returns how many there were. */
static size_t read_hex(const char *text, const char *end, size_t digits_max, uint32_t *out)
{
    size_t n = 0;

    *out = 0;
    while (n < digits_max && text + n < end && hex_value(text[n]) >= 0)
        *out = *out * 16 + (uint32_t)hex_value(text[n++]);
    return n;
}

/* The escape after a backslash. Returns its length, 0 if it is not an escape. */
static size_t read_escape(const char *text, const char *end, struct fleet_strbuf *out)
{
    static const char names[] = "abfnrtv?\\'\"", values[] = "\a\b\f\n\r\t\v?\\'\"";
    const char *name = *text ? strchr(names, *text) : NULL;
    uint32_t value = 0;
    size_t n = 0;

    if (name) {
        fleet_strbuf_append_char(out, values[name - names]);
        return 1;
    }
    if (is_octal(*text)) {
        while (n < 3 && text + n < end && is_octal(text[n]))
            value = value * 8 + (uint32_t)(text[n++] - '0');
        fleet_strbuf_append_char(out, (char)(value & 0xFF));
        return n;
    }
    if (*text == 'x') {
        n = read_hex(text + 1, end, 2, &value);
        if (n > 0)
            fleet_strbuf_append_char(out, (char)value);
        return n > 0 ? n + 1 : 0;
    }
    if (*text == 'u' || *text == 'U') {
        size_t digits = *text == 'u' ? 4 : 8;
        n = read_hex(text + 1, end, digits, &value);
        if (n != digits || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
            return 0;
        append_utf8(out, value);
        return n + 1;
    }
    return 0;
}

int prototxt_unescape(const struct prototxt_lexer *lexer, const struct prototxt_token *token,
                      struct fleet_strbuf *out, struct fleet_error *err)
{
    const char *text = token->text + 1, *end = token->text + token->length - 1;

    while (text < end) {
        size_t length;

        if (*text != '\\') {
            fleet_strbuf_append_char(out, *text++);
            continue;
        }
        length = text + 1 < end ? read_escape(text + 1, end, out) : 0;
        if (length == 0)
            return prototxt_lexer_error(lexer, token, err, "Invalid escape sequence in string.");
        text += 1 + length;
    }
    return 0;
}

/* ---- tokens -------------------------------------------------------------------------------- */

static int lex_token(struct prototxt_lexer *lexer, struct fleet_error *err)
{
    struct prototxt_token *token = &lexer->token;
    char c = peek(lexer, 0);

    if (lexer->next == lexer->end) {
        token->kind = PROTOTXT_END;
        return 0;
    }
    if (is_letter(c)) {
        token->kind = PROTOTXT_WORD;
        while (is_letter(peek(lexer, token->length)) || is_digit(peek(lexer, token->length)))
            token->length++;
        return 0;
    }
    if (is_digit(c) || (c == '.' && is_digit(peek(lexer, 1))))
        return lex_number(lexer, err);
    if (c == '"' || c == '\'')
        return lex_string(lexer, err);
    if (c && strchr("{}<>[]:,;-", c)) {
        token->kind = PROTOTXT_SYMBOL;
        token->length = 1;
        return 0;
    }
    if (c >= 0x20 && c < 0x7F)
        return prototxt_lexer_error(lexer, token, err, "Unexpected character \"%c\".%s", c,
                                    c == '=' ? " Expected \"field: value\"." : "");
    return prototxt_lexer_error(lexer, token, err, "Unexpected character: byte 0x%02x.",
                                (unsigned char)c);
}

int prototxt_lexer_advance(struct prototxt_lexer *lexer, struct fleet_error *err)
{
    int code;

    lexer->before = lexer->token;
    skip_blanks(lexer);
    lexer->token =
        (struct prototxt_token){.text = lexer->next, .line = lexer->line, .column = lexer->column};
    code = lex_token(lexer, err);
    if (code < 0)
        return code;
    lexer->next += lexer->token.length; /* no token contains a line feed */
    lexer->column += (int)lexer->token.length;
    return 0;
}

int prototxt_lexer_init(struct prototxt_lexer *lexer, const char *name, const char *text,
                        size_t size, struct fleet_error *err)
{
    *lexer = (struct prototxt_lexer){
        .name = name, .next = text, .end = text + size, .line = 1, .column = 1};
    return prototxt_lexer_advance(lexer, err);
}

bool prototxt_lexer_at(const struct prototxt_lexer *lexer, char symbol)
{
    return lexer->token.kind == PROTOTXT_SYMBOL && *lexer->token.text == symbol;
}
