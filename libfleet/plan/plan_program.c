/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The second stage of a plan: the program of a rank, built or taken from a plan that is like this
 * one; later its memory.
 */
#include <errno.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan_idle.h"
#include "libfleet/plan/plan_internal.h"
#include "libfleet/plan/plan_stages.h"
#include "libfleet/plan/support.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program_build.h"
#include "libfleet/training/training.h"
#include "libfleet/training/training_ranks.h"

static bool divides_rows(const struct plan *plan)
{
    return plan->selection.final.tensor_parallel_configs.sequence_parallel;
}

/* The field that asks for ranks which do not divide the model, and why; NULL: they do. */
static const char *find_undivided(const struct training_config *training,
                                  const struct strategy *asked, const struct plan *plan,
                                  struct fleet_error *err)
{
    const int *degree = plan->topology.degree;
    int model_ranks = degree[TOPOLOGY_MODEL], ranks = degree[TOPOLOGY_SEQUENCE];

    if (model_check_ranks(training, model_ranks, err) < 0)
        return support_blamed_field(asked, "tensor_parallel");
    if (model_check_heads(training, model_ranks, ranks, err) < 0)
        return "hybrid_configs.sep_degree";
    if (model_check_rows(training, divides_rows(plan) ? ranks * model_ranks : ranks, err) < 0)
        return ranks > 1 ? "hybrid_configs.sep_degree"
                         : "tensor_parallel_configs.sequence_parallel";
    return NULL;
}

/* Ranks that share tensors or sequences must divide the model; a search tries only such ranks. */
void plan_check_model_ranks(const struct plan_request *request, const struct strategy *asked,
                            const struct plan *plan, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0}, nearest = {0};
    const struct training_config *training = request->training;
    struct fleet_error err;
    const char *blamed;

    if (!training || request->is_draft || training_lacks_vocabulary(training))
        return;
    blamed = find_undivided(training, asked, plan, &err);
    if (!blamed)
        return;
    fleet_strbuf_appendf(&path, "%s%s%s", plan_strategy_path(request),
                         *plan_strategy_path(request) ? "." : "", blamed);
    plan_nearest(request, asked, plan, &nearest);
    fleet_errors_add(errors, path.text, "%s%s", err.text, fleet_strbuf_text(&nearest));
}

/* What errors suggest in place of the grid. */
void plan_nearest(const struct plan_request *request, const struct strategy *asked,
                  const struct plan *plan, struct fleet_strbuf *out)
{
    const struct training_config *written = request->written ? request->written : request->training;

    if (written && request->world != PLAN_ANY_WORLD)
        training_ranks_nearest(written, asked, request->options, plan->world,
                               request->ranks_of_worker, out);
}

/* More ranks than leaves, amp beside an explicit fp32. */
static int check_surroundings(const struct plan_request *request, const struct strategy *asked,
                              const struct plan *plan, struct fleet_errors *errors)
{
    const struct strategy *final = &plan->selection.final;
    struct training_surroundings around = {
        .world_size = request->world == PLAN_ANY_WORLD ? 1 : plan_replicas(plan),
        .ranks_of_replica = plan->world / plan_replicas(plan),
        .ranks_of_worker = request->ranks_of_worker,
        .world_path = request->world_path,
        .gradient_merge_k = final->gradient_merge ? final->gradient_merge_configs.k_steps : 1,
        .amp = final->amp,
        .strategy = request->is_draft ? NULL : asked,
        .options = request->options};

    return training_config_check(request->training, "spec.training", &around, errors);
}

/* A unit that a pass calls idle is not applied. */
static void take_idle_units_back(struct select_result *selection)
{
    struct select_names *applied = &selection->applied;
    size_t kept = 0;

    for (size_t i = 0; i < applied->count; i++)
        if (!select_has_note(&selection->without_effect, applied->items[i]))
            applied->items[kept++] = applied->items[i];
    applied->count = kept;
}

/* Ranks that share tensors or sequences divide the model. Otherwise the whole program is built, to
 * find its other errors. */
static bool is_divisible(const struct plan_request *request, const struct strategy *asked,
                         const struct plan *plan)
{
    struct fleet_error ignored;

    return !request->is_undivided &&
           find_undivided(request->training, asked, plan, &ignored) == NULL;
}

static struct pass_context context_of(const struct plan_request *request, const struct plan *plan)
{
    struct pass_context context = {.training = request->training,
                                   .strategy = &plan->selection.final,
                                   .options = request->options,
                                   .world = plan->world,
                                   .is_draft = request->is_draft,
                                   .without_sharding =
                                       (plan->formula_units & UNIT_BIT(UNIT_SHARDING)) != 0};

    if (is_divisible(request, &plan->selection.final, plan))
        context.cell = plan_stages_cell(request, plan);
    return context;
}

