/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_PODS_H
#define CONTROLLER_FLEETJOB_STATUS_PODS_H

/* The pods in the status: how many there are, and why some do not start. */

#include "controller/fleetjob/pass.h"

/* status.workers, and the conditions Scheduled and Blocked. */
void status_count_workers(struct pass *pass);
void status_observe_scheduled(struct pass *pass);
void status_observe_blocked(struct pass *pass);
/* Append the cause for which a pod takes too long to start. */
void status_report_waiting(struct pass *pass, struct fleet_strbuf *out);
/* Why a pod has not started, in one word (pod_cause.h); "" = nothing is known. */
const char *status_pod_cause(const struct pass *pass);

#endif
