/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An entry is in the map by key. For each index, it is also in the list of entries with the same
 * value; the index's map points to the first of that list.
 */
#include "controller/machinery/store.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/map.h"
#include "libfleet/kube/meta.h"

#define SOURCE_MAX 256

struct store_entry {
    char *key;
    void *object;
    char *uid, *version;
    int source;
    uint64_t epoch; /* number of the last list that contained it */
    struct {
        struct store_entry *next, *previous; /* entries with the same value; NULL: at the end, at
                                              * the beginning */
    } list[STORE_INDEX_MAX];
};

struct store {
    const struct store_kind *kind;
    store_changed *changed;
    void *user;
    struct fleet_map entries;                /* key → struct store_entry *, owned */
    struct fleet_map index[STORE_INDEX_MAX]; /* value → first of the list */
    uint64_t epoch[SOURCE_MAX];
};

struct store *store_new(const struct store_kind *kind, store_changed *changed, void *user)
{
    struct store *store = calloc(1, sizeof(*store));

    fleet_assert(store != NULL);
    store->kind = kind;
    store->changed = changed;
    store->user = user;
    return store;
}

static void entry_free(struct store *store, struct store_entry *entry)
{
    store->kind->release(entry->object);
    free(entry->key);
    free(entry->uid);
    free(entry->version);
    free(entry);
}

void store_free(struct store *store)
{
    const struct fleet_map_entry *item;

    if (!store)
        return;
    for (size_t i = 0; (item = fleet_map_next(&store->entries, &i));)
        entry_free(store, item->value);
    fleet_map_release(&store->entries);
    for (int i = 0; i < STORE_INDEX_MAX; i++)
        fleet_map_release(&store->index[i]);
    free(store);
}

/* ---- indexes --------------------------------------------------------------------------------- */

static const char *index_value(const struct store *store, int i, const struct store_entry *entry)
{
    return store->kind->index[i] ? store->kind->index[i](entry->object) : NULL;
}

static void index_add(struct store *store, struct store_entry *entry)
{
    for (int i = 0; i < STORE_INDEX_MAX; i++) {
        const char *value = index_value(store, i, entry);
        struct store_entry *first = value ? fleet_map_get(&store->index[i], value) : NULL;
        if (!value)
            continue;
        entry->list[i].next = first;
        entry->list[i].previous = NULL;
        if (first)
            first->list[i].previous = entry;
        fleet_map_set(&store->index[i], value, entry);
    }
}

static void index_remove(struct store *store, struct store_entry *entry)
{
    for (int i = 0; i < STORE_INDEX_MAX; i++) {
        const char *value = index_value(store, i, entry);
        struct store_entry *next = entry->list[i].next, *previous = entry->list[i].previous;
        if (!value)
            continue;
        if (next)
            next->list[i].previous = previous;
        if (previous)
            previous->list[i].next = next;
        else if (next)
            fleet_map_set(&store->index[i], value, next);
        else
            fleet_map_remove(&store->index[i], value);
        entry->list[i].next = entry->list[i].previous = NULL;
    }
}

/* ---- changes --------------------------------------------------------------------------------- */

static void take_out(struct store *store, struct store_entry *entry)
{
    index_remove(store, entry);
    fleet_map_remove(&store->entries, entry->key);
    if (store->changed)
        store->changed(store->user, entry->key, entry->object, NULL);
    entry_free(store, entry);
}

static void put_in(struct store *store, char *key, void *object, const struct kube_meta *meta,
                   int source)
{
    struct store_entry *entry = calloc(1, sizeof(*entry));

    fleet_assert(entry != NULL);
    *entry = (struct store_entry){.key = key,
                                  .object = object,
                                  .uid = strdup(meta->uid),
                                  .version = strdup(meta->resource_version),
                                  .source = source,
                                  .epoch = store->epoch[source]};
    fleet_map_insert(&store->entries, key, entry);
    index_add(store, entry);
    if (store->changed)
        store->changed(store->user, entry->key, NULL, entry->object);
}

static void replace(struct store *store, struct store_entry *entry, void *object,
                    const struct kube_meta *meta)
{
    void *before = entry->object;

    index_remove(store, entry);
    entry->object = object;
    free(entry->version);
    entry->version = strdup(meta->resource_version);
    index_add(store, entry);
    if (store->changed)
        store->changed(store->user, entry->key, before, object);
    store->kind->release(before);
}

int store_set(struct store *store, int source, const cJSON *object, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *key = NULL;
    struct store_entry *entry;
    struct kube_meta meta;
    void *projected;

    fleet_assert(source >= 0 && source < SOURCE_MAX);
    if (kube_meta_view(object, &meta, err) < 0)
        return -EINVAL;
    key = kube_meta_key(meta.namespace_, meta.name);
    entry = fleet_map_get(&store->entries, key);
    if (entry && strcmp(entry->uid, meta.uid) != 0) { /* (3) */
        take_out(store, entry);
        entry = NULL;
    }
    if (entry)
        entry->epoch = store->epoch[source];
    if (entry && strcmp(entry->version, meta.resource_version) == 0)
        return 0;
    projected = store->kind->project(object, err);
    if (!projected) {
        if (entry)
            take_out(store, entry);
        (void)fleet_error_wrap(err, "%s", key);
        return -EINVAL;
    }
    if (entry) {
        replace(store, entry, projected, &meta);
    } else {
        put_in(store, key, projected, &meta, source);
        key = NULL; /* moved into the entry */
    }
    return 0;
}

void store_delete(struct store *store, const cJSON *object)
{
    FLEET_AUTO_FREE char *key = NULL;
    struct store_entry *entry;
    struct kube_meta meta;

    if (kube_meta_view(object, &meta, NULL) < 0)
        return;
    key = kube_meta_key(meta.namespace_, meta.name);
    entry = fleet_map_get(&store->entries, key);
    if (entry && strcmp(entry->uid, meta.uid) == 0)
        take_out(store, entry);
}

void store_begin(struct store *store, int source)
{
    fleet_assert(source >= 0 && source < SOURCE_MAX);
    store->epoch[source]++;
}

/* Collect the keys first: removing entries changes the map, and callbacks may read it. */
void store_end(struct store *store, int source)
{
    FLEET_AUTO_FREE struct store_entry **stale =
        calloc(store->entries.count + 1, sizeof(struct store_entry *));
    const struct fleet_map_entry *item;
    size_t count = 0;

    fleet_assert(stale != NULL);
    for (size_t i = 0; (item = fleet_map_next(&store->entries, &i));) {
        struct store_entry *entry = item->value;
        if (entry->source == source && entry->epoch != store->epoch[source])
            stale[count++] = entry;
    }
    for (size_t i = 0; i < count; i++)
        take_out(store, stale[i]);
}

/* ---- looking --------------------------------------------------------------------------------- */

size_t store_count(const struct store *store)
{
    return store->entries.count;
}

const void *store_get(const struct store *store, const char *key)
{
    const struct store_entry *entry = fleet_map_get(&store->entries, key);

    return entry ? entry->object : NULL;
}

const struct store_entry *store_first(const struct store *store, int index, const char *value)
{
    fleet_assert(index >= 0 && index < STORE_INDEX_MAX);
    return fleet_map_get(&store->index[index], value);
}

const struct store_entry *store_next(const struct store_entry *entry, int index)
{
    return entry->list[index].next;
}

const void *store_object(const struct store_entry *entry)
{
    return entry->object;
}
