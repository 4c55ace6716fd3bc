/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Succeeded: the hub reports it. With the built-in trainer, the hub has heard that all steps are
 * done; with own trainers, that every rank of the newest generation has exited with 0
 * (hub_finish.c).
 *
 * One succeeded pod proves the same. An agent exits with 0 only after the hub has reported the
 * success to it; a trainer that exits with 0 does not end its pod. If the leader is lost before it
 * records the success, the next hub does not know it, so one such pod is enough. It would be wrong
 * to wait for all pods: a pod that is lost after the success is not a failure.
 */
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"

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
