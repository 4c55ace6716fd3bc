/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/placement.h"

#include <errno.h>

#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"

int placement_build(const struct plan *plan, int replicas, int replica, struct placement *out,
                    struct fleet_error *err)
{
    struct placement placement = {.replica = replica};
    int rc;

    plan_ownership(plan, replicas, replica == PLACEMENT_NO_RANK ? replicas : plan_shards(plan),
                   &placement.map);
    rc = memory_plan_build(&plan->program, &placement.map, replica, &placement.memory, err);
    if (rc < 0) {
        ownership_release(&placement.map);
        return rc;
    }
    *out = placement;
    return 0;
}

void placement_release(struct placement *placement)
{
    ownership_release(&placement->map);
    memory_plan_release(&placement->memory);
    *placement = (struct placement){0};
}

/* The memory that is there, for the program of another number of ranks. */
static int keep_memory(struct trainer *trainer, const struct plan *plan, struct fleet_error *err)
{
    const struct program *before = &trainer->job.plan.program, *now = &plan->program;
    struct placement *placement = &trainer->placement;
    struct memory_plan memory;
    int rc;

    if (now->flat_count != before->flat_count || now->buffer_count != before->buffer_count ||
        now->state_count != before->state_count)
        return fleet_error(err, -EINVAL, "the state of %d workers is not that of the job",
                           plan->world);
    rc = memory_plan_build(now, &placement->map, placement->replica, &memory, err);
    if (rc == 0)
        rc = state_fit(&trainer->state, &memory, err);
    if (rc < 0)
        return rc;
    memory_plan_release(&placement->memory);
    placement->memory = memory;
    return 0;
}

int placement_plan(struct trainer *trainer, int world, struct fleet_error *err)
{
    const struct strategy_spec *strategy = &trainer->job.strategy;
    struct plan_request request = plan_request_of(&trainer->job.config, &strategy->strategy,
                                                  strategy->policy, &strategy->options, world);
    struct fleet_errors errors = {0};
    struct plan plan;
    int rc;

    request.has_buddies = trainer->job.has_buddies;
    request.keeps_settings = true;
    rc = plan_build(&request, &plan, &errors);
    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (rc < 0)
        return rc;
    rc = trainer->job.plan.has_program ? keep_memory(trainer, &plan, err) : 0;
    if (rc < 0) {
        plan_release(&plan);
        return rc;
    }
    plan_release(&trainer->job.plan);
    trainer->job.plan = plan;
    return 0;
}
