/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Connects reconcile(), which decides what the job's hub should be, and the hub, which answers with
 * actions. A hub starts from the record in the status, so a hub that is lost with its process can
 * be made again.
 */
#include "controller/fleetjob/hub_host.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"

#define PROGRESS_MIN_MS        100.0 /* minimum between progress messages of a job … */
#define PROGRESS_MS_PER_MEMBER 5.0   /* … and longer if the job has many */

static_assert(FLEETJOB_HISTORY_MAX == FLEET_LINEAGE_MAX, "the whole lineage is recorded");

struct hub_host {
    struct hub_network network;
    struct hub_host_handlers handlers;
    char *job_uid;
    int64_t epoch, used_epoch; /* epoch of the Lease, and of our newest hub; 0 = none yet */
    void *job;                 /* the job in the network; NULL = not hosted */
    struct hub *hub;           /* while one is hosted; the network's */
    struct hub_policy policy;
    int64_t foreign_epoch;            /* the greatest epoch seen of another hub, 0 = none … */
    double foreign_ms;                /* … when */
    bool has_moved;                   /* members may not have its address yet */
    struct fleet_generation recorded; /* newest that our hub began with or proposed … */
    struct fleet_generation numbered; /* … and that any of our hubs proposed */
    char defect[HUB_DEFECT_MAX];      /* assertion that failed in the hub or in its view; "" =
                                       * none */
    bool is_over;                     /* the members know */
    struct hub_view view;
};

/* ---- the network of the programs ------------------------------------------------------------- */

static int server_add(void *user, const char *job_uid, struct hub *hub,
                      const struct hub_server_handlers *handlers, void **out_job,
                      struct fleet_error *err)
{
    struct hub_server_job *job = NULL;
    int rc = hub_server_add(user, job_uid, hub, handlers, &job, err);

    *out_job = job;
    return rc;
}

static void server_remove(void *job)
{
    hub_server_remove(job);
}

static void server_apply(void *job, struct hub_output *out)
{
    hub_server_apply(job, out);
}

static void server_answer_record(void *job, struct fleet_generation generation, bool is_done)
{
    hub_server_answer_record(job, generation, is_done);
}

static double server_now_ms(void *user)
{
    (void)user;
    return fleet_monotonic_ms();
}

static int64_t server_wall_ms(void *user)
{
    (void)user;
    return fleet_wall_ms();
}

struct hub_network hub_host_server_network(struct hub_server *server)
{
    return (struct hub_network){.user = server,
                                .add = server_add,
                                .remove = server_remove,
                                .apply = server_apply,
                                .answer_record = server_answer_record,
                                .now_ms = server_now_ms,
                                .wall_ms = server_wall_ms};
}

/* ---- what the hub says ----------------------------------------------------------------------- */

static bool on_record(void *user, const struct hub_record *record)
{
    struct hub_host *host = user;
    bool is_done = host->handlers.record(host->handlers.user, record);

    if (fleet_generation_compare(record->generation, host->recorded) > 0)
        host->recorded = record->generation;
    if (fleet_generation_compare(record->generation, host->numbered) > 0)
        host->numbered = record->generation;
    return is_done;
}

/* Another hub has worked in `epoch`, or an earlier one of this process whose record was lost. */
static void note_foreign(struct hub_host *host, int64_t epoch)
{
    if (epoch <= host->foreign_epoch)
        return;
    host->foreign_epoch = epoch;
    host->foreign_ms = host->network.now_ms(host->network.user);
}

struct view_change {
    struct hub_host *host;
    const struct hub_event *event;
};

static void take_event(void *user)
{
    struct view_change *change = user;
    struct hub_host *host = change->host;

    hub_view_event(&host->view, change->event, host->network.wall_ms(host->network.user));
}

static void on_event(void *user, const struct hub_event *event)
{
    struct hub_host *host = user;
    bool is_step = (event->type == HUB_EVENT_STEP || event->type == HUB_EVENT_EVALUATION) &&
                   host->view.has_run;
    struct view_change change = {host, event};

    if (event->type == HUB_EVENT_DEFECT)
        (void)snprintf(host->defect, sizeof(host->defect), "%.*s", HUB_DEFECT_MAX - 1,
                       event->message);
    else if (!host->defect[0] &&
             !fleet_assert_guard(take_event, &change, host->defect, sizeof(host->defect)))
        host->view = (struct hub_view){.is_hosted = true}; /* the data that it held are lost */
    if (event->type == HUB_EVENT_SUPERSEDED)
        note_foreign(host, event->generation.epoch);
    host->handlers.event(host->handlers.user, event, is_step);
}

