/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_OBSERVE_H
#define CONTROLLER_FLEETJOB_STATUS_OBSERVE_H

/*
 * What pods and hub report, taken into the status: progress, checkpoint, lineage, the conditions
 * Running, Restarting, Stalled and CheckpointFailed. Restarts are in status_restarts.h, pods in
 * status_pods.h.
 */

#include "controller/fleetjob/pass.h"

/* Take in the reports of pods and hub: counts, progress, checkpoint, restarts, conditions. */
void status_observe(struct pass *pass);
/* The same for a job that is over: counts, and reports of leaving members. */
void status_observe_end(struct pass *pass);

#endif
