/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_PASS_H
#define CONTROLLER_FLEETJOB_PASS_H

/*
 * One pass of reconcile(), handed from policy to policy: what is, what shall be, and the counts
 * that several of them need. Each policy adds its actions through the functions below.
 */

#include "controller/fleetjob/reconcile.h"
#include "libfleet/base/strbuf.h"

struct pass {
    const struct observed *in;
    struct actions *out;
    const struct fleetjob_spec *spec;     /* of in->job */
    const struct fleetjob_status *before; /* of in->job */
    struct fleetjob_status *status;       /* out->status: a copy of `before`, changed in place */
    int64_t now;                          /* wall ms */
    int desired;                          /* workers wanted: replicas within [min, max] */
    int active;                           /* pods that live and are not being deleted */
    int living;                           /* pods that live, those being deleted included */
};

/* Its containers may run or come to run. */
static inline bool pass_is_living(const struct observed_pod *pod)
{
    return pod->phase == OBSERVED_PENDING || pod->phase == OBSERVED_RUNNING;
}

/* Since when its agent does not answer the hub, wall ms; 0 = it does, or nobody asks. */
int64_t pass_silent_since(const struct pass *pass, const struct observed_pod *pod);

/* Add the action to make a pod. */
void pass_create(struct pass *pass, int index, int attempt, bool is_replacement);
/* Add the action to look for a pod that was recorded and has not been seen. */
void pass_look(struct pass *pass, int index, int attempt);
/* Add the action to delete a pod; not twice for one pod, and not for one that is being deleted. One
 * that does not answer is not asked to end first. `reason` is constant. */
void pass_delete(struct pass *pass, const struct observed_pod *pod, const char *reason);

/* Add an Event about the job; `reason` is one of wellknown.h. */
void pass_event(struct pass *pass, bool is_warning, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Look again at this wall time, unless something else wants it earlier. */
void pass_requeue_at(struct pass *pass, int64_t wall_ms);

/* ---- status.c -------------------------------------------------------------------------------- */

/* Is the job Succeeded or Failed? */
bool status_is_terminal(const struct fleetjob_status *status);

/* The condition `type`, or NULL. */
struct fleetjob_condition *status_find(const struct fleetjob_status *status, const char *type);

/* The condition `type` exists and is True. */
bool status_is_true(const struct fleetjob_status *status, const char *type);

/* Set a condition; the time of transition moves only if its status does. True if that happened. */
bool status_set(struct pass *pass, const char *type, bool is_true, const char *reason,
                const char *message);
/* Set it to false if it exists. */
bool status_clear(struct pass *pass, const char *type, const char *reason, const char *message);

/* The job is over: condition, time, result, event. The first call decides (1). */
void status_succeed(struct pass *pass);
void status_fail(struct pass *pass, const char *reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Take in what pods and hub say: counts, progress, checkpoint, restarts, conditions. */
void status_observe(struct pass *pass);
/* The same of a job that is over: counts, and what members said as they left. */
void status_observe_end(struct pass *pass);
/* Nobody can tell any more how the newest restart went: the history gets it as it was begun, if it
 * has not got it yet. */
void status_close_restart(struct pass *pass);
/* The same if our hub, or none, will not tell it. */
void status_close_lost_restart(struct pass *pass);

/* In what before and after differ, into out->is_status_changed, is_counts_changed,
 * is_progress_changed. */
void status_compare(struct pass *pass);

/* Why the last member was lost, or its trainer ended; NULL = none was. */
const char *status_last_cause(const struct pass *pass);

/* ---- status_pods.c --------------------------------------------------------------------------- */

/* status.workers, and the conditions Scheduled and Blocked. */
void status_count_workers(struct pass *pass);
void status_observe_scheduled(struct pass *pass);
void status_observe_blocked(struct pass *pass);
/* Append what the pod waits for that takes too long to start. */
void status_tell_waiting(struct pass *pass, struct fleet_strbuf *out);
/* Why a pod has not started, in one word (pod_cause.h); "" = nothing is known. */
const char *status_pod_cause(const struct pass *pass);

/* ---- status_words.c -------------------------------------------------------------------------- */

/* The words for the columns STATE and REASON. */
void status_name_state(struct pass *pass);
void status_name_reason(struct pass *pass);

/* ---- the policies, one file each ------------------------------------------------------------- */

/* Accepted: does the spec make sense? False: nothing is made or changed. */
bool acceptance_check(struct pass *pass);
/* All steps are done: Succeeded. */
void success_policy_apply(struct pass *pass);
/* A failure that a rule calls final, or that the hub gave up on: Failed. */
void failure_policy_apply(struct pass *pass);
/* The rules as the hub wants them; the list is to be freed, what it points to is the spec's. */
struct failure_rules failure_policy_rules(const struct fleetjob_spec *spec);
/* What the rules say about a failure. */
enum failure_action failure_policy_action(const struct pass *pass, int exit_code,
                                          const char *reason);
/* Pods that end before training has begun: Failed when maxRestarts are used up. */
void restart_policy_apply(struct pass *pass);
/* How many restarts there were up to now, soon one after the other. */
int restart_policy_in_a_row(const struct pass *pass);
/* When the next pod of an index may be made, at once or after a back-off: if its last pod has
 * failed; … if its pods vanish. */
int64_t restart_policy_next_start(const struct pass *pass, const struct observed_pod *last);
int64_t restart_policy_after_vanished(const struct pass *pass, int index);
/* activeDeadlineSeconds, progressDeadlineSeconds: Failed. */
void deadline_apply(struct pass *pass);
/* runPolicy.suspend: end all pods, host no hub. True if the job is to stand still. */
bool suspend_apply(struct pass *pass);
/* How many members the hub takes, and how long it waits. */
void elastic_policy_apply(struct pass *pass);
/* Create missing pods, replace failed ones, delete surplus ones. */
void workers_apply(struct pass *pass);
/* Before the first generation: which workers shall be neighbours. */
void rank_order_apply(struct pass *pass);
/* A terminal job: which pods stay. */
void clean_pod_policy_apply(struct pass *pass);
/* A terminal job: when it is deleted. */
void ttl_after_finished_apply(struct pass *pass);
/* metadata.deletionTimestamp: end everything. True if the job is being deleted. */
bool deletion_apply(struct pass *pass);

#endif
