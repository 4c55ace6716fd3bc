/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILE_H
#define CONTROLLER_FLEETJOB_RECONCILE_H

/*
 * Decide what to do for a job now, from all that is known of it. Input and output are values: no
 * I/O, no clock, no memory between calls. The controller drives it with pods, `fleetjob run` with
 * processes; neither decides anything itself.
 *
 * Level-based: it acts on the present state, not on changes. So calling it again is harmless, and a
 * missed change is made up for. Invariants, quoted by number in code and tests:
 *  (1) A terminal job (Succeeded or Failed) stays terminal, keeps its reason, and gets no pods.
 *  (2) At most one living pod an index is wanted, and none at or above the desired number.
 *  (3) The attempt of a new pod is 1 + the highest seen for its index in pods or status, else 0.
 *  (4) An event about a change of status is emitted in the pass that changes it, only.
 *  (5) Progress never goes back.
 *  (6) A server has one pod at most: a new one is made when the last one is gone.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "controller/fleetjob/hub_view.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/base/cause.h"
#include "libfleet/kube/api_error.h"

struct fleet_errors;

/* ---- what is -------------------------------------------------------------------------------- */

enum observed_phase {
    OBSERVED_PENDING,
    OBSERVED_RUNNING,
    OBSERVED_SUCCEEDED, /* ended with exit code 0 */
    OBSERVED_FAILED,
};

/* A pod of this job (its owner reference carries the job's UID), or a process that stands for
 * one. */
struct observed_pod {
    const char *name, *uid;
    int index, attempt;
    enum observed_phase phase;
    bool is_scheduled;           /* has a node */
    const char *topology, *node; /* where; "" = not known */
    bool is_deleting;
    bool is_given_up;    /* deleted by a controller, since it did not answer */
    bool is_permanent;   /* its agent reported that a restart cannot help */
    int exit_code;       /* of the agent, -1 = not known */
    const char *reason;  /* "OOMKilled", "Evicted", …; "" = none */
    const char *message; /* for people, "" = none */
    const char *waiting; /* why it has no node or does not start; "" = not known */
    const char *cause;   /* that in one word (pod_cause.h); "" = not known, or it only starts */
    bool counts_nodes;   /* `waiting` says how many nodes fit, and why the others do not */
    bool is_stuck;       /* it has a node and does not start, and its status does not say why */
    const char *memory_limit; /* of its container, as written; "" = none, or not known */
    bool is_ready;            /* passes its probes */
    int restarts;             /* of its container by the kubelet; 0 for workers */
    int64_t created_wall_ms;  /* 0 = not known */
    int64_t started_wall_ms, finished_wall_ms; /* 0 = not yet */
    int64_t gone_by_wall_ms; /* deleted: when its grace is over; 0 = it is not deleted */
};

/* A pod that the API server did not create. */
struct observed_attempt {
    int index, attempt; /* attempt -1 = the pod of a server */
};

/* Pods of an index that were deleted, or vanished, one soon after the other. */
struct observed_vanished {
    int index, count;
    int attempt;        /* of the last */
    int64_t at_wall_ms; /* when it was seen */
};

struct observed {
    int64_t now_wall_ms;
    const struct fleetjob *job;        /* spec and status as stored */
    const struct fleet_errors *errors; /* what is wrong with the spec; NULL or none = it is valid */
    const struct fleet_errors
        *warnings;                   /* unlikely values and fields without an effect; NULL = none */
    const struct observed_pod *pods; /* [pod_count], in any order */
    size_t pod_count;
    /* [server_count] pods of spec.server, in any order; their attempt is 0 */
    const struct observed_pod *servers;
    size_t server_count;
    const char *server_address; /* of the Service in front of them; "" or NULL = not known */
    /* the list is complete: it does not come from a cache, which may be stale */
    bool has_all_pods;
    /* this process has decided nothing about the job yet: pods may have lost the label that its
     * cache selects before it could see that */
    bool is_first;
    const char *const *gone_uids; /* [gone_count] pods whose object has vanished */
    size_t gone_count;
    const struct observed_attempt
        *taken; /* [taken_count] names that another owner's object has, one
                                           * an index at most */
    size_t taken_count;
    const char *refusal; /* why the API server refused to create a pod; NULL = it did not */
    enum kube_error refusal_kind;           /* the same as a value; NONE = no refusal */
    const struct observed_attempt *refused; /* [refused_count] the pods that it refused */
    size_t refused_count;
    const struct observed_vanished *vanished; /* [vanished_count], one an index at most */
    size_t vanished_count;
    bool asks_why; /* why a pod does not start is being asked for: `cause` may be missing */
    /* the workers must stop, because the strategy changes in this way; the job is suspended until
     * they have. NULL = it does not change */
    const char *redivides;
    /* the search that must end before the strategy is known and the spec can be judged; meanwhile
     * the job goes on as it is. NULL = there is none */
    const char *searches;
    bool is_blocked;     /* no pod can be made now: what pods need was refused, or is missing */
    struct hub_view hub; /* borrowed */
};

