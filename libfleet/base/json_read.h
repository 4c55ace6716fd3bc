/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_JSON_READ_H
#define LIBFLEET_BASE_JSON_READ_H

/*
 * The grammar of JSON to the letter, into the trees of cJSON, in one pass: for fleet_json_parse(). The
 * parser of cJSON lets pass what others would not read back (infinite numbers, bytes that are no
 * UTF-8, 01, control characters in strings), and reads every number by strtod() and its locale.
 */

#include <stddef.h>

#include <cjson/cJSON.h>

#define JSON_READ_DEPTH_MAX 64

/* Why a text is refused and where. */
struct json_read_error {
    const char *what; /* static; NULL: nothing is wrong */
    const char *at;   /* in the text, or its end */
};

/*
 * Read `text`, one JSON value of at most `depth_max` (<= JSON_READ_DEPTH_MAX) nested lists and objects,
 * without NUL bytes. *out_root is owned by the caller, and NULL on an error.
 */
struct json_read_error json_read(const char *text, size_t size, int depth_max, cJSON **out_root);

#endif
