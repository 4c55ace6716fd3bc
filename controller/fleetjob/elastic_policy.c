/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker.minReplicas, replicas, maxReplicas and runPolicy.elastic, as the hub understands them. The
 * hub counts restarts itself; those that a failure rule says do not count are added to its limit.
 */
#include <limits.h>

#include "controller/fleetjob/pass.h"

static int clamp(int64_t value)
{
    return value > INT_MAX ? INT_MAX : (int)value;
}

void elastic_policy_apply(struct pass *pass)
{
    const struct fleetjob_run_policy *policy = &pass->spec->run_policy;
    const struct fleetjob_worker *worker = &pass->spec->worker;
    const struct fleetjob_rendezvous *rendezvous = &pass->status->rendezvous;

    pass->out->hub = (struct action_hub){
        .is_wanted = true,
        .is_alone =
            pass->living == 0 && pass->before->started_wall_ms == 0, /* a cache may be behind */
        .has_trained = rendezvous->trained > 0 && rendezvous->trained == rendezvous->generation,
        .policy = {.min = clamp(worker->min_replicas),
                   .max = clamp(worker->max_replicas),
                   .desired = pass->desired,
                   .rejoin_grace_ms = (double)policy->elastic.rejoin_grace_ms,
                   .timeout_ms = (double)policy->elastic.timeout_seconds * 1e3,
                   .restarts_max =
                       clamp(policy->restart.max_restarts + failure_policy_ignored(pass)),
                   .reset_after_steps = policy->restart.reset_after_steps,
                   .own_trainer = !pass->spec->has_training}};
}
