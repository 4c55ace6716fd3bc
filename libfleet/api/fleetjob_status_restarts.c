/* SPDX-License-Identifier: Apache-2.0 */

/* Fields of status.restarts: what went wrong so far. */
#include <math.h>
#include <stddef.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/fleetjob_tables.h"

static const struct fleet_field restart_fields[] = {
    {.name = "generation",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_restart, generation),
     .description = "The generation that was made."},
    {.name = "at",
     .kind = FLEET_FIELD_TIME,
     .offset = offsetof(struct fleetjob_restart, at_wall_ms),
     .description = "When the cause was seen."},
    {.name = "cause",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_restart, cause),
     .description = "Why, in one word."},
    {.name = "message",
     .kind = FLEET_FIELD_STRING,
     .offset = offsetof(struct fleetjob_restart, message),
     .count_max = 1024,
     .description = "What else is known of it: the memory limit that was reached."},
    {.name = "member",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_restart, member),
     .unset = -1,
     .description = "Index of the worker it is about."},
    {.name = "exitCode",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_restart, exit_code),
     .unset = -1,
     .description = "Exit code of its trainer; 128 + signal."},
    {.name = "detectMs",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_restart, detect_ms),
     .unset = NAN,
     .description = "From the fault until it was known."},
    {.name = "agreeMs",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_restart, agree_ms),
     .unset = NAN,
     .description = "Until the new generation was agreed."},
    {.name = "connectMs",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_restart, connect_ms),
     .unset = NAN,
     .description = "Until all members were connected."},
    {.name = "restoreMs",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_restart, restore_ms),
     .unset = NAN,
     .description = "Until every member had its state."},
    {.name = "resumeMs",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_restart, resume_ms),
     .unset = NAN,
     .description = "The four together."},
    {.name = "firstStepMs",
     .kind = FLEET_FIELD_NUMBER,
     .offset = offsetof(struct fleetjob_restart, first_step_ms),
     .unset = NAN,
     .description = "The first step after it."},
    {.name = "lostSteps",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_restart, lost_steps),
     .unset = -1,
     .description = "Steps that had to be computed again. Absent if unknown: an own trainer "
                    "that does not report where it goes on."},
    {0},
};

static const struct fleet_object restart_type = {
    .name = "restart",
    .description = "One generation that followed a failure or a resize.",
    .fields = restart_fields,
    .size = sizeof(struct fleetjob_restart),
    .open = true,
};

static const struct fleet_field restarts_fields[] = {
    {.name = "count",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_restarts, count),
     .unset = -1, /* so that a first 0 is written: it is an answer */
     .description =
         "Restarts caused by failures so far. Resizes and drained workers do not count."},
    {.name = "sinceReset",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_restarts, since_reset),
     .default_text = "0",
     .description = "Of these, those that count against maxRestarts: it begins again when "
                    "resetAfterSteps steps went well."},
    {.name = "ignored",
     .kind = FLEET_FIELD_INT,
     .offset = offsetof(struct fleetjob_restarts, ignored),
     .default_text = "0",
     .description =
         "Restarts caused by failures that a rule of failurePolicy ignores; they are not in "
         "count."},
    {.name = "history",
     .kind = FLEET_FIELD_LIST,
     .item = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_restarts, history),
     .object = &restart_type,
     .count_max = FLEETJOB_HISTORY_MAX,
     .description = "The last restarts, newest last."},
    {.name = "begun",
     .kind = FLEET_FIELD_OBJECT,
     .offset = offsetof(struct fleetjob_restarts, begun),
     .presence = FLEET_PRESENCE(struct fleetjob_restarts, has_begun),
     .object = &restart_type,
     .description = "What led to the newest generation, recorded with it: history has it without "
                    "times if the controller is lost before the first step."},
    {0},
};

const struct fleet_object fleetjob_restarts_type = {
    .name = "restarts",
    .description = "What went wrong so far.",
    .fields = restarts_fields,
    .size = sizeof(struct fleetjob_restarts),
    .open = true,
};
