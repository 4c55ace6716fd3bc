/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_KNOBS_H
#define LIBFLEET_STRATEGY_KNOBS_H

/*
 * The table knobs.def at run time. JSON, the text format, the checks, the schema and the reference
 * pages are loops over it.
 *
 * A value is addressed by (message struct, field): knob_value() gives its place. Messages nest
 * five deep; every walk is bounded by that.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/strategy/strategy.h"

/* Limits for input from outside. */
#define KNOB_STRING_MAX 4096  /* bytes of one string */
#define KNOB_LIST_MAX   16384 /* elements of one list */

enum knob_kind {
    KNOB_BOOL,
    KNOB_INT,
    KNOB_FLOAT,
    KNOB_STRING,
    KNOB_WORD, /* one of the words of its range: an enum, without quotes in a text */
    KNOB_MODE, /* enum strategy_mode, written by name */
    KNOB_STRINGS,
    KNOB_INTS,
    KNOB_FLOATS,
    KNOB_MESSAGE,
    KNOB_MESSAGES,
};

enum knob_since {
    KNOB_RC0,   /* 2.0.0-rc0 */
    KNOB_V20,   /* 2.0.0 */
    KNOB_V21,   /* 2.1 or a little later */
    KNOB_V26,   /* first seen in 2.6 */
    KNOB_NEWER, /* after 2.6 */
    KNOB_OWN,   /* in the resource only; no text format knows it */
};

enum knob_range_kind {
    KNOB_ANY,
    KNOB_AT_LEAST,       /* low <= x */
    KNOB_ABOVE,          /* low < x */
    KNOB_FROM_TO,        /* low <= x <= high */
    KNOB_BETWEEN,        /* low < x < high */
    KNOB_DEGREE_OR_REST, /* -1 or at least 1 */
    KNOB_ONE_OF,         /* one of `words` */
};

struct knob_range {
    enum knob_range_kind kind;
    double low, high;
    const char *words; /* "avg|sum", else NULL */
};

struct knob_message;

struct knob_field {
    const char *name;  /* as Paddle spells it; the 2.0 name if there are two */
    const char *alias; /* the 2.1 name of the same setting, or NULL */
    const char *help;  /* one sentence without full stop */
    const char *text;  /* default of a string, else NULL */
    double number;     /* default of bool, int, float, mode */
    double number_2_0; /* the default in 2.0.0; differs from `number` for three hints */
    struct knob_range range;
    const struct knob_message *(*message)(void); /* of MESSAGE and MESSAGES, else NULL */
    enum knob_kind kind;
    enum knob_since since;
    int number_in_2_0, number_in_2_1; /* field numbers; 0: that dialect lacks the field */
    size_t offset, has_offset;        /* in the message's struct */
};

struct knob_message {
    const char *name; /* "AMPConfig" */
    const struct knob_field *fields;
    size_t count;
    size_t size; /* of the struct */
};

/* One knob as a number, for code that acts on it: STRATEGY_KNOB(amp_configs.incr_ratio), the place
 * of its value in struct strategy. A walk from the root adds the offsets of the fields on its way,
 * and compares. A name that knobs.def lacks does not compile. */
#define STRATEGY_KNOB(member) offsetof(struct strategy, member)

/* The root: DistributedStrategy. */
const struct knob_message *knobs_root(void);

/*
 * The field called `name` in `message`, or NULL. *out_spelling (may be NULL) tells whether `name`
 * is its own name or its alias.
 */
const struct knob_field *knobs_find(const struct knob_message *message, const char *name,
                                    enum knob_spelling *out_spelling);

/*
 * The field at a path of names ("amp", "amp_configs.incr_ratio"), which must exist.
 * *out_message becomes the struct inside `strategy` that holds the field.
 */
const struct knob_field *knobs_at(const struct strategy *strategy, const char *path,
                                  const void **out_message);

/* The field name of `message` that is closest to the misspelt `name`, for "did you mean"; or
 * NULL. */
const char *knobs_closest(const struct knob_message *message, const char *name);

/* Where the field's value lies in its message's struct. */
void *knob_value(const struct knob_field *field, const void *message);

/* Its has_ bits, to read or change. */
uint8_t *knob_has(const struct knob_field *field, const void *message);

/* STRINGS, INTS, FLOATS or MESSAGES. */
bool knob_is_list(const struct knob_field *field);

/* "COLLECTIVE" … of 1 … 4, NULL for other numbers; and back, 0 for other names. */
const char *knob_mode_name(int mode);
int knob_mode_number(const char *name);

/* The number of a WORD's value, -1 if it is none of its words. And the word of a number, written to
 * `out`, which holds 64 bytes; NULL for other numbers. */
int knob_word_number(const struct knob_field *field, const char *word);
const char *knob_word_name(const struct knob_field *field, int number, char *out);

/* ---- values: the only code that allocates inside a strategy ---- */

/* Write the defaults into an uninitialised struct of that message's type; free what a struct owns;
 * copy one into uninitialised memory. */
void knob_message_init(const struct knob_message *message, void *value);
void knob_message_release(const struct knob_message *message, void *value);
void knob_message_copy(const struct knob_message *message, void *to, const void *from);

/* Reset the field to its default, not set. */
void knob_reset(const struct knob_field *field, void *message);

/* True if two values of one field are equal; nan equals nan. */
bool knob_equal(const struct knob_field *field, const void *a, const void *b);

/* Replace a STRING, or append to a list. Text is copied. */
void knob_set_string(char **value, const char *text);
void knob_append_string(struct strategy_strings *list, const char *text);
void knob_append_int(struct strategy_ints *list, int32_t number);
void knob_append_float(struct strategy_floats *list, float number);

/* Append one message with its defaults; returns its struct, valid until the next append. */
void *knob_append_message(const struct knob_field *field, struct strategy_messages *list);

/* Empty any kind of list. */
void knob_clear_list(const struct knob_field *field, void *value);

/* Print a single-precision number in the shortest decimal form that reads back equal. `out` holds
 * 32 bytes. */
void knob_print_float(float number, char *out);

/* Print the range for messages and pages: "at least 1", "from 1 to 8", "avg or sum". "" if any
 * value is allowed. */
void knob_print_range(const struct knob_field *field, char *out, size_t size);

#endif
