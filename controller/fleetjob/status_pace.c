/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_pace.h"

#include <math.h>

double status_pace_due_ms(const struct status_pace_job *job)
{
    if (job->turn_ms > 0)
        return job->turn_ms;
    return job->written_ms > 0 ? job->written_ms + STATUS_PACE_PROGRESS_MS : 0;
}

double status_pace_progress(struct status_pace *all, struct status_pace_job *job, double now_ms)
{
    if (job->turn_ms == 0 && now_ms >= status_pace_due_ms(job)) {
        job->turn_ms = all->free_ms > now_ms ? all->free_ms : now_ms;
        all->free_ms = job->turn_ms + STATUS_PACE_EVERY_MS;
    }
    if (now_ms < status_pace_due_ms(job))
        return status_pace_due_ms(job) - now_ms;
    status_pace_written(job, now_ms);
    return 0;
}

double status_pace_after(const struct status_pace_job *job, double pause_ms, double now_ms)
{
    double due_ms = job->written_ms > 0 ? job->written_ms + pause_ms : now_ms;

    return now_ms < due_ms ? due_ms - now_ms : 0;
}

double status_pace_start(struct status_pace *all, struct status_pace_job *job, double now_ms)
{
    double latest_ms = job->written_ms + STATUS_PACE_COUNTS_MS;

    if (job->written_ms == 0)
        return 0;
    if (job->start_ms == 0) {
        job->start_ms = fmax(job->written_ms + STATUS_PACE_START_MS, all->start_free_ms);
        if (job->start_ms <= latest_ms)
            all->start_free_ms = job->start_ms + STATUS_PACE_EVERY_MS;
    }
    return fmax(0, fmin(job->start_ms, latest_ms) - now_ms);
}

void status_pace_written(struct status_pace_job *job, double now_ms)
{
    job->written_ms = now_ms;
    job->turn_ms = 0;
    job->start_ms = 0;
}
