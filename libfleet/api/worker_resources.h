/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_WORKER_RESOURCES_H
#define LIBFLEET_API_WORKER_RESOURCES_H

/*
 * Are spec.worker.resources, or those of the template's first container, what a pod can have? The
 * API server would say so only once the pods are made.
 */

#include <stdbool.h>

struct fleet_errors;
struct fleetjob;

/*
 * Append an error for each value of limits and requests that is no quantity, for each request above
 * its limit and, in spec.worker.resources, for each unknown field.
 */
void worker_resources_check(const struct fleetjob *job, struct fleet_errors *errors);

/* Is it the name of a GPU's resource, as "nvidia.com/gpu" is? */
bool worker_resources_is_gpu(const char *resource);

#endif
