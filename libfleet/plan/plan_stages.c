/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/plan_stages.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/adders.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program_build.h"
#include "libfleet/strategy/cells.h"
#include "libfleet/strategy/pipeline_messages.h"
#include "libfleet/strategy/pipeline_schedule.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

#define BUILT_MAX 50000 /* operators of the programs of all stages: half a second */

static int stage_of(const struct plan *plan)
{
    return cells_coordinate(&plan->topology, plan->cell, TOPOLOGY_PIPELINE);
}

bool plan_stages_wanted(const struct plan_request *request, const struct plan *plan)
{
    return plan->topology.degree[TOPOLOGY_PIPELINE] > 1 && !request->is_undivided &&
           (plan->selection.units & ~plan->formula_units & UNIT_BIT(UNIT_PIPELINE)) != 0;
}

struct program_cell plan_stages_cell(const struct plan_request *request, const struct plan *plan)
{
    const struct strategy_options *options = request->options;
    struct program_cell cell = {
        .model_ranks = plan->topology.degree[TOPOLOGY_MODEL],
        .model_rank = cells_coordinate(&plan->topology, plan->cell, TOPOLOGY_MODEL),
        .divides_rows = plan->selection.final.tensor_parallel_configs.sequence_parallel,
        .by_operator = plan->by_operator,
        .sequence_ranks = plan->topology.degree[TOPOLOGY_SEQUENCE],
        .sequence_rank = cells_coordinate(&plan->topology, plan->cell, TOPOLOGY_SEQUENCE)};

    if (!plan->is_cut)
        return cell;
    cell.stages = plan->topology.degree[TOPOLOGY_PIPELINE];
    cell.stage = stage_of(plan);
    cell.chunks = options ? (int)options->pipeline_chunks : 1;
    cell.splits_weights = options && options->pipeline_schedule == STRATEGY_SCHEDULE_ZERO_BUBBLE;
    return cell;
}

bool plan_stages_layers(const struct plan *plan, int stages, int64_t *layers)
{
    for (int s = 0; s < stages; s++)
        layers[s] = 0;
    for (int v = 0; v < plan->program.var_count; v++) {
        const struct program_var *var = &plan->program.vars[v];
        if (var->role == PROGRAM_ROLE_PARAMETER && var->layer >= layers[var->stage])
            layers[var->stage] = var->layer + 1;
    }
    for (int s = stages - 1; s > 0; s--)
        layers[s] -= layers[s - 1];
    for (int s = 0; s < stages; s++)
        if (layers[s] < 1)
            return false;
    return true;
}

/* ---- programs -------------------------------------------------------------------------------- */

static int build_stage(const struct pass_context *context, const char *strategy_path, int stage,
                       struct program *out, struct fleet_errors *errors)
{
    struct pass_context changed = *context;

    changed.cell.stage = stage;
    changed.idle = changed.notes = NULL;
    return program_build(&changed, strategy_path, out, errors);
}

/* The map of the ranks that run `program`. */
static void divide_stage(const struct plan *plan, const struct program *program,
                         struct ownership *out)
{
    struct plan view = *plan;

    view.program = *program;
    plan_ownership(&view, plan_replicas(plan), plan_shards(plan), out);
}

static int build_other(const struct pass_context *context, const char *strategy_path, int stage,
                       const struct plan *plan, struct plan_stage_program *out,
                       struct fleet_errors *errors)
{
    struct fleet_error err;

    if (build_stage(context, strategy_path, stage, &out->program, errors) < 0)
        return -EINVAL;
    divide_stage(plan, &out->program, &out->ownership);
    if (memory_plan_build(&out->program, &out->ownership, ownership_heaviest(&out->ownership),
                          &out->memory, &err) == 0)
        return 0;
    fleet_errors_add(errors, "spec.training.model", "%s", err.text);
    ownership_release(&out->ownership);
    program_release(&out->program);
    return -EINVAL;
}

