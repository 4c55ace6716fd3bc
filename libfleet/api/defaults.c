/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Defaults that depend on other fields. All other defaults are in the tables of fleetjob_fields.c.
 */
#include "libfleet/api/defaults.h"

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/worker_resources.h"
#include "libfleet/base/memory.h"

#define PROCESSES_MAX FLEET_PROCESSES_MAX

static int64_t default_processes(const struct fleetjob_worker *worker)
{
    int64_t gpus = worker_resources_gpus(worker, NULL);

    return gpus < 1 ? 1 : gpus < PROCESSES_MAX ? gpus : PROCESSES_MAX;
}

void defaults_apply(struct fleetjob *job)
{
    struct fleetjob_worker *worker = &job->spec.worker;

    if (!job->metadata.namespace_) {
        job->metadata.namespace_ = fleet_dup_text("default");
    }
    /* If the user sets only one bound, the other one follows, so that an error names the field that
     * the user wrote. */
    worker->max_given = worker->max_replicas != 0;
    if (worker->min_replicas == 0)
        worker->min_replicas = worker->max_replicas > 0 && worker->max_replicas < worker->replicas
                                   ? worker->max_replicas
                                   : worker->replicas;
    if (worker->max_replicas == 0)
        worker->max_replicas =
            worker->min_replicas > worker->replicas ? worker->min_replicas : worker->replicas;
    worker->elastic = worker->min_replicas < worker->max_replicas;
    if (worker->processes_per_pod == 0)
        worker->processes_per_pod = default_processes(worker);
}