const struct hub_view *hub_host_view(struct hub_host *host)
{
    if (host->job && !host->defect[0])
        hub_view_refresh(&host->view, host->hub);
    return &host->view;
}

const char *hub_host_defect(const struct hub_host *host)
{
    return host->defect[0] ? host->defect : NULL;
}

/* ---- what its owner says --------------------------------------------------------------------- */

static struct hub_policy with_interval(const struct hub_host *host, struct hub_policy policy)
{
    if (!host->network.is_local)
        policy.progress_interval_ms = PROGRESS_MIN_MS + PROGRESS_MS_PER_MEMBER * policy.desired;
    return policy;
}

void hub_host_drop(struct hub_host *host)
{
    if (host->job)
        host->network.remove(host->job);
    host->job = host->hub = NULL;
    host->is_over = false;
    host->defect[0] = '\0';
    hub_view_release(&host->view);
}

/* A user may have written the status by hand. */
static int count_of(int64_t value)
{
    return value < 0 ? 0 : value > INT_MAX ? INT_MAX : (int)value;
}

/* Make a hub that continues from the status. */
static int make(struct hub_host *host, const struct hub_policy *policy,
                const struct action_hub *wanted, const struct fleetjob_status *status,
                const char *plan_digest, struct fleet_error *err)
{
    const struct fleetjob_rendezvous *rendezvous = &status->rendezvous;
    struct hub_server_handlers handlers = {.record = on_record,
                                           .event = on_event,
                                           .user = host,
                                           .namespace_ = host->handlers.namespace_,
                                           .name = host->handlers.name};
    struct hub_start start = {
        .job_uid = host->job_uid,
        .plan_digest = plan_digest,
        .epoch = host->epoch,
        .recorded = rendezvous->newest,
        .recorded_members = count_of(rendezvous->members),
        .progress_step = status->has_progress ? status->progress.step : 0,
        .checkpoint_step = status->has_checkpoint ? status->checkpoint.step : 0,
        .checkpoint_path = status->has_checkpoint ? status->checkpoint.path : NULL,
        .restarts = count_of(status->restarts.since_reset),
        .restarts_total = count_of(status->restarts.count),
        .restarts_ignored = count_of(status->restarts.ignored),
        .failures = wanted->failures,
        .unheard_ms = host->has_moved ? HUB_HOST_MOVED_MS : 0,
        .is_alone = wanted->is_alone,
        .has_trained = wanted->has_trained,
    };
    struct hub *hub;
    int rc;

    for (size_t i = 0; i < rendezvous->lineage.count && i < FLEET_LINEAGE_MAX; i++) {
        struct fleet_lineage_entry *entry = &start.lineage.entries[start.lineage.count++];
        *entry = rendezvous->lineage.items[i];
        if (entry->generation.epoch <= 0)
            entry->generation.epoch = rendezvous->newest.epoch;
    }
    if (start.recorded.epoch >= start.epoch && start.recorded.epoch != host->used_epoch)
        start.epoch = start.recorded.epoch + 1; /* the Lease was deleted: its count begins again */
    if (host->numbered.epoch == start.epoch)
        start.counter = host->numbered.counter; /* (4) */
    host->used_epoch = start.epoch;
    fleet_random_bytes(start.secret, sizeof(start.secret));
    hub = hub_new(&start, policy, host->network.now_ms(host->network.user));
    rc = host->network.add(host->network.user, host->job_uid, hub, &handlers, &host->job, err);
    if (rc < 0) {
        hub_free(hub);
        return rc;
    }
    host->hub = hub;
    host->recorded = start.recorded;
    host->is_over = false;
    host->view.is_hosted = true;
    return 0;
}

/* Has another hub recorded a generation in the status since ours started from it? */
static bool is_outdated(const struct hub_host *host, const struct fleetjob_rendezvous *rendezvous)
{
    struct fleet_generation there = rendezvous->newest;

    return there.epoch < host->used_epoch && fleet_generation_compare(there, host->recorded) > 0;
}

void hub_host_note_moved(struct hub_host *host)
{
    host->has_moved = true;
}

bool hub_host_is_superseded(const struct hub_host *host)
{
    return host->job && host->foreign_epoch > host->used_epoch;
}

/* (3) */
static void outrank(struct hub_host *host, const struct fleetjob_rendezvous *rendezvous)
{
    if (host->job && rendezvous->newest.epoch > host->used_epoch)
        note_foreign(host, rendezvous->newest.epoch);
    if (!hub_host_is_superseded(host) ||
        (host->handlers.leads_since &&
         !host->handlers.leads_since(host->handlers.user, host->foreign_ms)))
        return;
    hub_host_drop(host);
    host->epoch = host->foreign_epoch + 1;
}

