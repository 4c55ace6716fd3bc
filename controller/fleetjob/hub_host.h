/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_HUB_HOST_H
#define CONTROLLER_FLEETJOB_HUB_HOST_H

/*
 * The hub of one job, in the controller and in `fleetjob run`. The host makes the hub when
 * reconcile() wants one, passes decisions on to it, reads what it knows, and lets it assign a
 * generation only after that was recorded.
 *
 *  (1) A generation is recorded before it is assigned: the hub asks, the owner writes (in the
 *      controller status_writer.h, with the resourceVersion it has seen), and only then
 *      hub_record_done().
 *  (2) A replica that does not lead any more records nothing.
 *  (3) If a member or the status holds a greater epoch than the hub's, and this replica led after
 *      that was seen, the epochs were lost or restored (the Lease was deleted, the status
 *      replaced). The hub is made again in an epoch greater than that, and goes on from what its
 *      members hold.
 *  (4) A hub with a broken invariant (HUB_EVENT_DEFECT) does nothing any more. `event` is called;
 *      the owner drops it when hub_host_defect() says so, and hub_host_apply() makes another one.
 *      Hubs of one epoch give no number of a generation twice.
 *  (5) Without a policy (the spec is not valid any more) a hosted hub goes on with its last
 *      policy, and none is made.
 *
 * The network is a table of functions: hub_server.h in programs, memory in tests
 * (tests/fake/hub_network.h).
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
    bool is_local; /* members run on this machine: each step is reported, and one that is gone is
                      "MemberLost", as no pod is */
    /* As hub_server_add() … ; `job` is what add gave. */
    int (*add)(void *user, const char *job_uid, struct hub *hub,
               const struct hub_server_handlers *handlers, void **out_job, struct fleet_error *err);
    void (*remove)(void *job);
    void (*apply)(void *job, struct hub_output *out);
    void (*answer_record)(void *job, struct fleet_generation generation, bool is_done);
    double (*now_ms)(void *user);
    int64_t (*wall_ms)(void *user);
};

/* Hubs behind hub_server.h. `server` is borrowed. */
struct hub_network hub_host_server_network(struct hub_server *server);

struct hub_host_handlers {
    /* Record it. True = it is durable already; else hub_host_answer_record(), later. */
    bool (*record)(void *user, const struct hub_record *record);
    /* The view has taken this event in, and reconcile() should see it: `is_step` if it was only a
     * step like those before. */
    void (*event)(void *user, const struct hub_event *event, bool is_step);
    /* Does this replica lead, by a Lease that was renewed at `since_ms` or later? NULL = it does:
     * there is no other. */
    bool (*leads_since)(void *user, double since_ms);
    void *user;
    /* As in hub_server_handlers; borrowed as long as the host lives. */
    const char *namespace_, *name;
};

/* Strings are copied; nothing is hosted yet. */
struct hub_host *hub_host_new(const struct hub_network *network, const char *job_uid, int64_t epoch,
                              const struct hub_host_handlers *handlers);

/* Members get no message: they look for the next hub. NULL is fine. */
void hub_host_free(struct hub_host *host);

/* Drop the hub, which was made from an old status. Members get no message. */
void hub_host_drop(struct hub_host *host);

/* The text of the assertion that failed in the hub or in its view; NULL = none. hub_host_drop()
 * ends that hub and clears the view. */
const char *hub_host_defect(const struct hub_host *host);

/* The job is gone: its members get `done`, then nothing is hosted any more. */
void hub_host_end(struct hub_host *host);

/* What is known now. Borrowed until the next call. */
const struct hub_view *hub_host_view(struct hub_host *host);

/*
 * Carry out the decisions of reconcile() about the hub: host one, configure it, pass on the order
 * of ranks, why members leave, which will not come back, and that the job is over; or host none.
 * `actions->status` was written before; a new hub goes on from it. -errno if none can be hosted.
 */
int hub_host_apply(struct hub_host *host, const struct actions *actions, const char *plan_digest,
                   struct fleet_error *err);

/* The job's Secret has changed under this replica: a hub that is made from now on waits
 * HUB_HOST_MOVED_MS for members that it has not heard from, because a kubelet takes up to two
 * minutes to bring the new address and CA to a pod. */
#define HUB_HOST_MOVED_MS 150000.0
void hub_host_note_moved(struct hub_host *host);

/* A greater epoch was seen, and it is not proven yet that this replica leads: hub_host_apply() must
 * be called again soon. */
bool hub_host_is_superseded(const struct hub_host *host);

/* This member will not come back. */
void hub_host_gone(struct hub_host *host, const char *pod_uid);

/* Ask the members for a checkpoint now; training goes on. Nothing without a hub. */
void hub_host_checkpoint(struct hub_host *host);

/* Was the record written that the handler `record` asked for? (hub_record_done(), _failed()) */
void hub_host_answer_record(struct hub_host *host, struct fleet_generation generation,
                            bool is_done);

/* Is a hub hosted that does not know yet that the job is over? */
bool hub_host_is_active(const struct hub_host *host);

/* The hosted hub, to be read; NULL = none. Borrowed until the next call. */
const struct hub *hub_host_hub(const struct hub_host *host);

/* The newest generation that the hub was made from, or has asked to record. The status has no
 * other. hub_host_apply() drops a hub that was made from an older status. */
struct fleet_generation hub_host_recorded(const struct hub_host *host);

/* The lineage as it will be when `record` is done; empty if there is no hub. */
struct fleet_lineage hub_host_lineage(const struct hub_host *host, const struct hub_record *record);

#endif
