/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_RESTARTS_H
#define CONTROLLER_FLEETJOB_STATUS_RESTARTS_H

/*
 * The history of restarts in the status: each restart once, with its cause, and an Event about it.
 * The hub reports a restart when it is over. The status holds the one that has begun, so that its
 * cause survives the loss of a controller.
 */

#include "controller/fleetjob/pass.h"

/* Take in the hub's reports of restarts: history, counts, Events. Only of a hub that knows the
 * newest generation. */
void status_observe_restarts(struct pass *pass);

/* Note the restart that led to a generation whose record was not written: any write of the status
 * that names the generation must hold it, too. */
void status_observe_begun(struct pass *pass);

/* No member can report the newest restart any more: the history gets it as it began, unless it has
 * it. */
void status_close_restart(struct pass *pass);
/* The same if no hub will report it. */
void status_close_lost_restart(struct pass *pass);
/* The same for a job that is over. There is an Event only for a restart that another hub began: the
 * job's end already reports one that began here. */
void status_close_restart_at_end(struct pass *pass);

/* The member or trainer that failed last, or NULL. Borrowed from the hub's view. */
const struct hub_view_failure *status_last_failure(const struct pass *pass);

/* Why the last member was lost, or its trainer ended; NULL = none was. */
const char *status_last_cause(const struct pass *pass);

#endif
