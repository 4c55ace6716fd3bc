/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One hash table; an entry has a value, or waiters, never both. Waiters of an entry are a plain
 * list, because at most the members of one generation wait for a key.
 */
#include "libfleet/rendezvous/kv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"

struct entry {
    void *value; /* NULL: not put yet */
    size_t size;
    uint64_t *waiters; /* [waiter_count] */
    size_t waiter_count;
};

struct kv {
    struct fleet_generation generation;
    struct fleet_map entries; /* key -> struct entry */
    size_t bytes;             /* of keys and values */
    size_t waiter_count;      /* of all entries */
};

struct kv *kv_new(void)
{
    struct kv *kv = calloc(1, sizeof(*kv));

    fleet_assert(kv != NULL);
    return kv;
}

static void entry_free(struct entry *entry)
{
    free(entry->value);
    free(entry->waiters);
    free(entry);
}

static void forget_all(struct kv *kv)
{
    const struct fleet_map_entry *at;

    for (size_t i = 0; (at = fleet_map_next(&kv->entries, &i));)
        entry_free(at->value);
    fleet_map_release(&kv->entries);
    kv->bytes = 0;
    kv->waiter_count = 0;
}

void kv_free(struct kv *kv)
{
    if (!kv)
        return;
    forget_all(kv);
    free(kv);
}

void kv_begin(struct kv *kv, struct fleet_generation generation)
{
    forget_all(kv);
    kv->generation = generation;
}

static int check_generation(const struct kv *kv, struct fleet_generation generation,
                            const char *key, struct fleet_error *err)
{
    if (fleet_generation_compare(kv->generation, generation) != 0 ||
        fleet_generation_is_none(generation))
        return fleet_error(err, -ESTALE, "key %.64s: generation %lld.%lld is not the current one",
                           key, (long long)generation.epoch, (long long)generation.counter);
    return 0;
}

/* The entry of `key`, made if there is room; NULL and *err otherwise. */
static struct entry *obtain_entry(struct kv *kv, const char *key, struct fleet_error *err)
{
    struct entry *entry = fleet_map_get(&kv->entries, key);

    if (entry)
        return entry;
    if (kv->entries.count >= KV_ENTRIES_MAX || kv->bytes + strlen(key) > KV_BYTES_MAX) {
        (void)fleet_error(err, -ENOSPC, "key %.64s: the store is full (%zu keys, %zu bytes)", key,
                          kv->entries.count, kv->bytes);
        return NULL;
    }
    entry = calloc(1, sizeof(*entry));
    fleet_assert(entry != NULL);
    fleet_map_insert(&kv->entries, key, entry);
    kv->bytes += strlen(key);
    return entry;
}

int kv_put(struct kv *kv, struct fleet_generation generation, const char *key, const void *value,
           size_t size, void (*answer)(void *user, uint64_t waiter), void *user,
           struct fleet_error *err)
{
    struct entry *entry;
    uint64_t *waiters;
    size_t waiter_count;

    if (check_generation(kv, generation, key, err) < 0)
        return -ESTALE;
    entry = obtain_entry(kv, key, err);
    if (!entry)
        return -ENOSPC;
    if (kv->bytes - entry->size + size > KV_BYTES_MAX)
        return fleet_error(err, -ENOSPC, "key %.64s: %zu bytes more than the store's limit of %u",
                           key, kv->bytes - entry->size + size - KV_BYTES_MAX, KV_BYTES_MAX);

    kv->bytes = kv->bytes - entry->size + size;
    free(entry->value);
    entry->value = malloc(size + 1); /* never NULL, even for 0 bytes */
    fleet_assert(entry->value != NULL);
    if (size > 0)
        memcpy(entry->value, value, size);
    entry->size = size;

    waiters = entry->waiters;
    waiter_count = entry->waiter_count;
    entry->waiters = NULL;
    entry->waiter_count = 0;
    kv->waiter_count -= waiter_count;
    for (size_t i = 0; i < waiter_count; i++)
        answer(user, waiters[i]);
    free(waiters);
    return 0;
}

int kv_get(struct kv *kv, struct fleet_generation generation, const char *key, uint64_t waiter,
           const void **out_value, size_t *out_size, struct fleet_error *err)
{
    struct entry *entry;

    if (check_generation(kv, generation, key, err) < 0)
        return -ESTALE;
    entry = obtain_entry(kv, key, err);
    if (!entry)
        return -ENOSPC;
    if (entry->value) {
        *out_value = entry->value;
        *out_size = entry->size;
        return 1;
    }
    for (size_t i = 0; i < entry->waiter_count; i++)
        if (entry->waiters[i] == waiter)
            return 0;
    if (kv->waiter_count >= KV_WAITERS_MAX)
        return fleet_error(err, -ENOSPC, "key %.64s: %zu gets wait already", key, kv->waiter_count);
    entry->waiters = fleet_grow(entry->waiters, entry->waiter_count, sizeof(*entry->waiters));
    entry->waiters[entry->waiter_count++] = waiter;
    kv->waiter_count++;
    return 0;
}

void kv_forget(struct kv *kv, uint64_t waiter)
{
    const struct fleet_map_entry *at;

    for (size_t i = 0; (at = fleet_map_next(&kv->entries, &i));) {
        struct entry *entry = at->value;
        for (size_t w = 0; w < entry->waiter_count; w++)
            if (entry->waiters[w] == waiter) {
                entry->waiters[w] = entry->waiters[--entry->waiter_count];
                kv->waiter_count--;
                break;
            }
    }
}
