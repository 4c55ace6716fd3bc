/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_JOB_METRICS_H
#define CONTROLLER_FLEETJOB_JOB_METRICS_H

/*
 * Metrics about FleetJobs as the cache has them: how many are in each state, by namespace, and, if
 * wanted, some numbers of each job. Every replica has the cache, but only the leader prints them,
 * so that a sum over replicas is right.
 */

#include <stdbool.h>

#include "controller/fleetjob/projection.h"
#include "controller/machinery/metrics.h"

#define JOB_METRICS_NAMESPACES 1000 /* series of namespaces and states; see metric_limit() */
#define JOB_METRICS_JOBS       5000 /* jobs with series of their own */

struct job_metrics {
    struct metric *states;
    struct metric *step, *restarts, *ready; /* NULL unless each job has series */
};

void job_metrics_init(struct job_metrics *metrics, struct metrics *all, bool is_per_job);

/* The job `key` has changed in the cache. NULL: it was not there before, or is not there now. */
void job_metrics_change(struct job_metrics *metrics, const char *key,
                        const struct projection_job *before, const struct projection_job *after);

/* Before they are printed. */
void job_metrics_show(struct job_metrics *metrics, bool is_leading);

#endif
