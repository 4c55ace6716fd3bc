/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Open addressing with linear probing, at most three quarters full. Removal shifts later entries
 * back instead of leaving tombstones, so that a map that lives for months does not slow down.
 */
#include "libfleet/base/map.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

static _Atomic uint64_t seed; /* 0 = not drawn yet */

void fleet_map_set_seed(uint64_t value)
{
    seed = value | 1;
}

/* The hash key of this process, drawn at the first use. If two threads draw it at once, the
 * compare-and-swap keeps one. */
static uint64_t hash_seed(void)
{
    uint64_t value = seed;

    if (value == 0) {
        uint64_t none = 0;
        if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value))
            value = (uint64_t)(uintptr_t)&seed * 0x9e3779b97f4a7c15u;
        value |= 1;
        if (!__atomic_compare_exchange_n((uint64_t *)&seed, &none, value, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            value = none;
    }
    return value;
}

static size_t hash(const char *key)
{
    uint64_t h = hash_seed();

    for (const unsigned char *p = (const unsigned char *)key; *p; p++) {
        h = (h ^ *p) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return (size_t)h;
}

/* The slot of `key`, or the free slot where it would go. There is always a free one. */
static struct fleet_map_entry *locate_hashed(const struct fleet_map *map, const char *key,
                                             size_t hashed)
{
    size_t mask = map->capacity - 1;

    for (size_t i = hashed & mask;; i = (i + 1) & mask) {
        struct fleet_map_entry *entry = &map->entries[i];
        if (!entry->key || (entry->hash == hashed && strcmp(entry->key, key) == 0))
            return entry;
    }
}

static struct fleet_map_entry *locate(const struct fleet_map *map, const char *key)
{
    return locate_hashed(map, key, hash(key));
}

static void grow(struct fleet_map *map)
{
    struct fleet_map bigger = {.capacity = map->capacity ? map->capacity * 2 : 16,
                               .count = map->count};

    if ((map->count + 1) * 4 <= map->capacity * 3)
        return;
    bigger.entries = calloc(bigger.capacity, sizeof(*bigger.entries));
    fleet_assert(bigger.entries != NULL);
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entries[i].key)
            *locate_hashed(&bigger, map->entries[i].key, map->entries[i].hash) = map->entries[i];
    free(map->entries);
    *map = bigger;
}

void fleet_map_release(struct fleet_map *map)
{
    for (size_t i = 0; i < map->capacity; i++)
        free(map->entries[i].key);
    free(map->entries);
    *map = (struct fleet_map){0};
}

bool fleet_map_insert(struct fleet_map *map, const char *key, void *value)
{
    size_t hashed = hash(key);
    struct fleet_map_entry *entry;

    grow(map);
    entry = locate_hashed(map, key, hashed);
    if (entry->key)
        return false;
    entry->key = fleet_dup_text(key);
    entry->hash = hashed;
    entry->value = value;
    map->count++;
    return true;
}

void *fleet_map_set(struct fleet_map *map, const char *key, void *value)
{
    struct fleet_map_entry *entry;
    void *old;

    if (fleet_map_insert(map, key, value))
        return NULL;
    entry = locate(map, key);
    old = entry->value;
    entry->value = value;
    return old;
}

void *fleet_map_get(const struct fleet_map *map, const char *key)
{
    struct fleet_map_entry *entry = map->capacity ? locate(map, key) : NULL;

    return entry && entry->key ? entry->value : NULL;
}

void *fleet_map_remove(struct fleet_map *map, const char *key)
{
    struct fleet_map_entry *entry = map->capacity ? locate(map, key) : NULL;
    size_t mask = map->capacity - 1, hole, next;
    void *old;

    if (!entry || !entry->key)
        return NULL;
    old = entry->value;
    free(entry->key);
    entry->key = NULL;
    map->count--;
    /* Close the gap: move back the entries that a search would no longer find across it. */
    hole = (size_t)(entry - map->entries);
    for (next = (hole + 1) & mask; map->entries[next].key; next = (next + 1) & mask) {
        size_t home = map->entries[next].hash & mask;
        if (((next - home) & mask) >= ((next - hole) & mask)) {
            map->entries[hole] = map->entries[next];
            map->entries[next].key = NULL;
            hole = next;
        }
    }
    return old;
}

const struct fleet_map_entry *fleet_map_next(const struct fleet_map *map, size_t *position)
{
    for (; *position < map->capacity; (*position)++)
        if (map->entries[*position].key)
            return &map->entries[(*position)++];
    return NULL;
}
