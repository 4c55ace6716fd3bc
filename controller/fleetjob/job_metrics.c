/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/job_metrics.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"

void job_metrics_init(struct job_metrics *metrics, struct metrics *all, bool is_per_job)
{
    static const char labels[] = "namespace,fleetjob";

    *metrics = (struct job_metrics){
        .states = metrics_gauge(all, "fleetjob_jobs",
                                "Number of FleetJobs, by namespace and state; leader only.",
                                "namespace,state")};
    metric_limit(metrics->states, JOB_METRICS_NAMESPACES);
    if (!is_per_job)
        return;
    metrics->step =
        metrics_gauge(all, "fleetjob_job_step",
                      "Last reported training step of a FleetJob; leader only.", labels);
    metrics->restarts = metrics_gauge(
        all, "fleetjob_job_restarts",
        "Restarts of a FleetJob that are counted in its status; leader only.", labels);
    metrics->ready = metrics_gauge(all, "fleetjob_job_ready_workers",
                                   "Number of ready workers of a FleetJob; leader only.", labels);
    metric_limit(metrics->step, JOB_METRICS_JOBS);
    metric_limit(metrics->restarts, JOB_METRICS_JOBS);
    metric_limit(metrics->ready, JOB_METRICS_JOBS);
}

static void set_number(struct metric *metric, const cJSON *job, const char *path,
                       const char *namespace_, const char *name)
{
    int64_t number = 0;

    if (job)
        (void)fleet_json_opt_int(job, path, &number, NULL);
    metric_set(metric, (double)number, namespace_, name);
}

static void change_series(struct job_metrics *metrics, const char *namespace_, const char *name,
                          const struct projection_job *after)
{
    FLEET_AUTO_JSON cJSON *job = NULL;

    if (!after) {
        metric_remove(metrics->step, namespace_, name);
        metric_remove(metrics->restarts, namespace_, name);
        metric_remove(metrics->ready, namespace_, name);
        return;
    }
    (void)fleet_json_parse(after->text, after->size, SIZE_MAX, &job, NULL);
    set_number(metrics->step, job, "status.progress.step", namespace_, name);
    set_number(metrics->restarts, job, "status.restarts.count", namespace_, name);
    set_number(metrics->ready, job, "status.workers.ready", namespace_, name);
}

void job_metrics_change(struct job_metrics *metrics, const char *key,
                        const struct projection_job *before, const struct projection_job *after)
{
    const char *slash = strchr(key, '/');
    FLEET_AUTO_FREE char *namespace_ = strndup(key, slash ? (size_t)(slash - key) : 0);

    fleet_assert(namespace_);
    if (before)
        metric_add(metrics->states, -1, namespace_, before->state);
    if (after)
        metric_add(metrics->states, 1, namespace_, after->state);
    if (metrics->step)
        change_series(metrics, namespace_, slash ? slash + 1 : key, after);
}

void job_metrics_show(struct job_metrics *metrics, bool is_leading)
{
    metric_show(metrics->states, is_leading);
    if (!metrics->step)
        return;
    metric_show(metrics->step, is_leading);
    metric_show(metrics->restarts, is_leading);
    metric_show(metrics->ready, is_leading);
}
