/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_words.h"

#include <stdlib.h>

#include "controller/fleetjob/pod_cause.h"
#include "controller/fleetjob/status.h"
#include "controller/fleetjob/status_pods.h"
#include "controller/fleetjob/status_restarts.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/memory.h"

void status_name_state(struct pass *pass)
{
    static const char *const order[] = {
        WELLKNOWN_CONDITION_FAILED,  WELLKNOWN_CONDITION_SUCCEEDED,  WELLKNOWN_CONDITION_SUSPENDED,
        WELLKNOWN_CONDITION_STALLED, WELLKNOWN_CONDITION_RESTARTING, WELLKNOWN_CONDITION_RUNNING,
    };
    const char *state =
        status_is_false(pass->status, WELLKNOWN_CONDITION_ACCEPTED) ? "Refused" : "Pending";

    for (size_t i = FLEET_COUNT(order); i-- > 0;)
        if (status_is_true(pass->status, order[i]))
            state = order[i];
    if (status_has_reason(pass->status, WELLKNOWN_CONDITION_SUSPENDED,
                          WELLKNOWN_REASON_SUSPENDING) &&
        !status_is_terminal(pass->status))
        state = WELLKNOWN_REASON_SUSPENDING;
    fleet_set_text(&pass->status->state, state);
}

/* The reason of the condition, for true and for false. */
static const char *reason_of(const struct pass *pass, const char *type, bool is_true)
{
    const struct fleetjob_condition *condition = status_find(pass->status, type);

    return (is_true ? status_is_true : status_is_false)(pass->status, type) ? condition->reason
                                                                            : NULL;
}

static const char *first_of(const char *const *reasons, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (reasons[i] && reasons[i][0])
            return reasons[i];
    return NULL;
}

/* Why workers ended before the first step: from the hub, or from a pod that was not a member
 * yet. */
static const char *early_failure(const struct pass *pass)
{
    const struct observed_pod *newest = NULL;

    if (pass->in->hub.failure_count > 0)
        return status_last_cause(pass);
    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pod->phase == OBSERVED_FAILED &&
            (!newest || pod->finished_wall_ms > newest->finished_wall_ms))
            newest = pod;
    }
    return !newest ? NULL : newest->reason[0] ? newest->reason : WELLKNOWN_REASON_WORKER_FAILED;
}

/* The default reason of a job that has not trained yet, or does not train at the moment. */
static const char *pending_reason(const struct pass *pass)
{
    const char *cause = status_pod_cause(pass);

    if (pass->in->searches)
        return WELLKNOWN_REASON_SEARCHING;
    if (pass->in->hub.ready > 0)
        return WELLKNOWN_REASON_WAITING_FOR_WORKERS;
    return cause[0] ? cause : WELLKNOWN_REASON_STARTING;
}

static const char *choose_reason(const struct pass *pass)
{
    bool is_running = status_is_true(pass->status, WELLKNOWN_CONDITION_RUNNING);
    const char *pods = status_pod_cause(pass);
    const char *const over[] = {reason_of(pass, WELLKNOWN_CONDITION_FAILED, true),
                                reason_of(pass, WELLKNOWN_CONDITION_ACCEPTED, false),
                                reason_of(pass, WELLKNOWN_CONDITION_SUSPENDED, true)};
    const char *const now[] = {
        pass->in->refusal ? pod_cause_of_refusal(pass->in->refusal_kind) : NULL,
        pod_cause_blocks(pods) ? pods : reason_of(pass, WELLKNOWN_CONDITION_BLOCKED, true),
        reason_of(pass, WELLKNOWN_CONDITION_STALLED, true),
        reason_of(pass, WELLKNOWN_CONDITION_RESTARTING, true),
        status_is_true(pass->status, WELLKNOWN_CONDITION_CHECKPOINT_FAILED)
            ? WELLKNOWN_CONDITION_CHECKPOINT_FAILED
            : NULL,
    };
    const char *reason;

    if (status_is_true(pass->status, WELLKNOWN_CONDITION_SUCCEEDED))
        return NULL;
    reason = first_of(over, FLEET_COUNT(over));
    if (reason || status_is_terminal(pass->status) || pass->spec->run_policy.suspend)
        return reason;
    reason = first_of(now, FLEET_COUNT(now));
    if (reason || is_running)
        return reason;
    reason = early_failure(pass);
    return reason && reason[0] ? reason : pending_reason(pass);
}

void status_name_reason(struct pass *pass)
{
    fleet_set_text(&pass->status->reason, choose_reason(pass));
}
