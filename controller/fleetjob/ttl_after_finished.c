/* SPDX-License-Identifier: Apache-2.0 */

/* runPolicy.ttlSecondsAfterFinished: a terminal job is deleted that long after its end. Without the
 * field it stays. */
#include "controller/fleetjob/policy.h"

void ttl_after_finished_apply(struct pass *pass)
{
    int64_t ttl_s = pass->spec->run_policy.ttl_seconds_after_finished;
    int64_t due = pass->status->finished_wall_ms + ttl_s * 1000;

    if (ttl_s < 0)
        return;
    if (pass->now >= due && pass->living == 0)
        pass->out->delete_job = true;
    else if (pass->now < due)
        pass_requeue_at(pass, due);
}
