/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_FIELD_H
#define LIBFLEET_BASE_FIELD_H

/*
 * Tables that describe an object once, for JSON and for C.
 *
 * A `struct fleet_field` is one key: name, kind, place in the C struct, range, default, words. A
 * `struct fleet_object` is the list of them. The same table drives decoding (every error at once,
 * with its path; unknown keys are refused with "did you mean"), defaults, encoding, release, and
 * the generated schema and reference pages. There is no second list of fields.
 *
 *     static const struct fleet_field fields[] = {
 *         {.name = "everySteps", .kind = FLEET_FIELD_INT, .flags = FLEET_REQUIRED | FLEET_MIN,
 *          .offset = offsetof(struct training_evaluation, every_steps), .min = 1,
 *          .description = "Evaluate after every so many steps."},
 *     };
 *
 * Invariants a caller may rely on:
 *  (1) After fleet_object_decode() `out` can be released, after errors too.
 *  (2) Without errors every field is within its limits; absent ones hold their default or `unset`.
 *  (3) JSON null counts as absent, as in Kubernetes.
 *  (4) Tables are static data without cycles, so recursion is as deep as the tables.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

struct fleet_error;
struct fleet_errors;
struct fleet_object;
struct fleet_strbuf;

/* Kind of value → type of the member at `offset`. */
enum fleet_field_kind {
    FLEET_FIELD_BOOL,          /* bool */
    FLEET_FIELD_INT,           /* int64_t; a number without fraction within ±2^53 */
    FLEET_FIELD_INT32,         /* int; the same, within its bounds */
    FLEET_FIELD_NUMBER,        /* double; finite, NaN for "absent" is not written */
    FLEET_FIELD_STRING,        /* char *, heap; NULL while absent without default */
    FLEET_FIELD_CHARS,         /* char[count_max + 1]; a string */
    FLEET_FIELD_ENUM,          /* int or an enum: index into `choices`; "" as first choice = none */
    FLEET_FIELD_INT_OR_CHOICE, /* int64_t; a number, or choices[i] as -1 - i */
    FLEET_FIELD_SEED,          /* uint64_t; a number below 2^53 or a string of decimal digits */
    FLEET_FIELD_TIME,          /* int64_t, wall milliseconds; RFC 3339 in JSON; 0 = absent */
    FLEET_FIELD_HEX,           /* uint8_t[count_max]; hexadecimal digits */
    FLEET_FIELD_BASE64,        /* struct { void *bytes; size_t size; }, heap; at most count_max */
    FLEET_FIELD_OBJECT,        /* the struct itself, inline; `object` says which */
    FLEET_FIELD_LIST,          /* struct { T *items; size_t count; }; `item` (and `object`) say T */
    FLEET_FIELD_MAP,           /* struct fleet_string_map: string → string */
    FLEET_FIELD_INT_MAP,       /* struct fleet_int_map: string → int64_t */
    FLEET_FIELD_JSON,          /* cJSON *, owned: an object taken over as it is; NULL = absent */
};

enum fleet_field_flags {
    FLEET_REQUIRED = 1 << 0,
    FLEET_MIN = 1 << 1,        /* `min` is a bound, itself allowed */
    FLEET_MAX = 1 << 2,        /* `max` is a bound, itself allowed */
    FLEET_ABOVE = 1 << 3,      /* greater than `min` */
    FLEET_BELOW = 1 << 4,      /* less than `max` */
    FLEET_PATH = 1 << 5,       /* a string that names a file or folder where the trainer runs */
    FLEET_IMMUTABLE = 1 << 6,  /* may not change once the job has started */
    FLEET_NOT_EMPTY = 1 << 7,  /* strings and lists */
    FLEET_TUPLES = 1 << 8,     /* JSON: a list of lists of integers, not an object */
    FLEET_NULL = 1 << 9,       /* NUMBER: null is `unset`; NaN and infinities are written as null */
    FLEET_CLAMP = 1 << 10,     /* NUMBER: the nearest of `min` and `max` is written */
    FLEET_CUT = 1 << 11,       /* longer texts are cut: a STRING when written, CHARS when read */
    FLEET_CUT_FRONT = 1 << 12, /* STRING: the same, but the end is kept */
    FLEET_INT_COUNT = 1 << 13, /* LIST: the count is an int */
    FLEET_MAY_MISS = 1 << 14,  /* OBJECT: may be absent although a field of it is required */
    FLEET_INLINE = 1 << 15,    /* LIST: struct { T items[count_max]; size_t count; } */
    FLEET_NEVER_NULL = 1 << 16, /* STRING: an absent one is read, and NULL is written, as "" */
};

#define FLEET_FIELD_STRING_MAX 1024  /* bytes, where count_max is 0 */
#define FLEET_FIELD_LIST_MAX   256   /* elements of lists and maps, where count_max is 0 */
#define FLEET_FIELD_JSON_MAX   65536 /* bytes of raw JSON printed compactly, where count_max is 0 */

/* A word that other programs have for a choice or a field, and what to write here. */
struct fleet_hint {
    const char *word; /* NULL ends a list */
    const char *help; /* "bf16", "polynomial with power 1", "learningRate" */
};

