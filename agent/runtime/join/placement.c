/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/join/placement.h"

#include <errno.h>
#include <string.h>

#include "agent/runtime/backend/registry.h"
#include "agent/runtime/step/average.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/gpu_program.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/cells.h"
#include "libfleet/strategy/select.h"

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

bool placement_may_divide(const struct trainer *trainer)
{
    const struct strategy *asked = &trainer->job.strategy.strategy;

    if (average_is_on(trainer)) /* ranks whose parameters differ share nothing */
        return false;
    return asked->sharding || asked->hybrid_configs.sharding_degree > 1 || select_is_auto(asked);
}

int placement_begin(struct trainer *trainer, struct fleet_error *err)
{
    int rc;

    if (trainer->save.snapshot)
        save_finish(trainer); /* it may be reading the state */
    trainer->progress.committed = TRAINER_NO_STATE;
    trainer->progress.voted = trainer->progress.viewed = 0;
    state_release(&trainer->state);
    placement_release(&trainer->placement);
    rc = placement_build(&trainer->job.plan, placement_may_divide(trainer) ? 2 : 1,
                         PLACEMENT_NO_RANK, &trainer->placement, err);
    return rc < 0 ? rc
                  : state_init(&trainer->state, &trainer->job.plan.program,
                               &trainer->placement.memory, trainer->device.memory_backend, err);
}

int placement_plan(struct trainer *trainer, int world, int rank, struct fleet_error *err)
{
    const struct strategy_spec *strategy = &trainer->job.strategy;
    struct plan_request request = plan_request_of(&trainer->job.config, &strategy->strategy,
                                                  strategy->policy, &strategy->options, world);
    struct fleet_errors errors = {0};
    struct plan plan;
    bool is_other_cell;
    int rc;

    request.rank = rank;
    request.has_buddies = trainer->job.has_buddies;
    request.keeps_settings = true;
    rc = plan_build(&request, &plan, &errors);
    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (rc < 0)
        return rc;
    if (strcmp(trainer->device.kind->name, "cuda") == 0)
        (void)gpu_program_apply(&plan.program);
    is_other_cell = trainer->job.plan.has_program &&
                    (trainer->job.plan.cell != plan.cell ||
                     cells_count(&trainer->job.plan.topology) != cells_count(&plan.topology));
    if (trainer->job.plan.has_program && !is_other_cell)
        rc = keep_memory(trainer, &plan, err);
    if (rc < 0) {
        plan_release(&plan);
        return rc;
    }
    plan_release(&trainer->job.plan);
    trainer->job.plan = plan;
    return is_other_cell ? placement_begin(trainer, err) : 0;
}

enum state_division placement_division(const struct trainer *trainer, int shards)
{
    if (shards == 1)
        return STATE_WHOLE;
    return exchange_gathers(trainer) ? STATE_PARAMETERS_DIVIDED : STATE_OPTIMIZER_DIVIDED;
}

void placement_initialize(struct trainer *trainer)
{
    const struct strategy *final = &trainer->job.plan.selection.final;
    int32_t divided = final->tensor_parallel_configs.tensor_init_seed;
    struct state_seeds seeds = {.job = trainer->job.config.seed};

    seeds.divided = divided == -1 ? seeds.job : (uint64_t)divided; /* -1: not given */
    state_initialize(&trainer->state, &seeds, trainer->job.threads);
}
