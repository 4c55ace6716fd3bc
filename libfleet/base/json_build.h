/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_JSON_BUILD_H
#define LIBFLEET_BASE_JSON_BUILD_H

/*
 * Building JSON trees. Each function aborts when memory is short, so a caller checks nothing.
 *
 *     cJSON *root = fleet_json_new_object(), *list;
 *     fleet_json_set_string(root, "kind", "Pod");
 *     list = fleet_json_set_list(root, "names");
 *     fleet_json_add_string(list, "a");
 *
 * `set` sets a key of an object; a key that the object has keeps its place. `add` appends to a
 * list. Texts and keys are copied. A value that is NULL changes nothing. A returned child belongs
 * to its parent.
 */

#include <stdbool.h>

#include <cjson/cJSON.h>

/* An empty object, an empty list, one value: the caller owns it. */
cJSON *fleet_json_new_object(void);
cJSON *fleet_json_new_list(void);
cJSON *fleet_json_new_string(const char *value);
cJSON *fleet_json_new_number(double value);
cJSON *fleet_json_new_bool(bool value);

/* A copy of the whole tree, owned by the caller; NULL for NULL. */
cJSON *fleet_json_copy(const cJSON *value);

void fleet_json_set_string(cJSON *object, const char *key, const char *value);
void fleet_json_set_number(cJSON *object, const char *key, double value);
void fleet_json_set_bool(cJSON *object, const char *key, bool value);
void fleet_json_set_null(cJSON *object, const char *key);

/* Hand `value` over to the object. */
void fleet_json_set(cJSON *object, const char *key, cJSON *value);

/* The same for a key that the object does not have: takes no longer for a long object. */
void fleet_json_set_new(cJSON *object, const char *key, cJSON *value);

/* Let the object show `value` of another tree, which outlives it, under the same key. */
void fleet_json_set_reference(cJSON *object, cJSON *value);

/* A new, empty child. */
cJSON *fleet_json_set_object(cJSON *object, const char *key);
cJSON *fleet_json_set_list(cJSON *object, const char *key);

/* The same for lists. */
void fleet_json_add(cJSON *list, cJSON *value);
void fleet_json_add_string(cJSON *list, const char *value);
void fleet_json_add_number(cJSON *list, double value);
cJSON *fleet_json_add_object(cJSON *list);
void fleet_json_add_first(cJSON *list, cJSON *value);

/* Put `value` in the place of `old`, a child of `parent`, which is freed. */
void fleet_json_replace(cJSON *parent, const cJSON *old, cJSON *value);

#endif
