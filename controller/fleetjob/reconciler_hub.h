/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILER_HUB_H
#define CONTROLLER_FLEETJOB_RECONCILER_HUB_H

/*
 * Requests of a job's hub to the controller: record a generation, begin a pass, delete the pod of
 * an evicted member.
 */

#include "controller/fleetjob/hub_host.h"

struct reconciler_job;

/* For hub_host_new(); its texts are the job's. */
struct hub_host_handlers reconciler_hub_handlers(struct reconciler_job *job);

#endif
