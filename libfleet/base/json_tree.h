/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_JSON_TREE_H
#define LIBFLEET_BASE_JSON_TREE_H

/*
 * The tree of a text that fleet_json_scan() has accepted. It is the tree that cJSON would build,
 * and cJSON's functions read, change and free it. Since the grammar was checked before, building it
 * takes a third of the time of cJSON's parser.
 */

#include <stddef.h>

#include <cjson/cJSON.h>

/*
 * `text` has no escape \u0000 and need not end with NUL. The caller owns the result. NULL: a string
 * has half of a surrogate pair, *out_half is that escape. Aborts if memory is exhausted.
 */
cJSON *fleet_json_tree(const char *text, size_t size, const char **out_half);

#endif