/* The program, if the size of the model is known; the selection is made. If its layers will be cut,
 * it has all of them so far. */
static int build_program(const struct plan_request *request, const struct strategy *asked,
                         struct plan *plan, struct fleet_errors *errors)
{
    struct pass_context context;

    plan->is_cut = plan_stages_wanted(request, plan);
    context = context_of(request, plan);
    context.idle = &plan->selection.without_effect;
    context.notes = &plan->selection.notes;
    if (plan->is_cut)
        context.cell.stage = PROGRAM_EVERY_STAGE;
    (void)check_surroundings(request, asked, plan, errors);
    if (training_lacks_vocabulary(request->training)) {
        select_note(&plan->selection.notes, "model.vocabulary",
                    "the tokenizer's size, which is known where data.vocabulary is read; no bytes "
                    "are planned without it");
        plan->is_cut = false;
        return 0;
    }
    if (program_build(&context, plan_strategy_path(request), &plan->program, errors) < 0)
        return -EINVAL;
    plan->has_program = true;
    take_idle_units_back(&plan->selection);
    if (request->world != PLAN_ANY_WORLD && !request->is_draft)
        plan_idle_list(asked, &context, plan);
    return 0;
}

int plan_lay_out(const struct plan_request *request, struct plan *plan, struct fleet_errors *errors)
{
    struct fleet_error err;

    if (!plan->has_program || plan->borrows_memory)
        return 0;
    if (plan->is_cut) {
        struct pass_context context = context_of(request, plan);
        if (plan_stages_build(&context, plan_strategy_path(request), !request->keeps_settings, plan,
                              errors) < 0)
            return -EINVAL;
    }
    plan_ownership(plan, plan_replicas(plan), plan_shards(plan), &plan->ownership);
    if (memory_plan_build(&plan->program, &plan->ownership, ownership_heaviest(&plan->ownership),
                          &plan->memory, &err) < 0) {
        fleet_errors_add(errors, "spec.training.model", "%s", err.text);
        return -EINVAL;
    }
    return 0;
}

/* Is the program of `like` that of the plan? Without a pass a division leaves no trace in it. */
static bool has_program_of(const struct plan *plan, const struct plan *like)
{
    unsigned int dividing = UNIT_BIT(UNIT_SHARDING) | UNIT_BIT(UNIT_PIPELINE);

    if (plan->topology.degree[TOPOLOGY_SEQUENCE] != like->topology.degree[TOPOLOGY_SEQUENCE])
        return false;
    if (plan->topology.degree[TOPOLOGY_MODEL] != like->topology.degree[TOPOLOGY_MODEL])
        dividing |= UNIT_BIT(UNIT_TENSOR_PARALLEL);
    return (plan->selection.units & dividing & ~plan->formula_units) == 0;
}

static void borrow_program(const struct plan *like, struct plan *plan)
{
    plan->program = like->program;
    plan->memory = like->memory;
    plan->has_program = plan->borrows_program = plan->borrows_memory = true;
}

/* Passes see the degrees of tensors and sequences, and the sharding stage. They do not see replicas
 * and shards, and the stages of a pipeline only where they cut. */
static bool is_divided_like(const struct plan_request *request, const struct plan *plan,
                            const struct plan *like)
{
    static const enum topology_axis seen[] = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE};

    for (size_t i = 0; i < FLEET_COUNT(seen); i++)
        if (plan->topology.degree[seen[i]] != like->topology.degree[seen[i]])
            return false;
    return like->has_program && !like->is_cut && !plan_stages_wanted(request, plan) &&
           (plan->selection.units & ~plan->formula_units) ==
               (like->selection.units & ~like->formula_units) &&
           plan->selection.final.sharding_configs.stage ==
               like->selection.final.sharding_configs.stage;
}

/* Without its memory; what the passes had nothing to do for is the same, too. */
static void borrow_divided(const struct plan *like, struct plan *plan)
{
    const struct select_notes *idle = &like->selection.without_effect;

    for (size_t i = 0; i < idle->count; i++)
        if (!select_has_note(&plan->selection.without_effect, idle->items[i].knob))
            select_note(&plan->selection.without_effect, idle->items[i].knob, "%s",
                        idle->items[i].because);
    take_idle_units_back(&plan->selection);
    plan->program = like->program;
    plan->has_program = plan->borrows_program = true;
}

int plan_take_program(const struct plan_request *request, const struct strategy *asked,
                      struct plan *plan, struct fleet_errors *errors)
{
    if (!request->training)
        return 0;
    if (!request->like ||
        (!has_program_of(plan, request->like) && !is_divided_like(request, plan, request->like)))
        return build_program(request, asked, plan, errors);
    (void)check_surroundings(request, asked, plan, errors);
    if (has_program_of(plan, request->like))
        borrow_program(request->like, plan);
    else
        borrow_divided(request->like, plan);
    return 0;
}