struct fleet_field {
    const char *name; /* key in JSON; NULL ends a table */
    enum fleet_field_kind kind;
    unsigned int flags;       /* enum fleet_field_flags */
    size_t offset;            /* of the member */
    size_t presence;          /* FLEET_PRESENCE() of a bool that is set when given, or 0 */
    const char *default_text; /* JSON of the default, e.g. "0.9", "\"relu\""; NULL = none */
    double unset;    /* INT, INT32, NUMBER, INT_OR_CHOICE: stored when absent, no default */
    double min, max; /* read as `flags` say */
    const char *const *choices;     /* ENUM, INT_OR_CHOICE: texts, NULL at the end */
    const struct fleet_hint *hints; /* ENUM: for words that are no choice; NULL = none */
    uint32_t only;              /* choices of the discriminator it belongs to, 1 << i; 0 = all */
    enum fleet_field_kind item; /* LIST: kind of an element */
    const struct fleet_object *object; /* OBJECT, LIST of OBJECT */
    size_t count_max;          /* bytes of a string, elements, bytes of JSON; 0 = see above */
    const char *pattern;       /* STRING, strings in a LIST: extended regular expression, or NULL */
    const char *pattern_words; /* what the pattern means: "lower-case letters, digits and '-'" */
    const char *default_words; /* of a default that depends on other fields: "4 × width" */
    const char *description;   /* one or two sentences for the schema and the reference page */
    const char *since;         /* first API version that has it; NULL = all */
};

/* A condition on a whole object for the generated schema, in Kubernetes' CEL (`self` is the
 * object). Our own programs check the same in C, with better words: a message with the values would
 * have to be built in CEL, and the API server refuses that as too costly. */
struct fleet_rule {
    const char *cel; /* NULL ends a list */
    const char *message;
    const char *field; /* the field to blame, "replicas"; NULL = the whole object */
};

struct fleet_object {
    const char *name; /* what errors and pages call it: "schedule" */
    const char *description;
    const struct fleet_field *fields; /* ends with name NULL */
    size_t size;                      /* sizeof the C struct */
    const char *discriminator;        /* name of the ENUM field that `only` is about, or NULL */
    const struct fleet_rule *rules;   /* NULL = none */
    const struct fleet_hint *hints;   /* for names of fields that it does not have; NULL = none */
    bool open;                        /* unknown keys are left alone: objects that others own */
};

/* For `presence`: the offset of a bool, kept apart from "none". */
#define FLEET_PRESENCE(type, member) (offsetof(type, member) + 1)

struct fleet_string_map {
    struct fleet_string_pair {
        char *key, *value;
    } * items;
    size_t count;
};

struct fleet_int_map {
    struct fleet_int_pair {
        char *key;
        int64_t value;
    } * items;
    size_t count;
};

/* The value of `key`, or NULL. */
const char *fleet_string_map_get(const struct fleet_string_map *map, const char *key);

/* The value of `key`, or `otherwise`. */
int64_t fleet_int_map_get(const struct fleet_int_map *map, const char *key, int64_t otherwise);

/* Set or replace. */
void fleet_int_map_set(struct fleet_int_map *map, const char *key, int64_t value);

/* Zero `*out` and put in the defaults, through all inline objects. */
void fleet_object_init(const struct fleet_object *type, void *out);

/*
 * Read `json` (NULL or null: an absent object, so only defaults and errors of required fields) into
 * `*out`, which is overwritten without being released. `path` is put before every field's name
 * ("spec.training"; "" for none). Appends to `errors`; returns 0, or -EINVAL if it appended any.
 */
int fleet_object_decode(const struct fleet_object *type, const cJSON *json, const char *path,
                        void *out, struct fleet_errors *errors);

/* The same for JSON that a program wrote: all errors become *err. Nothing must be released after
 * an error. */
int fleet_object_read(const struct fleet_object *type, const cJSON *json, void *out,
                      struct fleet_error *err);

/*
 * Append the object as JSON, keys in the table's order. Left out: unset values, NULL strings, empty
 * lists and maps, objects whose presence flag is false, and fields that do not belong to the
 * discriminator's choice; but required fields and those with a default are written. Decoding the
 * result gives an equal object. Allocates nothing if `out` has room and no text must be cut.
 */
void fleet_object_append(const struct fleet_object *type, const void *object,
                         struct fleet_strbuf *out);

/* The same without braces and with a comma before each field, for an object that begins with other
 * keys. */
void fleet_object_append_fields(const struct fleet_object *type, const void *object,
                                struct fleet_strbuf *out);

/* The same as a tree, owned by the caller. */
cJSON *fleet_object_encode(const struct fleet_object *type, const void *object);

/* Make `*to`, which is overwritten without being released, the same with memory of its own. */
void fleet_object_copy(const struct fleet_object *type, const void *from, void *to);

/* Would both be encoded alike? The order of a map's keys does not matter. */
bool fleet_object_equal(const struct fleet_object *type, const void *a, const void *b);

/* Free what it owns and zero it. Fine on a zeroed object. */
void fleet_object_release(const struct fleet_object *type, void *object);

/* The field of that name, or NULL. */
const struct fleet_field *fleet_object_field(const struct fleet_object *type, const char *name);

/*
 * Call `visit` for every FLEET_PATH string that is neither NULL nor empty, nested ones included.
 * `name` is the full path of the field; *value may be replaced (heap, the old one freed).
 */
void fleet_object_paths(const struct fleet_object *type, void *object, const char *path,
                        void (*visit)(void *context, const char *name, char **value),
                        void *context);

/* The discriminator's choice in a decoded object as a bit; all bits if there is no
 * discriminator. */
uint32_t fleet_object_choice(const struct fleet_object *type, const void *object);

/* Does the field exist with that choice? */
bool fleet_field_belongs(const struct fleet_field *field, uint32_t choice);

/* sizeof one element of a LIST. */
size_t fleet_field_item_size(const struct fleet_field *field);

/* Bound on a kind's texts: the effective count_max of `field`. */
size_t fleet_field_count_max(const struct fleet_field *field);

/* "≥ 1", "in (0, 1)", "one of a, b": what is allowed, for errors and pages; "" if anything is. */
void fleet_field_allowed(const struct fleet_field *field, struct fleet_strbuf *out);

#endif
