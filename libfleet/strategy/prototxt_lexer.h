/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PROTOTXT_LEXER_H
#define LIBFLEET_STRATEGY_PROTOTXT_LEXER_H

/*
 * Tokens of the text format, with their positions. The lexer looks ahead by one token only, so a
 * mistake is reported at its own position. Internal to prototxt.
 */

#include <stdbool.h>
#include <stddef.h>

struct fleet_error;
struct fleet_strbuf;

enum prototxt_kind {
    PROTOTXT_END,
    PROTOTXT_WORD,    /* a name */
    PROTOTXT_DECIMAL, /* 10 */
    PROTOTXT_OCTAL,   /* 010 */
    PROTOTXT_HEX,     /* 0x10 */
    PROTOTXT_FLOAT,   /* 1.5 1e3 1f */
    PROTOTXT_STRING,  /* with its quotes */
    PROTOTXT_SYMBOL,  /* one of { } < > [ ] : , ; - */
};

struct prototxt_token {
    enum prototxt_kind kind;
    const char *text; /* [length], inside the input */
    size_t length;
    int line, column; /* of its first byte, from 1 */
};

struct prototxt_lexer {
    const char *name; /* of the file, for errors */
    const char *next, *end;
    int line, column;             /* of `next` */
    struct prototxt_token token;  /* the current one */
    struct prototxt_token before; /* the one before it; kind END at the start */
};

/* Start, and read the first token. Errors as prototxt_lexer_advance(). `name` and `text` are
 * borrowed. */
int prototxt_lexer_init(struct prototxt_lexer *lexer, const char *name, const char *text,
                        size_t size, struct fleet_error *err);

/* Read the next token. -EINVAL: the input is not a token. */
int prototxt_lexer_advance(struct prototxt_lexer *lexer, struct fleet_error *err);

/* True if the current token is this symbol. */
bool prototxt_lexer_at(const struct prototxt_lexer *lexer, char symbol);

/* Fail at a token: "name:line:column: text". Returns -EINVAL. */
__attribute__((format(printf, 4, 5))) int prototxt_lexer_error(const struct prototxt_lexer *lexer,
                                                               const struct prototxt_token *at,
                                                               struct fleet_error *err,
                                                               const char *format, ...);

/* Append the bytes that a STRING token stands for. -EINVAL: a bad escape. */
int prototxt_unescape(const struct prototxt_lexer *lexer, const struct prototxt_token *token,
                      struct fleet_strbuf *out, struct fleet_error *err);

#endif
