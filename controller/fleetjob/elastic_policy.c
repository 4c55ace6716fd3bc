/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Translates worker.minReplicas, replicas, maxReplicas, runPolicy.elastic and the failure rules for
 * the hub. The hub itself counts restarts.
 */
#include <limits.h>

#include "controller/fleetjob/policy.h"
#include "libfleet/plan/plan.h"

#define OWN_TRAINER_WAIT_S 60 /* if the cluster has room, a pod is replaced within this time */

static int clamp(int64_t value)
{
    return value > INT_MAX ? INT_MAX : (int)value;
}

/* Survivors of the built-in trainer keep their state and continue within milliseconds; own trainers
 * start again. */
static double replacement_ms(const struct fleetjob_spec *spec)
{
    int64_t seconds = spec->run_policy.elastic.wait_for_replacement_seconds;

    if (seconds < 0)
        seconds = spec->has_training ? 0 : OWN_TRAINER_WAIT_S;
    return (double)seconds * 1e3;
}

/* Whether and how ranks of the built-in trainer share a model. */
static struct topology grid_of(const struct fleetjob_spec *spec)
{
    const struct fleetjob_worker *worker = &spec->worker;
    int64_t fixed = worker->min_replicas == worker->max_replicas
                        ? worker->replicas * worker->processes_per_pod
                        : PLAN_ANY_WORLD;
    struct plan_request request = plan_request_of(
        spec->has_training ? &spec->training : NULL, &spec->strategy, spec->strategy_policy,
        &spec->strategy_options, fixed <= TOPOLOGY_WORLD_MAX ? (int)fixed : PLAN_ANY_WORLD);

    return spec->has_training ? plan_least_grid(&request) : (struct topology){0};
}

void elastic_policy_apply(struct pass *pass)
{
    const struct fleetjob_run_policy *policy = &pass->spec->run_policy;
    const struct fleetjob_worker *worker = &pass->spec->worker;
    const struct fleetjob_rendezvous *rendezvous = &pass->status->rendezvous;

    pass->out->hub = (struct action_hub){
        .is_wanted = true,
        .is_alone =
            pass->living == 0 && pass->before->started_wall_ms == 0, /* a cache may be stale */
        .failures = restart_policy_in_a_row(pass),
        .rules = failure_policy_rules(pass->spec),
        .has_trained = rendezvous->trained > 0 && rendezvous->trained == rendezvous->newest.counter,
        .policy = {.min = clamp(worker->min_replicas),
                   .max = clamp(worker->max_replicas),
                   .desired = pass->desired,
                   .rejoin_grace_ms = (double)policy->elastic.rejoin_grace_ms,
                   .replacement_ms = replacement_ms(pass->spec),
                   .timeout_ms = (double)policy->elastic.timeout_seconds * 1e3,
                   .restarts_max = clamp(policy->restart.max_restarts),
                   .reset_after_steps = policy->restart.reset_after_steps,
                   .own_trainer = !pass->spec->has_training,
                   .grid = grid_of(pass->spec),
                   .ranks_of_member = clamp(worker->processes_per_pod)}};
    pass->out->hub.policy.rules = pass->out->hub.rules;
}
