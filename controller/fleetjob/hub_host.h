/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_HUB_HOST_H
#define CONTROLLER_FLEETJOB_HUB_HOST_H

/*
 * The hub of one job in the controller: made when reconcile() wants one, told what it decided,
 * asked what it knows, and kept from assigning anybody before its generation stands in the status.
 *
 *  (1) A generation is recorded before it is assigned: the hub asks, status_writer.h writes with
 *      the resourceVersion it has seen, and only then hub_record_done().
 *  (2) A replica that does not lead any more records nothing.
 *  (3) If a member or the status holds a greater epoch than the hub's, and this replica led after
 *      that was seen, the epochs were lost or restored (the Lease was deleted, the status
 *      replaced). The hub is made anew in an epoch greater than that, and goes on from what its
 *      members hold.
 *  (4) A hub with a broken invariant (HUB_EVENT_DEFECT) does nothing any more. `changed` is called;
 *      the owner drops it when hub_host_defect() says so, and hub_host_apply() makes another one.
 *      Hubs of one epoch give no number of a generation twice.
 *  (5) Without a policy (the spec is not valid any more) a hosted hub goes on with its last
 *      policy, and none is made.
 *
 * The network is a table of functions: hub_server.h in the controller, memory in tests.
 */

#include <stdbool.h>
#include <stdint.h>

#include "controller/fleetjob/hub_view.h"
#include "controller/fleetjob/reconcile.h"
#include "libfleet/rendezvous/hub_server.h"

struct fleet_error;
struct hub_host;

struct hub_network {
    void *user;
    /* As hub_server_add() … ; `job` is what add gave. */
    int (*add)(void *user, const char *job_uid, struct hub *hub,
               const struct hub_server_handlers *handlers, void **out_job, struct fleet_error *err);
    void (*remove)(void *job);
    struct hub *(*hub)(void *job);
    void (*apply)(void *job, struct hub_output *out);
    void (*record_done)(void *job, struct fleet_generation generation);
    void (*record_failed)(void *job, struct fleet_generation generation);
    double (*now_ms)(void *user);
    int64_t (*wall_ms)(void *user);
};

/* Hubs behind hub_server.h. `server` is borrowed. */
struct hub_network hub_host_server_network(struct hub_server *server);

struct hub_host_handlers {
    /* Write it down; then hub_host_record_done() or _failed(), later. */
    void (*record)(void *user, const struct hub_record *record);
    /* Something happened that reconcile() should see: `is_step` if it was only a step. */
    void (*changed)(void *user, bool is_step);
    /* Does this replica lead, by a Lease that was renewed at `since_ms` or later? */
    bool (*leads_since)(void *user, double since_ms);
    /* The member has the order to leave for good: its pod is to be replaced. */
    void (*evicted)(void *user, const char *pod_uid);
    void *user;
    const char *namespace_,
        *name; /* as in hub_server_handlers; borrowed as long as the host lives */
};

/* Strings are copied; nothing is hosted yet. */
struct hub_host *hub_host_new(const struct hub_network *network, const char *job_uid, int64_t epoch,
                              const struct hub_host_handlers *handlers);

/* Without a word to the members: they look for the next hub. NULL is fine. */
void hub_host_free(struct hub_host *host);

/* Host none for now, without a word to the members: it was made from an old status. */
void hub_host_drop(struct hub_host *host);

/* The words of the assertion that failed in the hub, or in what is known from it; NULL = none.
 * hub_host_drop() ends that hub, and all that it said is forgotten. */
const char *hub_host_defect(const struct hub_host *host);

/* The job is gone: its members get `done`, then nothing is hosted any more. */
void hub_host_end(struct hub_host *host);

/* What is known now. Borrowed until the next call. */
const struct hub_view *hub_host_view(struct hub_host *host);

/*
 * Make it so: host one, configure it, tell it that the job is over, host none. `status` is what was
 * written before, from which a new hub goes on. -errno if none can be hosted.
 */
int hub_host_apply(struct hub_host *host, const struct action_hub *wanted,
                   const struct fleetjob_status *status, const char *plan_digest,
                   struct fleet_error *err);

/* The job's Secret has changed under this replica: a hub that is made from now on waits
 * HUB_HOST_MOVED_MS for members that it has not heard of, because a kubelet takes up to two minutes
 * to bring the new address and CA to a pod. */
#define HUB_HOST_MOVED_MS 150000.0
void hub_host_note_moved(struct hub_host *host);

/* A greater epoch was seen, and it is not proven yet that this replica leads: hub_host_apply() must
 * be called again soon. */
bool hub_host_is_superseded(const struct hub_host *host);

/* The order in which ranks begin (hub_order()). */
void hub_host_order(struct hub_host *host, const char *const *pod_uids, size_t count);

/* Why this member goes (hub_member_departs()). */
void hub_host_departs(struct hub_host *host, const struct action_departure *departure);

/* This member will not come back. */
void hub_host_gone(struct hub_host *host, const char *pod_uid);

/* What became of a record that was asked for by the handler `record` (hub_record_done(),
 * _failed()). */
void hub_host_record_done(struct hub_host *host, struct fleet_generation generation);
void hub_host_record_failed(struct hub_host *host, struct fleet_generation generation);

/* The newest generation that the hub was made from, or has asked to record: none but these may
 * stand in the status; one made from an older status is dropped by hub_host_apply(). */
struct fleet_generation hub_host_recorded(const struct hub_host *host);

/* The lineage as it will be when `record` is done: at most FLEETJOB_HISTORY_MAX entries, oldest
 * first. */
size_t hub_host_lineage(const struct hub_host *host, const struct hub_record *record,
                        struct fleetjob_lineage out[FLEETJOB_HISTORY_MAX]);

#endif
