/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_H
#define CONTROLLER_FLEETJOB_STATUS_H

/* The conditions of a job's status, and the conditions that end it. */

#include "controller/fleetjob/pass.h"

/* Is the job Succeeded or Failed? */
bool status_is_terminal(const struct fleetjob_status *status);

/* The condition `type`, or NULL. */
struct fleetjob_condition *status_find(const struct fleetjob_status *status, const char *type);

/* The condition `type` exists and is True. */
bool status_is_true(const struct fleetjob_status *status, const char *type);

/* … and is False. */
bool status_is_false(const struct fleetjob_status *status, const char *type);

/* The condition `type` exists and has this reason, be it True or False. */
bool status_has_reason(const struct fleetjob_status *status, const char *type, const char *reason);

/* The condition that ends or stops the job: Succeeded, Failed or Suspended, if one is True;
 * NULL = none is. Borrowed. */
const struct fleetjob_condition *status_at_rest(const struct fleetjob_status *status);

/* Set a condition; the time of transition moves only if its status does. True if that happened. */
bool status_set(struct pass *pass, const char *type, bool is_true, const char *reason,
                const char *message);
/* Set it to false if it exists. */
bool status_clear(struct pass *pass, const char *type, const char *reason, const char *message);

/* The job is over: condition, time, result, event. The first call decides (1). */
void status_succeed(struct pass *pass);
void status_fail(struct pass *pass, const char *reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
