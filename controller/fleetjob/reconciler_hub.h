/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILER_HUB_H
#define CONTROLLER_FLEETJOB_RECONCILER_HUB_H

/*
 * What the hub of a job asks of the controller: record a generation, look at the job again, delete
 * the pod of a member that was evicted.
 */

#include "controller/fleetjob/hub_host.h"

struct reconciler_job;

/* For hub_host_new(); its texts are the job's. */
struct hub_host_handlers reconciler_hub_handlers(struct reconciler_job *job);

#endif
