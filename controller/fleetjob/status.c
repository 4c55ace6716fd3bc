/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

/* ---- conditions ------------------------------------------------------------------------------ */

struct fleetjob_condition *status_find(const struct fleetjob_status *status, const char *type)
{
    for (size_t i = 0; i < status->conditions.count; i++)
        if (strcmp(status->conditions.items[i].type, type) == 0)
            return &status->conditions.items[i];
    return NULL;
}

bool status_is_true(const struct fleetjob_status *status, const char *type)
{
    const struct fleetjob_condition *condition = status_find(status, type);

    return condition && strcmp(condition->status, "True") == 0;
}

bool status_is_false(const struct fleetjob_status *status, const char *type)
{
    const struct fleetjob_condition *condition = status_find(status, type);

    return condition && strcmp(condition->status, "False") == 0;
}

bool status_has_reason(const struct fleetjob_status *status, const char *type, const char *reason)
{
    const struct fleetjob_condition *condition = status_find(status, type);

    return condition && condition->reason && strcmp(condition->reason, reason) == 0;
}

bool status_is_terminal(const struct fleetjob_status *status)
{
    return status_is_true(status, WELLKNOWN_CONDITION_SUCCEEDED) ||
           status_is_true(status, WELLKNOWN_CONDITION_FAILED);
}

const struct fleetjob_condition *status_at_rest(const struct fleetjob_status *status)
{
    static const char *const types[] = {WELLKNOWN_CONDITION_SUCCEEDED, WELLKNOWN_CONDITION_FAILED,
                                        WELLKNOWN_CONDITION_SUSPENDED};

    for (size_t i = 0; i < FLEET_COUNT(types); i++)
        if (status_is_true(status, types[i]))
            return status_find(status, types[i]);
    return NULL;
}

bool status_set(struct pass *pass, const char *type, bool is_true, const char *reason,
                const char *message)
{
    struct fleetjob_status *status = pass->status;
    struct fleetjob_condition *condition = status_find(status, type);
    const char *value = is_true ? "True" : "False";
    bool is_moved = !condition || strcmp(condition->status, value) != 0;

    if (!condition) {
        status->conditions.items =
            realloc(status->conditions.items,
                    (status->conditions.count + 1) * sizeof(*status->conditions.items));
        fleet_assert(status->conditions.items);
        condition = &status->conditions.items[status->conditions.count++];
        *condition = (struct fleetjob_condition){0};
        fleet_set_text(&condition->type, type);
    }
    fleet_set_text(&condition->status, value);
    fleet_set_text(&condition->reason, reason);
    free(condition->message);
    condition->message = kube_message_cut(message);
    fleet_assert(condition->message);
    condition->observed_generation = pass->in->job->metadata.generation;
    if (is_moved)
        condition->last_transition_wall_ms = pass->now;
    return is_moved;
}

bool status_clear(struct pass *pass, const char *type, const char *reason, const char *message)
{
    return status_find(pass->status, type) && status_set(pass, type, false, reason, message);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void end(struct pass *pass, const char *reason)
{
    pass->status->finished_wall_ms = pass->now;
    fleet_set_text(&pass->status->waiting, NULL);
    (void)status_clear(pass, WELLKNOWN_CONDITION_RUNNING, reason, "the job is over");
    (void)status_clear(pass, WELLKNOWN_CONDITION_RESTARTING, reason, "the job is over");
    (void)status_clear(pass, WELLKNOWN_CONDITION_STALLED, reason, "the job is over");
    (void)status_clear(pass, WELLKNOWN_CONDITION_BLOCKED, reason, "the job is over");
}

void status_succeed(struct pass *pass)
{
    const struct fleetjob_result *result = &pass->in->hub.result;
    struct fleetjob_status *status = pass->status;

    if (status_is_terminal(status))
        return;
    if (result->weights_sha256) {
        status->has_result = true;
        status->result.steps = result->steps;
        status->result.loss = result->loss;
        fleet_set_text(&status->result.weights_sha256, result->weights_sha256);
    }
    end(pass, WELLKNOWN_REASON_COMPLETED);
    (void)status_set(pass, WELLKNOWN_CONDITION_SUCCEEDED, true, WELLKNOWN_REASON_COMPLETED,
                     pass->spec->has_training ? "all steps are done"
                                              : "every worker exited with 0");
    pass_event(pass, false, WELLKNOWN_EVENT_SUCCEEDED, "%s",
               pass->spec->has_training ? "All steps are done" : "Every worker exited with 0");
}

void status_fail(struct pass *pass, const char *reason, const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};
    va_list args;

    if (status_is_terminal(pass->status))
        return;
    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    end(pass, reason);
    (void)status_set(pass, WELLKNOWN_CONDITION_FAILED, true, reason, message.text);
    pass_event(pass, true, WELLKNOWN_EVENT_FAILED, "%s: %s", reason, message.text);
}
