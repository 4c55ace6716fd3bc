/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_VALUE_PATH_H
#define LIBFLEET_BASE_VALUE_PATH_H

/*
 * Where a value lies in nested objects and lists, as errors name it: "amp_configs.levels[3]". Code
 * that walks down a tree enters what it looks at and leaves it again:
 *
 *     size_t length = fleet_value_path_enter(&path, "amp_configs");
 *     …
 *     fleet_value_path_leave(&path, length);
 */

#include <stddef.h>

struct fleet_strbuf;

/* Go down to a member; longer names are cut at 128 bytes. Returns what fleet_value_path_leave()
 * needs. */
size_t fleet_value_path_enter(struct fleet_strbuf *path, const char *name);

/* Go down to an element of a list. Returns the same. */
size_t fleet_value_path_enter_element(struct fleet_strbuf *path, size_t index);

/* Go up again. */
void fleet_value_path_leave(struct fleet_strbuf *path, size_t length);

#endif