static int build_others(const struct pass_context *context, const char *strategy_path,
                        struct plan *plan, struct fleet_errors *errors)
{
    int stages = context->cell.stages, rc = 0;
    bool is_large = (int64_t)plan->whole.op_count * stages > BUILT_MAX;

    plan->stages = calloc((size_t)stages, sizeof(*plan->stages));
    fleet_assert(plan->stages != NULL);
    for (int stage = 0; stage < stages && rc == 0; stage++)
        if (stage != context->cell.stage && (!is_large || stage == 0 || stage + 1 == stages))
            rc = build_other(context, strategy_path, stage, plan, &plan->stages[stage], errors);
    return rc;
}

/* Where chunks of layers sum gradients inside micro-batches, all replicas must run the same passes
 * in the same order. `count` micro-batches of an update. */
static int divide_evenly(const struct plan *plan, int64_t count, int replicas,
                         struct fleet_error *err)
{
    if (count % replicas == 0 || !adders_are_used(&plan->program))
        return 0;
    return fleet_error(
        err, -EINVAL,
        "with several chunks and sharding_configs.stage 2 or 3 all replicas need as many "
        "micro-batches: %" PRId64 " do not divide into %d replicas; use 1 chunk, or "
        "stage 1",
        count, replicas);
}

static int check_rounds(const struct pass_context *context, const struct plan *plan,
                        struct fleet_errors *errors)
{
    int64_t count = training_micro_batches(context->training) * plan->program.merge_steps;
    struct fleet_error err;

    if (context->cell.chunks <= 1 || divide_evenly(plan, count, plan_replicas(plan), &err) == 0)
        return 0;
    fleet_errors_add(errors, "spec.strategyOptions.pipelineChunks", "%s", err.text);
    return -EINVAL;
}

int plan_stages_check(const struct plan *plan, int replicas, struct fleet_error *err)
{
    struct pipeline_shape shape = plan->schedule;
    int64_t each = plan->leaves / replicas;

    if (!plan->is_cut || shape.chunks <= 1)
        return 0;
    if (divide_evenly(plan, plan->leaves, replicas, err) < 0)
        return -EINVAL;
    shape.micro_batches = each < 1 ? 1 : each < INT_MAX ? (int)each : INT_MAX;
    return pipeline_check(&shape, err);
}

int plan_stages_build(const struct pass_context *context, const char *strategy_path, bool all,
                      struct plan *plan, struct fleet_errors *errors)
{
    struct program stage;

    if (build_stage(context, strategy_path, context->cell.stage, &stage, errors) < 0)
        return -EINVAL;
    plan->whole = plan->program;
    plan->program = stage;
    if (check_rounds(context, plan, errors) < 0)
        return -EINVAL;
    return all ? build_others(context, strategy_path, plan, errors) : 0;
}

void plan_stages_release(struct plan *plan)
{
    for (int stage = 0; plan->stages && stage < plan->topology.degree[TOPOLOGY_PIPELINE]; stage++) {
        memory_plan_release(&plan->stages[stage].memory);
        ownership_release(&plan->stages[stage].ownership);
        program_release(&plan->stages[stage].program);
    }
    free(plan->stages);
    program_release(&plan->whole);
}

/* ---- what a stage needs ---------------------------------------------------------------------- */

struct plan plan_stages_view(const struct plan *plan, int stage)
{
    struct plan view = *plan;

    if (plan->stages && plan->stages[stage].program.op_count > 0) {
        view.program = plan->stages[stage].program;
        view.ownership = plan->stages[stage].ownership;
        view.memory = plan->stages[stage].memory;
    }
    return view;
}

int plan_stages_copies(const struct plan *plan, int stage)
{
    struct pipeline_shape shape = plan->schedule;
    FLEET_AUTO_FREE int *copies = NULL;
    int replicas = plan_replicas(plan);

    if (!plan->is_cut)
        return 1;
    shape.micro_batches = (int)((plan->leaves + replicas - 1) / replicas);
    copies = calloc((size_t)shape.micro_batches + 1, sizeof(*copies));
    fleet_assert(copies != NULL);
    return pipeline_copies(&shape, stage, copies);
}
