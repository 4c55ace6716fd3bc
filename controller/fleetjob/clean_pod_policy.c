/* SPDX-License-Identifier: Apache-2.0 */

/*
 * runPolicy.cleanPodPolicy: which pods a terminal job keeps. When the job is over, the hub orders
 * the workers to end. The controller deletes only workers that do not end, or are not connected to
 * the hub. It deletes servers a moment after the end of the job.
 */
#include "controller/fleetjob/policy.h"

#define END_GRACE_MS    30000 /* for a last checkpoint */
#define SERVER_GRACE_MS 5000  /* as `fleetjob launch` (docs/parameter-server.md) */

/* A server ends by itself when all workers have stopped. It may still write a snapshot. */
static void clean_servers(struct pass *pass, enum fleetjob_clean_pods policy)
{
    int64_t patience = pass->status->finished_wall_ms + SERVER_GRACE_MS;

    if (servers_are_living(pass) && pass->now < patience)
        pass_requeue_at(pass, patience);
    else
        servers_delete(pass, "JobFinished", policy == FLEETJOB_CLEAN_RUNNING);
}

void clean_pod_policy_apply(struct pass *pass)
{
    enum fleetjob_clean_pods policy = pass->spec->run_policy.clean_pod_policy;
    int64_t patience = pass->status->finished_wall_ms + END_GRACE_MS;

    if (policy == FLEETJOB_CLEAN_NONE)
        return;
    clean_servers(pass, policy);
    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        bool is_living = pass_is_living(pod);
        bool is_ending = is_living && pass->in->hub.is_hosted && pass->now < patience &&
                         pass_silent_since(pass, pod) == 0;
        if (is_ending)
            pass_requeue_at(pass, patience);
        else if (is_living || policy == FLEETJOB_CLEAN_ALL)
            pass_delete(pass, pod, "JobFinished");
    }
}
