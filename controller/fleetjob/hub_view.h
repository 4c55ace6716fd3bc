/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_HUB_VIEW_H
#define CONTROLLER_FLEETJOB_HUB_VIEW_H

/*
 * The state of a job's training, collected from its hub's events: the part of `observed` that does
 * not come from Kubernetes. A value, so that reconcile() can be replayed.
 *
 * All zero = no hub is hosted here.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/rendezvous/hub.h"

#define HUB_VIEW_FAILURES_MAX 16
#define HUB_VIEW_SILENT_MAX   MESSAGE_MEMBERS_MAX /* a job may lose all of its nodes at once */

/* A trainer ended without an order, or a member was lost. */
struct hub_view_failure {
    int member; /* pod index, -1 = none */
    int attempt;
    int exit_code; /* 128 + signal if ended by one; -1 = unknown */
    char cause[MESSAGE_CAUSE_MAX + 1];
    char message[2 * MESSAGE_REASON_MAX + 1]; /* with the last line of its log, if there is one */
    bool names_worker;                        /* the message names the worker */
};

/* A member that does not answer; its pod may or may not live. */
struct hub_view_silent {
    char pod_uid[MESSAGE_UID_MAX + 1];
    int64_t since_wall_ms;
    bool is_awaited; /* it alone holds the job's state */
};

struct hub_view {
    bool is_hosted;
    enum hub_phase phase;
    int64_t epoch;                      /* of the generations it makes */
    struct fleet_generation generation; /* the newest assigned */
    struct fleet_generation trained;    /* the newest that is known to have made a step; none */
    bool is_deserted;                   /* hub_is_deserted() */
    int members;                        /* of that generation */
    bool is_learning;             /* made for a running job; its members have not connected yet */
    int ready;                    /* members that train or are ready to train */
    int spares;                   /* of them have no seat, where ranks share a model */
    bool has_run;                 /* a generation has committed a step under this hub */
    int64_t first_step_wall_ms;   /* when; 0 = not yet */
    double lost_ms;               /* time in restarts since then */
    int restarts, restarts_total; /* counted: since the last reset; of the whole job */
    int restarts_ignored;         /* of the whole job: a rule says that they do not count */
    enum hub_stall stall;
    char stalled[MESSAGE_REASON_MAX + 1];    /* what it waits for, "" = not stalled */
    char state_lost[MESSAGE_REASON_MAX + 1]; /* why steps are computed again; "" = they are not */
    char waiting[MESSAGE_REASON_MAX + 1]; /* for what, before the next generation; "" = nothing */
    int64_t waiting_until_wall_ms;        /* 0 = not known */
    char save_failed[MESSAGE_REASON_MAX + 1]; /* why the newest save failed; "" = it did not */
    bool has_saved;     /* a checkpoint was completed under this hub, and no later one has failed */
    bool is_superseded; /* a member holds a greater epoch, as `stalled` says */
    bool has_begun;
    struct hub_record begun; /* what led to `generation`, if it is not in `history` yet */

    struct fleetjob_progress progress; /* if has_progress; its held-out loss without that, too */
    bool has_progress;
    struct fleetjob_checkpoint checkpoint; /* if has_checkpoint */
    bool has_checkpoint;

    /* Heap, because most of ten thousand jobs have none. */
    struct fleetjob_restart
        *history; /* [history_count], at most FLEETJOB_HISTORY_MAX; newest last */
    size_t history_count;
    int64_t
        untrained; /* restarts up to this generation came before the job's first step; 0 = none */
    struct hub_view_failure
        *failures; /* [failure_count], at most HUB_VIEW_FAILURES_MAX; newest last */
    size_t failure_count;
    struct hub_view_silent
        *silent; /* [silent_count] lost and not back, at most HUB_VIEW_SILENT_MAX; newest last */
    size_t silent_count;
    struct fleet_lineage lineage; /* as recorded */

    struct hub_view_failure end;   /* the hub gave up: the first cause; "" = it did not */
    bool restarts_used_up;         /* that is why it gave up */
    struct fleetjob_result result; /* phase HUB_FINISHED */
};

/* Free what it holds and zero it. */
void hub_view_release(struct hub_view *view);

/* Take in an event of the hub. `wall_ms` is when it came. */
void hub_view_event(struct hub_view *view, const struct hub_event *event, int64_t wall_ms);

/* The history entry of the restart that `record` begins; its duration is not known yet. Borrows the
 * record's cause and `message`, which receives the text of the entry. */
#define HUB_VIEW_UNTOLD_SIZE 128
struct fleetjob_restart hub_view_begun(const struct hub_record *record, int64_t wall_ms,
                                       char message[HUB_VIEW_UNTOLD_SIZE]);

/* Copy phase, generation, members and lineage from the hub. */
void hub_view_refresh(struct hub_view *view, const struct hub *hub);

#endif
