/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_JSON_H
#define LIBFLEET_BASE_JSON_H

/*
 * Reading JSON that others wrote, and writing it.
 *
 * Trees are those of cJSON; this module parses, with limits and refusal of duplicate keys, and adds
 * paths and types.
 * Paths are dotted, with [i] for list elements: "status.rendezvous.lineage[0].generation"; a key
 * that contains a dot cannot be addressed. Getters come in two kinds:
 *
 *   fleet_json_get_*   required: -ENOENT if absent, -EINVAL if of another type (with the path)
 *   fleet_json_opt_*   optional: absent or null leaves *out as it was and returns 0
 *
 * Strings that are returned are borrowed from the tree unless the name says dup.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/strbuf.h"

struct fleet_error;

#define FLEET_JSON_DEPTH_MAX   64
#define FLEET_JSON_INTEGER_MAX 9007199254740992.0 /* 2^53: beyond it doubles skip integers */

/*
 * Parse exactly one JSON value of at most `size_max` bytes. *out_root is owned by the caller.
 *
 * -EINVAL: not JSON, bytes that are no UTF-8, a number that overflows, more text behind the value,
 * nested deeper than FLEET_JSON_DEPTH_MAX (all with line and column), an object with the same key
 * twice, a string with the escape \u0000 (line, column and path: a string of C would end there);
 * -EFBIG: longer than size_max.
 */
int fleet_json_parse(const char *text, size_t size, size_t size_max, cJSON **out_root,
                     struct fleet_error *err);

/*
 * The same for a text with objects of many owners, as an API server sends it: one tenant's NUL must
 * not make the others' unreadable. Each \u0000 becomes FLEET_JSON_NUL, a character that Unicode
 * keeps for such uses. A caller that needs a value of such a tree to the letter calls
 * fleet_json_find_nul().
 */
int fleet_json_parse_foreign(const char *text, size_t size, size_t size_max, cJSON **out_root,
                             struct fleet_error *err);

#define FLEET_JSON_NUL "\xef\xbf\xbf" /* U+FFFF */

/* Is there a string or a key with FLEET_JSON_NUL below `root`? Then its path, as "a.b[3]", is
 * appended to `path`. */
bool fleet_json_find_nul(const cJSON *root, struct fleet_strbuf *path);

/* The value at `path` below `root`, or NULL. A path of more than 512 bytes finds nothing. */
const cJSON *fleet_json_at(const cJSON *root, const char *path);

/* Required. An integer is a number without fraction within ±2^53; a dup is freed by the caller. */
int fleet_json_get_string(const cJSON *root, const char *path, const char **out,
                          struct fleet_error *err);
int fleet_json_dup_string(const cJSON *root, const char *path, char **out, struct fleet_error *err);
int fleet_json_get_int(const cJSON *root, const char *path, int64_t *out, struct fleet_error *err);
int fleet_json_get_number(const cJSON *root, const char *path, double *out,
                          struct fleet_error *err);
int fleet_json_get_bool(const cJSON *root, const char *path, bool *out, struct fleet_error *err);

/* Optional. -EINVAL if it is there with another type, and *out is left as it was, too. */
int fleet_json_opt_string(const cJSON *root, const char *path, const char **out,
                          struct fleet_error *err);
int fleet_json_opt_int(const cJSON *root, const char *path, int64_t *out, struct fleet_error *err);
int fleet_json_opt_number(const cJSON *root, const char *path, double *out,
                          struct fleet_error *err);
int fleet_json_opt_bool(const cJSON *root, const char *path, bool *out, struct fleet_error *err);

/* The string at `path`; "" if there is none or it is of another type. */
const char *fleet_json_text_at(const cJSON *root, const char *path);

/* `item` as an integer if it is a number without fraction within ±2^53; else -EINVAL, no
 * message. */
int fleet_json_item_int(const cJSON *item, int64_t *out);

/*
 * How a number was spelled that a user wrote with a point or an exponent ("2.0", "1e3"), for
 * readers that accept no such number as an integer; else NULL. Kept by fleet_yaml_to_json(), not by
 * fleet_json_parse(): an API server does not keep spellings. The setter copies `size` bytes.
 */
const char *fleet_json_float_spelling(const cJSON *item);
void fleet_json_set_float_spelling(cJSON *item, const char *text, size_t size);

/* How YAML spelled a truth value that is neither "true" nor "false" ("yes", "Off"); else NULL.
 * The setter copies. */
const char *fleet_json_bool_spelling(const cJSON *item);
void fleet_json_set_bool_spelling(cJSON *item, const char *text);

/*
 * Append a hint for a user who wrote a value that is not of the type `wanted` ("a string"): YAML
 * reads yes as true, quotes are missing, quotes are not wanted. Nothing if there is no hint.
 */
void fleet_json_append_hint(struct fleet_strbuf *out, const cJSON *item, const char *wanted);

/* Set the spellings of all floats of a tree that fleet_json_parse() made of `text`. */
void fleet_json_keep_float_spellings(cJSON *root, const char *text, size_t size);

/* Bytes of the UTF-8 sequence at `text` (never past the NUL; 1 at the NUL), 0 if it is not
 * valid. */
size_t fleet_utf8_length(const char *text);

/* Append `text` as a JSON string with quotes, which YAML reads as the same text; bytes that are not
 * UTF-8 become U+FFFD. */
void fleet_json_append_string(struct fleet_strbuf *out, const char *text);

/* Append a number: integers without a fraction, else the shortest form that reads back equal.
 * NaN and infinities, which JSON lacks, become null. */
void fleet_json_append_number(struct fleet_strbuf *out, double value);

/* Append the tree as compact text. */
void fleet_json_append(struct fleet_strbuf *out, const cJSON *item);

/* The same as a text of its own, which the caller frees. */
char *fleet_json_print(const cJSON *root);

/*
 * RFC 7386 merge patch that turns `before` into `after`: an owned object, empty if they are equal.
 * Lists are replaced as a whole.
 */
cJSON *fleet_json_merge_patch(const cJSON *before, const cJSON *after);

/* Deep equality of trees without repeated keys, whose order does not matter; false for NULL. */
bool fleet_json_equal(const cJSON *a, const cJSON *b);

#endif
