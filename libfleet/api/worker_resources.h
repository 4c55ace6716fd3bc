/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_WORKER_RESOURCES_H
#define LIBFLEET_API_WORKER_RESOURCES_H

/*
 * Checks spec.worker.resources, or the resources of the template's first container, when the job is
 * validated. Without this check the API server would refuse the pods later.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_errors;
struct fleetjob;
struct fleetjob_worker;

/*
 * Append an error for each value of limits and requests that is not a Kubernetes quantity, and for
 * each request above its limit. In spec.worker.resources each unknown field is an error, too.
 */
void worker_resources_check(const struct fleetjob *job, struct fleet_errors *errors);

/* GPUs that a worker asks for by limits, else by requests: of one resource, or with NULL of all. */
int64_t worker_resources_gpus(const struct fleetjob_worker *worker, const char *resource);

/* True if the resource name ends in "/gpu", as "nvidia.com/gpu" does. */
bool worker_resources_is_gpu(const char *resource);

#endif
