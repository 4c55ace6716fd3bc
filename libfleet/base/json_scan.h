/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_JSON_SCAN_H
#define LIBFLEET_BASE_JSON_SCAN_H

/*
 * The grammar of JSON to the letter, without building anything: fleet_json_parse() calls it before
 * fleet_json_tree(). cJSON's own parser accepts texts that other readers refuse (infinite numbers,
 * bytes that are no UTF-8, 01, control characters in strings).
 */

#include <stddef.h>

/* Why a text is refused and where. */
struct fleet_json_scan_error {
    const char *what; /* static; NULL: nothing is wrong */
    const char *at;   /* in the text, or its end */
    const char *nul;  /* nothing is wrong: the first escape \u0000; NULL = none */
};

/* Is `text` one JSON value of at most `depth_max` (<= 64) nested lists and objects? */
struct fleet_json_scan_error fleet_json_scan(const char *text, size_t size, int depth_max);

#endif
