/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Succeeded: the hub has heard that all steps are done. Where its word was lost (the leader died before
 * it could be written) a worker that has ended well says the same: none does before the job is over.
 * The next hub knows nothing of it, and would wait for workers that are not made again.
 */
#include "controller/fleetjob/pass.h"

static bool has_worker_succeeded(const struct pass *pass)
{
    for (size_t i = 0; i < pass->in->pod_count; i++)
        if (pass->in->pods[i].phase == OBSERVED_SUCCEEDED)
            return true;
    return false;
}

void success_policy_apply(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;

    if (hub->phase == HUB_FINISHED || has_worker_succeeded(pass))
        status_succeed(pass);
}
