/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/placement.h"

#include <errno.h>
#include <string.h>

#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"

int placement_build(const struct plan *plan, int replicas, int replica, struct placement *out,
                    struct fleet_error *err)
{
    struct placement placement = {.replica = replica};
    int rc;

    plan_ownership(plan, replicas, &placement.map);
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

int placement_plan(struct trainer *trainer, int world, struct fleet_error *err)
{
    const struct strategy_spec *strategy = &trainer->job.strategy;
    struct plan_request request = plan_request_of(&trainer->job.config, &strategy->strategy,
                                                  strategy->policy, &strategy->options, world);
    struct fleet_errors errors = {0};
    struct plan plan;
    int rc = plan_build(&request, &plan, &errors);

    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (rc < 0)
        return rc;
    if (trainer->job.plan.has_program && strcmp(plan.digest, trainer->job.plan.digest) != 0) {
        plan_release(&plan);
        return fleet_error(err, -EINVAL, "the program of %d workers is not that of the job", world);
    }
    plan_release(&trainer->job.plan);
    trainer->job.plan = plan;
    return 0;
}
