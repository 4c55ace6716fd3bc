/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_MANAGER_H
#define CONTROLLER_MACHINERY_MANAGER_H

/*
 * The parts of a controller, put together on one loop:
 *
 *     informers ─▶ on_change ─▶ manager_enqueue ─▶ workqueue ─▶ reconcile ─▶ manager_done
 *                                                     ▲                          │
 *                                                     └── back-off, requeue_after ┘
 *
 *  (1) Nothing is reconciled before every informer has synced and, with an election, this process
 *      leads; nothing after leadership is lost, without exception.
 *  (2) A key is never reconciled twice at the same time: one reconcile lasts from its call until
 *      manager_done.
 *  (3) At most MANAGER_TURN keys are begun in one turn of the loop, so that sockets and probes are
 *      served however long the queue is.
 *  (4) It ends by manager_stop() or by losing the lease. The lease is given back first.
 *
 * It has no sockets but the probes': the outside world is a kube_io.
 */

#include <stdbool.h>
#include <stdint.h>

#include "controller/machinery/informer.h"
#include "controller/machinery/leader_election.h"
#include "controller/machinery/metrics.h"

struct fleet_error;
struct kube_io;
struct manager;

#define MANAGER_TURN         32 /* keys begun in a turn of the loop */
#define MANAGER_WORKING_MAX  64 /* keys being reconciled at once */
#define MANAGER_INFORMER_MAX 16
#define MANAGER_RETRY_MIN_MS 50.0 /* the wait after a first failure; doubles */
#define MANAGER_RETRY_MAX_MS 60000.0

enum manager_end {
    MANAGER_STOPPED,    /* manager_stop(), and the lease is given back */
    MANAGER_LEASE_LOST, /* the process should exit with an error */
};

struct manager_options {
    struct kube_io *io;
    struct metrics *metrics; /* gets the manager's own; outlives it */

    /* NULL: no election, this process leads from the start, epoch 0. Its callbacks are not used. */
    const struct leader_election_options *election;

    /* Converge this key. manager_done() must follow, from within or later. */
    void (*reconcile)(void *user, const char *key);
    void (*on_leading)(void *user, int64_t epoch); /* before the first reconcile; NULL */
    void (*on_end)(void *user, enum manager_end end);
    /* For the log: `what` is constant text, Capital first. NULL */
    /* For the log; `key` is the object's, NULL if it is about no single one. NULL. */
    void (*on_trouble)(void *user, const char *what, const char *key,
                       const struct fleet_error *err);
    void *user;
};

/* Strings and options are copied; io and metrics outlive it. Nothing happens before
 * manager_start(). */
struct manager *manager_new(const struct manager_options *options);

/* After on_end, or instead of it. */
void manager_free(struct manager *manager);

/* Add an informer, before manager_start(); it belongs to the manager and starts with it. The
 * options' on_change runs with their own user; their on_synced and on_trouble are the manager's and
 * ignored. Returns its number, for manager_store(). */
int manager_add_informer(struct manager *manager, const struct informer_options *options);

/* Start the informers and the election; keys are reconciled once it leads and all have synced. */
void manager_start(struct manager *manager);

/* Begin to end: no key is begun any more, those being reconciled are not waited for. */
void manager_stop(struct manager *manager);

/* The cache of the informer with that number, borrowed. */
const struct store *manager_store(const struct manager *manager, int informer);

/* Look at a key now, or at `due_ms` of the io's clock. */
void manager_enqueue(struct manager *manager, const char *key);
void manager_enqueue_at(struct manager *manager, const char *key, double due_ms);

/*
 * The reconcile of `key` is over. `err` NULL: fine, and to be looked at again after
 * `requeue_after_ms` (negative: only when something changes). With `err` it is tried again after a
 * wait that grows with the failures in a row.
 *
 * A key that wrote something comes back in any case, EXPECTATIONS_TIMEOUT_MS later: when a list
 * replaces the cache, an object that was made and deleted in between was never in it, and nothing
 * changes.
 */
void manager_done(struct manager *manager, const char *key, const struct fleet_error *err,
                  double requeue_after_ms);

/* Bring what is counted elsewhere (lists, watches, events, cached objects) into the metrics: before
 * they are printed. */
void manager_collect(struct manager *manager);

/* Ask before each effect: may this process act? */
bool manager_is_leading(const struct manager *manager);

/* This process leads, and its Lease was renewed by a request sent at `since_ms` of the io's clock
 * or later: what was seen at `since_ms` was not the work of a leader after it. */
bool manager_leads_since(const struct manager *manager, double since_ms);

/* All informers have synced. */
bool manager_has_synced(const struct manager *manager);

/* informer_is_live() of the informer that manager_add_informer() has numbered so. */
bool manager_is_live(const struct manager *manager, int informer);

#endif
