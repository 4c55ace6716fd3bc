/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_REFLECTOR_H
#define CONTROLLER_MACHINERY_REFLECTOR_H

/*
 * Keeps a store equal to a collection of the API server: LIST, then WATCH from there, for ever.
 *
 * Its states and what moves it between them are drawn in reflector.c. What a caller may rely on:
 *  (1) After any failure of the network, once it works again, the store becomes equal to the
 *      collection.
 *  (2) Nothing is skipped: a watch goes on from the last version that the store has, and where that
 *      is not possible the whole is listed again.
 *  (3) Failures wait: exponentially, jittered, REFLECTOR_WAIT_MAX_MS at most.
 *  (4) If a page is larger than KUBE_RESPONSE_MAX, it is requested again with fewer items.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct kube_io;
struct kube_resource;
struct reflector;
struct store;

#define REFLECTOR_WAIT_MIN_MS 200.0
#define REFLECTOR_WAIT_MAX_MS 30000.0
#define REFLECTOR_PAGE        500
#define REFLECTOR_PAGE_MAX    10000 /* after pages that had expired before they were asked for */
#define REFLECTOR_WATCH_S_MIN 300   /* the server ends a watch after 5 to 10 minutes */

struct reflector_options {
    const struct kube_resource *resource;
    const char *namespace_;     /* NULL or "": all */
    const char *label_selector; /* NULL: none */
    const char *field_selector; /* NULL: none */
    int source;                 /* of the store: one reflector, one source */
    int page;                   /* items a LIST answers at once, at first; 0: REFLECTOR_PAGE */

    void (*on_synced)(void *user); /* the first list is in the store; NULL */
    /* An error, for the log; the reflector goes on by itself. NULL */
    void (*on_trouble)(void *user, const struct fleet_error *err);
    void *user;
};

struct reflector_counts {
    uint64_t lists, watches, events, troubles;
};

/* Start. Strings are copied; io, resource and store outlive the reflector. */
struct reflector *reflector_new(struct kube_io *io, struct store *store,
                                const struct reflector_options *options);

/* Cancels its requests; the store stays as it is. NULL is fine. */
void reflector_free(struct reflector *reflector);

/* A whole list has been put into the store; never false again. */
bool reflector_has_synced(const struct reflector *reflector);

/* The store is at most some seconds old: a watch is open, and brings changes or would have
 * failed by now. False while a list is on its way, or the server cannot be reached. */
#define REFLECTOR_LIVE_MS 25000.0
bool reflector_is_live(const struct reflector *reflector);

/* For metrics: since its start. */
struct reflector_counts reflector_counts(const struct reflector *reflector);

#endif
