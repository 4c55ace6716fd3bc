/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_INFORMER_H
#define CONTROLLER_MACHINERY_INFORMER_H

/*
 * A store that stays up to date: one store, and one reflector for each namespace that is watched.
 */

#include <stdbool.h>
#include <stddef.h>

#include "controller/machinery/reflector.h"
#include "controller/machinery/store.h"

struct informer;

#define INFORMER_NAMESPACES_MAX 200

struct informer_options {
    const struct kube_resource *resource;
    const struct store_kind *kind;
    const char *const *namespaces; /* [namespace_count]; none: all of the cluster */
    size_t namespace_count;
    const char *label_selector, *field_selector; /* NULL: none */

    store_changed *on_change;      /* see store.h; NULL */
    void (*on_synced)(void *user); /* every namespace is in the store; NULL */
    void (*on_trouble)(void *user, const struct fleet_error *err); /* for the log; NULL */
    void *user;
};

/* Starts at once; strings are copied. io, resource and kind outlive it. */
struct informer *informer_new(struct kube_io *io, const struct informer_options *options);
void informer_free(struct informer *informer);

/* Its store, borrowed. It is complete once every namespace was listed: has_synced. */
const struct store *informer_store(const struct informer *informer);
bool informer_has_synced(const struct informer *informer);

/* True if reflector_is_live() is true of each of its reflectors. */
bool informer_is_live(const struct informer *informer);

/* The sums over its reflectors. */
struct reflector_counts informer_counts(const struct informer *informer);

#endif
