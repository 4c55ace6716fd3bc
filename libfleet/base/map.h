/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_MAP_H
#define LIBFLEET_BASE_MAP_H

/*
 * A hash table from strings to pointers: open addressing, keys copied, values borrowed.
 * Keyed with a per-process random seed, so that names chosen by others cannot make it slow.
 * Empty is all zero. Out of memory aborts.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_map_entry {
    char *key;   /* NULL: free place */
    void *value; /* borrowed */
    size_t hash; /* of the key */
};

struct fleet_map {
    struct fleet_map_entry *entries; /* [capacity], capacity 0 or a power of two */
    size_t capacity;
    size_t count;
};

/* Free the table and its keys, not the values. The map is empty afterwards. */
void fleet_map_release(struct fleet_map *map);

/* For simulations, before the first map: the order of iteration is the same in every process. */
void fleet_map_set_seed(uint64_t value);

/* False, and nothing changed, if the key is already there. */
bool fleet_map_insert(struct fleet_map *map, const char *key, void *value);

/* Insert or replace; returns the value that was there, or NULL. */
void *fleet_map_set(struct fleet_map *map, const char *key, void *value);

/* The value, or NULL. */
void *fleet_map_get(const struct fleet_map *map, const char *key);

/* Remove; returns the value that was there, or NULL. */
void *fleet_map_remove(struct fleet_map *map, const char *key);

/*
 * Iterate, in no particular order, while the map does not change:
 *     for (size_t i = 0; (entry = fleet_map_next(&map, &i));)
 */
const struct fleet_map_entry *fleet_map_next(const struct fleet_map *map, size_t *position);

#endif
