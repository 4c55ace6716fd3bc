/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Succeeded: the hub says so. With the built-in trainer it has heard that all steps are done; with
 * own trainers, that every rank of the newest generation has exited with 0 (hub_finish.c).
 *
 * One pod that has succeeded proves the same. An agent exits with 0 only when the hub has reported
 * to it that the job has succeeded; a trainer that exits with 0 does not end its pod. If the leader
 * is lost before it has recorded the success, the next hub does not know of it, so one such pod is
 * enough. To wait for all pods would be wrong: after the success, a lost pod is no failure.
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
