/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_STORE_H
#define CONTROLLER_MACHINERY_STORE_H

/*
 * The cache of one kind of object: the newest state that the API server sent, reduced to the fields
 * that we use.
 *
 * Each object is projected when it comes in (the twenty fields of a pod that matter, not the pod),
 * found by key ("namespace/name") and by indexes (all pods of one job).
 *
 *  (1) Objects in the store are shared and read-only, and live until the store changes.
 *  (2) A change is reported once: `changed` runs after the store has it, with before and after.
 *      While it runs, `before` still lives.
 *  (3) An object that was deleted and made again is reported as two changes, whether or not the
 *      watch saw the deletion: their UIDs differ.
 *  (4) After store_end() the store holds exactly what was set since store_begin() of that source.
 */

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

struct fleet_error;
struct store;
struct store_entry;

#define STORE_INDEX_MAX 2

struct store_kind { /* constant */
    /* The reduced object, owned by the store; NULL with *err if it cannot be understood. */
    void *(*project)(const cJSON *object, struct fleet_error *err);
    void (*release)(void *projected);
    /* The value under which index i finds an object, borrowed from it; NULL: under none. */
    const char *(*index[STORE_INDEX_MAX])(const void *projected);
};

/* `before` NULL: added; `after` NULL: deleted. */
typedef void store_changed(void *user, const char *key, const void *before, const void *after);

/* Empty; `kind` outlives it. Free does not report the objects that it drops. */
struct store *store_new(const struct store_kind *kind, store_changed *changed, void *user);
void store_free(struct store *store);

/* ---- what reflectors do ---------------------------------------------------------------------- */

/*
 * Add or replace. The same resourceVersion as before changes nothing. An object that cannot be
 * projected is removed, because its last good state is no longer true, and -EINVAL is returned.
 */
int store_set(struct store *store, int source, const cJSON *object, struct fleet_error *err);

/* Take out the object that `object` names; nothing if it is not there. */
void store_delete(struct store *store, const cJSON *object);

/* A full list of `source` (one reflector of several) begins; is complete. */
void store_begin(struct store *store, int source);
void store_end(struct store *store, int source);

/* ---- what everyone else does ----------------------------------------------------------------- */

/* Objects of all sources. */
size_t store_count(const struct store *store);

/* The projected object, or NULL. */
const void *store_get(const struct store *store, const char *key);

/* Iterate an index in no particular order, while the store does not change:
 *     for (e = store_first(store, 0, uid); e; e = store_next(e, 0)) store_object(e) */
const struct store_entry *store_first(const struct store *store, int index, const char *value);
const struct store_entry *store_next(const struct store_entry *entry, int index);
const void *store_object(const struct store_entry *entry);

#endif
