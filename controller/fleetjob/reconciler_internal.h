/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_RECONCILER_INTERNAL_H
#define CONTROLLER_FLEETJOB_RECONCILER_INTERNAL_H

/* The controller of FleetJobs as its own files see it: what all jobs share. */

#include "controller/fleetjob/gang.h"
#include "controller/fleetjob/job_metrics.h"
#include "controller/fleetjob/reconciler.h"
#include "controller/fleetjob/status_pace.h"
#include "controller/fleetjob/tried_pods.h"
#include "libfleet/base/map.h"

struct expectations;
struct job_search;
struct leader_io;
struct metric;
struct pod_query;

struct reconciler {
    struct reconciler_options options;
    struct leader_io *led;
    struct kube_io *io; /* of `led`: only the leader changes anything */
    struct manager *manager;
    int jobs_informer, pods_informer, services_informer;
    struct expectations *expectations;
    struct hub_network network;
    int64_t epoch;
    struct fleet_map jobs;     /* key → struct reconciler_job */
    struct pod_query *queries; /* pods that are asked about (pod_labels.c), a list */
    struct status_pace pace;
    double pod_events_ms; /* when the next job may ask for Events of a pod (pod_events.c) */
    bool has_gang[GANG_SCHEDULERS]; /* which gang schedulers the cluster has, … */
    double gang_until_ms;           /* … as was seen; ask again then */
    struct tried_pods tried_pods;
    struct job_search *search;
    struct metric *internal_errors; /* a counter */
    struct metric *pods_created, *pods_deleted, *status_writes, *restarts;
    struct job_metrics job_metrics;
};

/* A line of the log about a job: `what` is constant, `job` its "namespace/name". It is the only way
 * from the code of a job to the log (tools/check-logs.sh). */
__attribute__((nonnull(3))) void reconciler_job_trouble(const struct reconciler *reconciler,
                                                        const char *what, const char *job,
                                                        const struct fleet_error *err);

#endif
