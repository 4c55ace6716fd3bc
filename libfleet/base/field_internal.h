/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_FIELD_INTERNAL_H
#define LIBFLEET_BASE_FIELD_INTERNAL_H

/*
 * What the files of field.h share, for them alone: field.c asks the tables, field_scalar.c reads
 * one value, field_decode.c lists, maps and objects, field_encode.c and field_copy.c walk over what
 * was decoded.
 */

#include "libfleet/base/field.h"

struct fleet_errors;
struct fleet_strbuf;

#define FLEET_EXACT_MAX 9007199254740991.0 /* 2^53 - 1: no two integers share a double up to here */
#define FLEET_SHOWN_MAX 40                 /* bytes of a refused value that an error repeats */

/*
 * The place in the input: a chain through the frames of the decoders, so that a path becomes text
 * only for an error. A list element has no name.
 */
struct fleet_place {
    const struct fleet_place *up; /* NULL: the root, whose name is the caller's `path` */
    const char *name;
    size_t index; /* in its list, where name is NULL */
};

/* Any FLEET_FIELD_LIST member looks like this. */
struct fleet_any_list {
    void *items;
    size_t count;
};

/* ---- field.c --------------------------------------------------------------------------------- */

/* "in (0, 1]", "at least 1": the bounds by `flags`, appended; nothing if there are none. */
void fleet_field_bounds(const struct fleet_field *field, struct fleet_strbuf *out);

/* The list at `member`, with a count of any type. */
struct fleet_any_list fleet_field_list(const struct fleet_field *field, const void *member);
void fleet_field_set_list(const struct fleet_field *field, void *member,
                          struct fleet_any_list list);

/* The index of `text` among the field's choices, or -1. */
int fleet_field_choice(const struct fleet_field *field, const char *text);

/* Our name for `word` (a string or NULL) in the list `hints` (may be NULL), or NULL. */
const char *fleet_field_help(const struct fleet_hint *hints, const char *word);

/* ---- field_scalar.c -------------------------------------------------------------------------- */

/* Append an error at `place`. */
void fleet_field_refuse(struct fleet_errors *errors, const struct fleet_place *place,
                        const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same about a key that no table has (fleet_errors_add_unknown()). */
void fleet_field_refuse_unknown(struct fleet_errors *errors, const struct fleet_place *place,
                                const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same in the usual words: "must be WANTED, not THE VALUE". */
void fleet_field_refuse_value(struct fleet_errors *errors, const struct fleet_place *place,
                              const cJSON *json, const char *wanted);

/*
 * Read `json` into `out`, a member or a list element of `kind`, which is neither an object nor a
 * list nor a map. On an error, appended to `errors`, *out is left as it was.
 */
void fleet_field_decode_scalar(const struct fleet_field *field, enum fleet_field_kind kind,
                               const cJSON *json, void *out, const struct fleet_place *place,
                               struct fleet_errors *errors);

#endif
