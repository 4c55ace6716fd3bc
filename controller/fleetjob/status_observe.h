/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_OBSERVE_H
#define CONTROLLER_FLEETJOB_STATUS_OBSERVE_H

/*
 * What pods and hub report, taken into the status: progress, checkpoint, lineage, the conditions
 * Running, Restarting, Stalled and CheckpointFailed. Restarts are in status_restarts.h, pods in
 * status_pods.h.
 */

#include "controller/fleetjob/pass.h"

/* Take in what pods and hub say: counts, progress, checkpoint, restarts, conditions. */
void status_observe(struct pass *pass);
/* The same of a job that is over: counts, and what members said as they left. */
void status_observe_end(struct pass *pass);

#endif
