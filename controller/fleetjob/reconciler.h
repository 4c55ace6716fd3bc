/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILER_H
#define CONTROLLER_FLEETJOB_RECONCILER_H

/*
 * The controller of FleetJobs: watches jobs and pods, and brings each job to its desired state.
 *
 *     store, hub ─▶ observe() ─▶ reconcile() ─▶ status ─▶ events, hub, pods
 *
 *  (1) A pass decides on the content of the cache, and only when the cache has all that earlier
 *      passes have written and made.
 *  (2) The status is written first, once, with the version it rests on. A pass that decided on
 *      an old state is refused there, and does nothing. Events follow a write that succeeded.
 *  (3) Only the leader acts.
 *
 * Time, network and randomness come through kube_io and hub_network.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "controller/fleetjob/hub_host.h"
#include "controller/fleetjob/install_identity.h"
#include "controller/machinery/manager.h"

struct background;
struct event_recorder;
struct fleet_error;
struct reconciler;

struct reconciler_options {
    struct kube_io *io;
    struct metrics *metrics;
    bool has_job_metrics;                           /* series of each job, see job_metrics.h */
    const struct leader_election_options *election; /* NULL = no election, epoch 1 */
    const char *const *namespaces;                  /* [namespace_count]; none: all */
    size_t namespace_count;
    const char *runtime_image, *cuda_image, *pull_policy; /* see pod_builder.h */
    bool has_json_logs;
    bool encrypts_data;                      /* see job_secret.h */
    const char *hub_address;                 /* that agents dial */
    const struct install_identity *identity; /* borrowed */
    struct event_recorder *events;           /* borrowed */
    struct background *background; /* for searches (job_search.h); borrowed, NULL: as there */

    /* This process leads from now on: open the network that hubs live on. -errno ends the
     * program. */
    int (*open_network)(void *user, struct hub_network *out, struct fleet_error *err);
    void (*on_end)(void *user, enum manager_end end);
    /* For the log; `job` is "namespace/name", NULL if it is about no single one. NULL. */
    void (*on_trouble)(void *user, const char *what, const char *job,
                       const struct fleet_error *err);
    /* For tests: called where a pass decides about the job with this key. NULL. */
    void (*on_decide)(void *user, const char *key);
    void *user;
};

/* Strings of the options are borrowed. Starts at once. */
struct reconciler *reconciler_new(const struct reconciler_options *options);

/* Begin to end; on_end follows. */
void reconciler_stop(struct reconciler *reconciler);

/* After on_end, or instead of it. Members get no message. */
void reconciler_free(struct reconciler *reconciler);

/* Before the metrics are printed: bring those up to date that are not counted as they happen. */
void reconciler_collect(struct reconciler *reconciler);

/* Leads and has its caches: for /readyz and tests. */
bool reconciler_has_synced(const struct reconciler *reconciler);
bool reconciler_is_leading(const struct reconciler *reconciler);

#endif
