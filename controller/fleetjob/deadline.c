/* SPDX-License-Identifier: Apache-2.0 */

/* runPolicy.activeDeadlineSeconds and progressDeadlineSeconds: a job that takes too long has
 * failed. */
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"

static void check_active(struct pass *pass)
{
    int64_t seconds = pass->spec->run_policy.active_deadline_seconds;
    int64_t due = pass->status->started_wall_ms + seconds * 1000;

    if (seconds == 0 || pass->status->started_wall_ms == 0)
        return;
    if (pass->now >= due)
        status_fail(pass, WELLKNOWN_REASON_DEADLINE_EXCEEDED,
                    "the job was active for more than activeDeadlineSeconds (%lld)",
                    (long long)seconds);
    else
        pass_requeue_at(pass, due);
}

static void check_progress(struct pass *pass)
{
    const struct fleetjob_status *status = pass->status;
    int64_t seconds = pass->spec->run_policy.progress_deadline_seconds, since, due;

    if (seconds == 0 || status->started_wall_ms == 0)
        return;
    if (!pass->spec->has_training && !status->has_progress)
        return; /* an own trainer that may never report a step */
    since = status->started_wall_ms;
    if (status->has_progress && status->progress.at_wall_ms > since)
        since = status->progress.at_wall_ms;
    due = since + seconds * 1000;
    if (pass->now >= due && pass->in->hub.save_failed[0])
        status_fail(pass, WELLKNOWN_REASON_CHECKPOINT_FAILED,
                    "%s; nothing else was done for progressDeadlineSeconds (%lld)",
                    pass->in->hub.save_failed, (long long)seconds);
    else if (pass->now >= due)
        status_fail(
            pass, WELLKNOWN_REASON_PROGRESS_DEADLINE,
            "no step was committed for progressDeadlineSeconds (%lld), the last one is %lld",
            (long long)seconds, (long long)(status->has_progress ? status->progress.step : 0));
    else
        pass_requeue_at(pass, due);
}

void deadline_apply(struct pass *pass)
{
    if (pass->spec->run_policy.suspend)
        return;
    check_active(pass);
    if (!status_is_terminal(pass->status))
        check_progress(pass);
}
