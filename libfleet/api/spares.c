/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/api/spares.h"

#include "libfleet/api/fleetjob.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/cells.h"

int64_t spares_trained(const struct fleetjob *job, int64_t workers)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    int least = topology_least_world(&job->spec.strategy);
    struct fleet_errors ignored = {0}; /* others report them */
    struct topology grid;
    int rc;

    if (!job->spec.has_training || worker->min_replicas >= worker->max_replicas || least == 1)
        return workers;
    rc = topology_build(&job->spec.strategy, least, NULL, "", &grid, &ignored);
    fleet_errors_release(&ignored);
    if (rc < 0 || cells_count(&grid) == 1)
        return workers;
    while (workers > 0 && workers * worker->processes_per_pod % least != 0)
        workers--;
    return workers;
}