/* ---- what should happen ---------------------------------------------------------------------- */

struct action_create {
    int index, attempt;
    bool is_replacement; /* an event of its own gives the reason; one event counts the others */
};

struct action_delete {
    char *name;         /* heap */
    const char *reason; /* constant, for log and events: "ScaleDown", "Suspended", … */
    bool at_once;       /* it does not answer, so it gets no time to end */
};

/* A pod that Kubernetes takes away. `cause` becomes the cause of the next generation. Borrowed. */
struct action_departure {
    const char *uid;
    int index, attempt;
    enum fleet_cause cause; /* PREEMPTED, EVICTED, MEMBER_LEFT: deleted */
    bool explains;          /* it may be why the last generation ended */
};

struct action_event {
    bool is_warning;
    const char *reason; /* wellknown.h */
    char *message;      /* heap */
};

/* The desired state of the job's hub. If a hub is wanted and the job is not over, but the present
 * hub has ended (before a resume), a new one replaces it. */
struct action_hub {
    /* Host one with `policy` (min 0: keep the policy that it has); else host none. */
    bool is_wanted;
    bool is_alone; /* just started or resumed: a new hub need not wait for members to come back */
    bool has_trained; /* the recorded generation trained, and was not suspended since */
    int failures;     /* restarts soon one after the other, up to now */
    /* progress_interval_ms is 0: the host chooses it. Its rules are `rules`. */
    struct hub_policy policy;
    struct failure_rules rules; /* owned, but its texts and lists belong to the spec */
    bool is_over;               /* send the members `done` */
    bool has_succeeded;
    const char *reason; /* constant */
};

/* Why the status must be written, the least urgent first; all but the last at intervals
 * (status_pace.h). */
enum action_write {
    ACTION_WRITE_NOTHING,
    ACTION_WRITE_PROGRESS, /* only progress has changed */
    ACTION_WRITE_COUNTS,   /* only the number of workers, and messages with it */
    ACTION_WRITE_START,    /* also conditions of the first pods: Scheduled, Running */
    ACTION_WRITE_NOW,      /* more than that */
};

struct actions {
    /* Pods that the status names and the cache lacks. They may live, because the cache may be
     * stale. While there are any, the pass creates, deletes and writes nothing, except a restart
     * that only the status knows: it is written before the hub changes. The caller asks the API
     * server for these pods. It waits until they are in `pods`, or puts them into `vanished`, and
     * calls reconcile() again. */
    struct observed_attempt *looks; /* ascending by index */
    size_t look_count;

    struct action_create *creates; /* ascending by index */
    size_t create_count;
    int *server_creates; /* indices of servers, ascending */
    size_t server_create_count;
    struct action_delete *deletes;
    size_t delete_count;
    const char **gone_uids; /* members that will not come back, for the hub; borrowed */
    size_t gone_count;
    struct action_event *events;
    size_t event_count;
    struct action_departure *departures; /* [departure_count] why these members go */
    size_t departure_count;
    const char **order; /* [order_count] pod UIDs in the desired order of ranks; borrowed */
    size_t order_count;
    struct action_hub hub;
    bool delete_job; /* its time to live is over */

    enum action_write write;
    struct fleetjob_status status; /* the whole new one */

    int64_t requeue_after_ms; /* look again then; -1 = nothing to wait for */
};

/* Decide. `*out` is overwritten; release it with actions_release(). */
void reconcile(const struct observed *observed, struct actions *out);

/* Count one more pod of that index that was deleted or has vanished. `vanished` has the index
 * already; count 0 = the first. */
void reconcile_note_vanished(struct observed_vanished *vanished, int attempt, int64_t now_wall_ms);

/* Free what it owns and zero it. */
void actions_release(struct actions *actions);

/* One more event. */
void actions_event(struct actions *actions, bool is_warning, const char *reason, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));

#endif