static int host_as_wanted(struct hub_host *host, const struct action_hub *wanted,
                          const struct fleetjob_status *status, const char *plan_digest,
                          struct fleet_error *err)
{
    double now_ms = host->network.now_ms(host->network.user);
    struct hub_policy policy = with_interval(host, wanted->policy);
    struct hub_output out = {0};

    if (host->job && (!wanted->is_wanted || (host->is_over && !wanted->is_over)))
        hub_host_drop(host);
    if (!wanted->is_wanted)
        return 0;
    if (host->job && !wanted->is_over && is_outdated(host, &status->rendezvous))
        hub_host_drop(host);
    if (!wanted->is_over)
        outrank(host, &status->rendezvous);
    if (!host->job && (wanted->is_over || wanted->policy.min <= 0)) /* (5) */
        return 0;
    if (!host->job)
        return make(host, &policy, wanted, status, plan_digest, err);
    if (wanted->is_over && !host->is_over) {
        host->is_over = true;
        hub_end(host->hub, wanted->has_succeeded, wanted->reason, now_ms, &out);
    } else if (!wanted->is_over && wanted->policy.min > 0 && !hub_has_policy(host->hub, &policy)) {
        hub_configure(host->hub, &policy, now_ms, &out);
    }
    host->network.apply(host->job, &out);
    return 0;
}

void hub_host_gone(struct hub_host *host, const char *pod_uid)
{
    struct hub_output out = {0};

    if (!host->job)
        return;
    hub_member_gone(host->hub, pod_uid,
                    host->network.is_local ? FLEET_CAUSE_MEMBER_LOST : FLEET_CAUSE_POD_GONE,
                    host->network.now_ms(host->network.user), &out);
    host->network.apply(host->job, &out);
}

int hub_host_apply(struct hub_host *host, const struct actions *actions, const char *plan_digest,
                   struct fleet_error *err)
{
    int rc = host_as_wanted(host, &actions->hub, &actions->status, plan_digest, err);

    if (host->job && actions->order_count > 0)
        hub_order(host->hub, actions->order, actions->order_count);
    for (size_t i = 0; host->job && i < actions->departure_count; i++) {
        const struct action_departure *departure = &actions->departures[i];
        hub_member_departs(host->hub, departure->uid, departure->index, departure->attempt,
                           departure->cause, departure->explains);
    }
    for (size_t i = 0; i < actions->gone_count; i++)
        hub_host_gone(host, actions->gone_uids[i]);
    return rc;
}

void hub_host_checkpoint(struct hub_host *host)
{
    struct hub_output out = {0};

    if (!host->job)
        return;
    hub_checkpoint(host->hub, host->network.now_ms(host->network.user), &out);
    host->network.apply(host->job, &out);
}

bool hub_host_is_active(const struct hub_host *host)
{
    return host->job && !host->is_over;
}

const struct hub *hub_host_hub(const struct hub_host *host)
{
    return host->hub;
}

struct fleet_generation hub_host_recorded(const struct hub_host *host)
{
    return host->recorded;
}

void hub_host_answer_record(struct hub_host *host, struct fleet_generation generation, bool is_done)
{
    if (host->job)
        host->network.answer_record(host->job, generation, is_done);
}

struct fleet_lineage hub_host_lineage(const struct hub_host *host, const struct hub_record *record)
{
    return host->job ? hub_record_lineage(host->hub, record) : (struct fleet_lineage){0};
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hub_host *hub_host_new(const struct hub_network *network, const char *job_uid, int64_t epoch,
                              const struct hub_host_handlers *handlers)
{
    struct hub_host *host = calloc(1, sizeof(*host));

    fleet_assert(host);
    *host = (struct hub_host){
        .network = *network, .handlers = *handlers, .job_uid = strdup(job_uid), .epoch = epoch};
    fleet_assert(host->job_uid);
    return host;
}

void hub_host_free(struct hub_host *host)
{
    if (!host)
        return;
    hub_host_drop(host);
    free(host->job_uid);
    free(host);
}

void hub_host_end(struct hub_host *host)
{
    struct action_hub over = {.is_wanted = true, .is_over = true, .reason = "Deleted"};

    if (host->job)
        (void)host_as_wanted(host, &over, NULL, NULL, NULL);
    hub_host_drop(host);
}
