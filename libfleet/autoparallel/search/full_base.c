/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/full_base.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/memory.h"

/* ---- plans ----------------------------------------------------------------------------------- */

struct plan_request full_plan_request(const struct full_request *request,
                                      const struct training_config *training,
                                      const struct full_choice *choice, struct strategy *strategy)
{
    struct plan_request plan;
    int world =
        choice->data * choice->sharding * choice->pipeline * choice->sequence * choice->model;

    full_strategy(request->strategy, choice, strategy);
    plan = plan_request_of(training, strategy, request->policy, request->options, world);
    plan.has_buddies = request->has_buddies;
    return plan;
}

int full_plan(const struct full_request *request, const struct training_config *training,
              const struct full_choice *choice, const struct plan *like, struct plan *out,
              struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy strategy;
    struct plan_request plan = full_plan_request(request, training, choice, &strategy);

    plan.only_explain = true;
    plan.is_draft = true;
    plan.like = like;
    return plan_build(&plan, out, errors);
}

/* ---- a base ---------------------------------------------------------------------------------- */

static bool is_idle_recompute(const struct plan *plan)
{
    return select_has_note(&plan->selection.without_effect, "recompute");
}

static void count_elements(struct full_base *base)
{
    const struct program *program = &base->plan.program;

    base->elements_before = calloc((size_t)base->profile.layers + 1, sizeof(double));
    fleet_assert(base->elements_before);
    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i];
        double elements = (double)program_var_elements(var);

        if (var->role != PROGRAM_ROLE_PARAMETER)
            continue;
        base->largest = elements > base->largest ? elements : base->largest;
        if (var->layer < 0)
            continue;
        base->elements_before[var->layer + 1] += elements;
        base->matrices += var->ndim >= 2 ? elements : 0;
        base->tensors++;
    }
    for (int64_t i = 0; i < base->profile.layers; i++)
        base->elements_before[i + 1] += base->elements_before[i];
}

/* The program of two replicas, if there can be two: one that communicates. */
int full_bases_add(struct full_bases *bases, const struct full_choice *choice,
                   struct fleet_errors *errors)
{
    const struct full_request *request = bases->request;
    int64_t micro_batches = request->training->global_batch_size / choice->micro_batch;
    struct full_choice cell = {.data = request->devices > 1 && micro_batches > 1 ? 2 : 1,
                               .sharding = 1,
                               .pipeline = 1,
                               .sequence = choice->sequence,
                               .model = choice->model,
                               .micro_batch = choice->micro_batch,
                               .recompute = choice->recompute};
    struct full_base base = {.cell = cell, .training = *request->training};

    base.training.micro_batch_size = choice->micro_batch;
    if (full_plan(request, &base.training, &cell, NULL, &base.plan, errors) < 0)
        return -EINVAL;
    if (!base.plan.has_program || (choice->recompute && is_idle_recompute(&base.plan))) {
        if (!base.plan.has_program)
            fleet_errors_add(errors, "spec.training.model.vocabulary",
                             "not known: without it there is nothing to search");
        plan_release(&base.plan);
        return choice->recompute ? -ENOENT : -EINVAL;
    }
    step_profile_build(&base.plan.program, request->links, &base.profile);
    step_cell_seconds(&base.plan, request->links, base.cell_seconds);
    count_elements(&base);
    bases->items = fleet_grow(bases->items, (size_t)bases->count, sizeof(*bases->items));
    bases->items[bases->count++] = base;
    return 0;
}

static bool is_of(const struct full_base *base, const struct full_choice *choice)
{
    return base->cell.micro_batch == choice->micro_batch &&
           base->cell.recompute == choice->recompute && base->cell.model == choice->model &&
           base->cell.sequence == choice->sequence;
}

int full_bases_find(struct full_bases *bases, const struct full_choice *choice)
{
    struct fleet_errors ignored = {0};
    int rc;

    for (int i = bases->count - 1; i >= 0; i--)
        if (is_of(&bases->items[i], choice))
            return bases->items[i].is_refused ? -1 : i;
    rc = full_bases_add(bases, choice, &ignored);
    fleet_errors_release(&ignored);
    if (rc == 0)
        return bases->count - 1;
    bases->items = fleet_grow(bases->items, (size_t)bases->count, sizeof(*bases->items));
    bases->items[bases->count++] = (struct full_base){.cell = *choice, .is_refused = true};
    return -1;
}

void full_bases_release(struct full_bases *bases)
{
    for (int i = 0; i < bases->count; i++) {
        if (bases->items[i].is_refused)
            continue;
        free(bases->items[i].elements_before);
        step_profile_release(&bases->items[i].profile);
        plan_release(&bases->items[i].plan);
    }
    free(bases->items);
    *bases = (struct full_bases){0};
}
