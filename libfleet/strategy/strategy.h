/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_STRATEGY_H
#define LIBFLEET_STRATEGY_STRATEGY_H

/*
 * fleet.DistributedStrategy as a C value: the fields of knobs.def with their defaults, and a flag
 * for each field that was set.
 *
 *     struct strategy s;
 *     strategy_init(&s);
 *     if (s.amp && s.amp_configs.has_init_loss_scaling) …
 *     strategy_release(&s);
 *
 * Invariants a caller may rely on after strategy_init():
 *  (1) Every field holds a value: the one that was set, else the default. Strings are never NULL.
 *  (2) has_<field> is 0 (not set) or bits of enum knob_spelling. A field can be set to its default
 *      value. A list is set if the input names it. Paddle's text format cannot express an empty
 *      list, so an empty list is written to JSON only.
 *  (3) A config message holds its defaults even if it is not set. It is set if the input names it,
 *      even if it is empty there. A message with a set field is itself set.
 *  (4) A setting with two names (sharding_group_size, sharding_degree) is one member, under its 2.0
 *      name. has_<field> tells which names were given. If both were given, their values are equal.
 *
 * Two C names differ from Paddle's: auto_ for "auto" (a C keyword) and dp_as_optimizer_sharding
 * for "_dp_as_optimizer_sharding".
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum knob_spelling {
    KNOB_BY_NAME = 1,  /* set under the field's own name */
    KNOB_BY_ALIAS = 2, /* set under the name of the other dialect */
};

enum strategy_mode {
    STRATEGY_COLLECTIVE = 1,
    STRATEGY_PS = 2,
    STRATEGY_PIPELINE = 3,
    STRATEGY_HETER = 4,
};

struct strategy_strings {
    char **items; /* [count], owned, none NULL */
    size_t count;
};

struct strategy_ints {
    int32_t *items;
    size_t count;
};

struct strategy_floats {
    float *items;
    size_t count;
};

struct strategy_messages {
    void *items; /* [count] structs of the type that knobs.def names */
    size_t count;
};

#define KNOB_C_BOOL    bool
#define KNOB_C_INT     int32_t
#define KNOB_C_FLOAT   float
#define KNOB_C_STRING  char *
#define KNOB_C_WORD    char *
#define KNOB_C_MODE    int32_t
#define KNOB_C_STRINGS struct strategy_strings
#define KNOB_C_INTS    struct strategy_ints
#define KNOB_C_FLOATS  struct strategy_floats

#define KNOB_C_MESSAGE(type)  struct type
#define KNOB_C_MESSAGES(type) struct strategy_messages

/* struct strategy and one struct for each config message. */
#define KNOB_MESSAGE(type, text) struct type {
#define KNOB_AS(kind, member, text, since, n20, n21, fallback, fallback20, alias, range, help) \
    KNOB_C_##kind member;                                                                      \
    uint8_t has_##member;
#define KNOB_SUB(kind, type, name, since, n20, n21, help) \
    KNOB_C_##kind(type) name;                             \
    uint8_t has_##name;
#define KNOB_MESSAGE_END(type, text) \
    }                                \
    ;
#include "libfleet/strategy/knobs.def"

/* Give every field its default; nothing is set. The struct may be uninitialised memory. */
void strategy_init(struct strategy *s);

/* Free what it owns. May be called again, and on an all-zero struct. Call strategy_init() before
 * another use. */
void strategy_release(struct strategy *s);

/* A deep copy into uninitialised memory. */
void strategy_copy(struct strategy *to, const struct strategy *from);

/* True if the same fields are set, under the same names, to the same values (nan equals nan). */
bool strategy_equal(const struct strategy *a, const struct strategy *b);

/*
 * True if both have the same settings. Like strategy_equal(), but it ignores three differences: the
 * name under which a field was set, lists that are set but empty, and messages without a set field.
 */
bool strategy_means_same(const struct strategy *a, const struct strategy *b);

/* Setting a_sync resets the parameter-server interval: a_sync_configs.k_steps becomes 0, set. */
void strategy_set_a_sync(struct strategy *s, bool value);

/* How many fields of the whole tree are set (messages not counted). */
size_t strategy_count_set(const struct strategy *s);

#define STRATEGY_AUTO __attribute__((cleanup(strategy_release)))

#endif
