/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_JOB_SERVICE_H
#define CONTROLLER_FLEETJOB_JOB_SERVICE_H

/*
 * The Services around a job: its own headless one, which gives pods names for people (nothing of
 * ours needs DNS), and the EndpointSlice that leads the agents of all jobs to the leader.
 */

#include <cjson/cJSON.h>

#include "libfleet/api/fleetjob.h"

/* The headless Service of a job. Owned by the caller. */
cJSON *job_service_build(const struct fleetjob *job);

/* The Service in front of the job's servers: a port for each of them (pod_server.h). `address` is
 * the one that it had before, or NULL. Owned by the caller. */
cJSON *job_service_build_servers(const struct fleetjob *job, const char *address);

/*
 * The EndpointSlice of the hub's Service, which has no selector: `address` (IPv4 or IPv6) and
 * `port` of the replica that leads. `owner` is a reference to the Service: the slice goes with it.
 * Owned by the caller.
 */
cJSON *job_service_endpoint_slice(const char *namespace_, const char *service, const cJSON *owner,
                                  const char *address, int port);

#endif
