/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The first stage of a plan: the strategy that takes effect, its grid of ranks, and what of it the
 * built-in runtime cannot run.
 */
#include <errno.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan_internal.h"
#include "libfleet/plan/support.h"
#include "libfleet/strategy/cells.h"
#include "libfleet/training/training.h"
#include "libfleet/training/training_ranks.h"

/* ---- what cannot run ------------------------------------------------------------------------- */

/* What takes effect and the built-in runtime cannot run. */
static void list_obstacles(const struct plan_request *request, struct plan *plan)
{
    struct support_question question = {
        .selection = &plan->selection, .topology = &plan->topology, .training = request->training};

    plan->formula_units = support_list(&question, &plan->cannot_run);
    if (request->is_draft && plan->topology.degree[TOPOLOGY_PIPELINE] > 1)
        plan->formula_units |= UNIT_BIT(UNIT_PIPELINE) & plan->selection.units;
}

/* The user wrote `auto` and no knob that it chose: name the choice. */
static void refuse_auto(const struct plan *plan, const char *path, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf chosen = {0}, missing = {0};

    for (size_t i = 0; i < plan->selection.applied.count; i++)
        fleet_strbuf_appendf(&chosen, "%s%s", i ? " > " : "", plan->selection.applied.items[i]);
    for (size_t i = 0; i < plan->cannot_run.count; i++)
        fleet_strbuf_appendf(&missing, "%s%s", i ? ", " : "", plan->cannot_run.items[i].knob);
    fleet_errors_add(
        errors, path,
        "chooses %s on %d workers, and the built-in trainer cannot run %s yet; set the "
        "settings that you want instead of auto",
        fleet_strbuf_text(&chosen), plan->world, missing.text);
}

/* What the user wrote to get there asks for no other optimizer, too: it would not help. */
static void refuse_obstacle(const char *path, const char *because, struct fleet_errors *errors)
{
    fleet_errors_drop(errors, path, SELECT_NEEDS_OPTIMIZER);
    fleet_errors_add(errors, path, "%s; `fleetjob plan` explains it", because);
}

/* Refused, never ignored: unless the plan is only to be explained. */
static void refuse_obstacles(const struct plan_request *request, const struct strategy *asked,
                             const struct plan *plan, struct fleet_errors *errors)
{
    if (request->only_explain)
        return;
    for (size_t i = 0; i < plan->cannot_run.count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
        const char *field = support_blamed_field(asked, plan->cannot_run.items[i].knob);

        fleet_strbuf_appendf(&path, "%s%s%s", plan_strategy_path(request),
                             *plan_strategy_path(request) ? "." : "", field);
        if (select_is_auto(asked)) {
            refuse_auto(plan, path.text, errors);
            break;
        }
        refuse_obstacle(path.text, plan->cannot_run.items[i].because, errors);
    }
}

/* ---- what takes effect ----------------------------------------------------------------------- */

static struct select_options select_options_of(const struct plan_request *request, int world)
{
    struct select_options options = {.policy = request->policy,
                                     .world_size = world,
                                     .any_world = request->world == PLAN_ANY_WORLD ||
                                                  request->keeps_settings,
                                     .job = {.ranks_of_worker = request->ranks_of_worker},
                                     .unread = request->unread};

    if (request->training) {
        options.optimizer = training_optimizer_text(request->training->optimizer.name);
        options.has_decay = request->training->optimizer.weight_decay > 0;
        options.steps = request->training->steps;
        options.job = training_ranks_job(request->written ? request->written : request->training,
                                         request->options, request->ranks_of_worker);
        options.lacks_batch_norm = !training_has_batch_norm(request->training);
    }
    return options;
}

int plan_select(const struct plan_request *request, const struct strategy *asked, struct plan *plan,
                struct fleet_errors *errors)
{
    struct select_options options = select_options_of(request, plan->world);

    if (strategy_select(asked, &options, plan_strategy_path(request), &plan->selection, errors) <
            0 ||
        topology_build(&plan->selection.final, plan->world, &options.job,
                       plan_strategy_path(request), &plan->topology, errors) < 0)
        return -EINVAL;
    plan->cell = cells_place(&plan->topology, request->rank).cell;
    list_obstacles(request, plan);
    refuse_obstacles(request, asked, plan, errors);
    return 0;
}

/* ---- without a plan -------------------------------------------------------------------------- */

void plan_obstacles(const struct plan_request *request, struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy none = {0};
    const struct strategy *asked = request->strategy ? request->strategy : &none;
    struct fleet_errors ignored = {0}; /* plan_build() reports them */
    struct plan plan = {.world = request->world};
    struct select_options options;

    if (request->only_explain)
        return;
    strategy_init(&none);
    if (request->world == PLAN_ANY_WORLD)
        plan.world = topology_least_world(asked) > 2 ? topology_least_world(asked) : 2;
    options = select_options_of(request, plan.world);
    if (strategy_select(asked, &options, plan_strategy_path(request), &plan.selection, &ignored) <
        0)
        select_roughly(asked, &options, plan_strategy_path(request), &plan.selection,
                       &plan.topology);
    else
        (void)topology_build(&plan.selection.final, plan.world, NULL, "", &plan.topology, &ignored);
    fleet_errors_release(&ignored);
    list_obstacles(request, &plan);
    refuse_obstacles(request, asked, &plan, errors);
    plan_release(&plan);
}

/* The grid of `world` ranks, if they share a model; else its world is 0. */
static struct topology grid_of(const struct plan_request *request, int world)
{
    struct fleet_errors ignored = {0}; /* plan_build() reports them */
    struct plan plan = {.world = world};
    struct select_options options = select_options_of(request, world);
    struct topology grid = {0};

    if (strategy_select(request->strategy, &options, "", &plan.selection, &ignored) == 0 &&
        topology_build(&plan.selection.final, world, NULL, "", &plan.topology, &ignored) == 0 &&
        cells_count(&plan.topology) > 1)
        grid = plan.topology;
    fleet_errors_release(&ignored);
    plan_release(&plan);
    return grid;
}

struct topology plan_least_grid(const struct plan_request *request)
{
    int least = topology_least_world(request->strategy);
    struct topology all = {0}, grid = {0};

    if (request->world > 1 && (least > 1 || request->strategy->pipeline))
        all = grid_of(request, request->world);
    if (least == 1 && request->strategy->pipeline)
        return all; /* the ranks that there are become stages */
    if (least > 1)
        grid = grid_of(request, least);
    /* The ranks that there are become shards, and the cells lie between them. */
    return grid.world > 0 && all.world > 0 && !cells_stay(&grid, &all) ? all : grid;
}
