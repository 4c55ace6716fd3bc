/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One plan for each micro-batch, recompute and tensor degree, whose program other divisions borrow;
 * a bound for each combination; then plans in the order of the bounds.
 */
#include "libfleet/autoparallel/search/full_search.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/search/full_space.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/memory.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/training/training.h"

/* What the divisions of one micro-batch and tensor degree, with or without recompute, share. */
struct base {
    struct training_config training; /* shallow: only the micro-batch is another */
    int model; /* ranks that share tensors; the program is that of one of them */
    bool recompute;
    bool is_refused; /* the job's settings do not allow the degree; nothing else is set */
    struct plan plan;
    struct step_profile profile;
    double model_seconds;    /* step_model_seconds() */
    double *elements_before; /* [layers + 1] elements of parameters of the layers before */
};

struct candidate {
    struct full_choice choice;
    double bound; /* seconds; no plan of it is faster */
    int base, number;
};

/* A plan whose program a pass divided. Plans of the same base and sharding stage borrow it. */
struct kept {
    int64_t used; /* when: a count of uses; 0: no plan */
    int base, stage;
    struct plan plan;
    struct step_profile profile;
};

#define KEPT_MAX 12 /* of a few megabytes each */

struct search {
    const struct full_request *request;
    struct kept kept[KEPT_MAX];
    int64_t uses;
    struct base *bases;
    struct candidate *candidates;
    int base_count, candidate_count, capacity;
    struct full_result *result;
};

/* ---- plans ----------------------------------------------------------------------------------- */

/* The request for the plan of a combination; `strategy` is filled, and the caller's to release. */
static struct plan_request plan_request_for(const struct full_request *request,
                                            const struct training_config *training,
                                            const struct full_choice *choice,
                                            struct strategy *strategy)
{
    int world = choice->data * choice->sharding * choice->pipeline * choice->model;

    full_strategy(request->strategy, choice, strategy);
    return plan_request_of(training, strategy, request->policy, request->options, world);
}

static int build_plan(const struct full_request *request, const struct training_config *training,
                      const struct full_choice *choice, const struct plan *like, struct plan *out,
                      struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy strategy;
    struct plan_request plan = plan_request_for(request, training, choice, &strategy);

    plan.only_explain = true;
    plan.is_draft = true;
    plan.like = like;
    return plan_build(&plan, out, errors);
}

static bool is_idle_recompute(const struct plan *plan)
{
    return select_has_note(&plan->selection.without_effect, "recompute");
}

static void count_elements(struct base *base)
{
    const struct program *program = &base->plan.program;

    base->elements_before = calloc((size_t)base->profile.layers + 1, sizeof(double));
    fleet_assert(base->elements_before);
    for (int i = 0; i < program->var_count; i++)
        if (program->vars[i].role == PROGRAM_ROLE_PARAMETER && program->vars[i].layer >= 0)
            base->elements_before[program->vars[i].layer + 1] +=
                (double)program_var_elements(&program->vars[i]);
    for (int64_t i = 0; i < base->profile.layers; i++)
        base->elements_before[i + 1] += base->elements_before[i];
}

/* The program of two replicas, if there can be two: one that communicates. Returns 0, -ENOENT:
 * recompute repeats nothing here, or -EINVAL. */
static int add_base(struct search *s, int64_t micro_batch, bool recompute, int model,
                    struct fleet_errors *errors)
{
    bool is_divided =
        s->request->devices > 1 && s->request->training->global_batch_size / micro_batch > 1;
    struct full_choice whole = {.data = is_divided ? 2 : 1,
                                .sharding = 1,
                                .pipeline = 1,
                                .model = model,
                                .micro_batch = micro_batch,
                                .recompute = recompute};
    struct base base = {.training = *s->request->training, .model = model, .recompute = recompute};

    base.training.micro_batch_size = micro_batch;
    if (build_plan(s->request, &base.training, &whole, NULL, &base.plan, errors) < 0)
        return -EINVAL;
    if (!base.plan.has_program || (recompute && is_idle_recompute(&base.plan))) {
        if (!base.plan.has_program)
            fleet_errors_add(errors, "spec.training.model.vocabulary",
                             "not known: without it there is nothing to search");
        plan_release(&base.plan);
        return recompute ? -ENOENT : -EINVAL;
    }
    step_profile_build(&base.plan.program, s->request->links, &base.profile);
    base.model_seconds = step_model_seconds(&base.plan, s->request->links);
    count_elements(&base);
    s->bases = fleet_grow(s->bases, (size_t)s->base_count, sizeof(*s->bases));
    s->bases[s->base_count++] = base;
    return 0;
}

/* ---- bounds ---------------------------------------------------------------------------------- */

/* Micro-batches of the busiest replica. */
static double runs_of(const struct base *base, const struct full_choice *choice)
{
    int64_t replicas = (int64_t)choice->data * choice->sharding;

    return (double)((base->plan.micro_batches + replicas - 1) / replicas);
}

/* Computing and bubble of the slowest stage; the mean of all stages, with what the ranks of a
 * tensor-parallel group send; and computing alone if ranks take turns. Sums in another order round
 * otherwise: a little less is safe. */
static double bound_seconds(const struct search *s, const struct base *base,
                            const struct full_choice *choice)
{
    double slot = step_slot_seconds(&base->profile, choice->pipeline, 1);
    double mean = (base->profile.total + base->model_seconds) / choice->pipeline;
    double slots = (runs_of(base, choice) + choice->pipeline - 1) * base->plan.program.merge_steps;
    double turns = links_share(s->request->links, s->request->devices) * base->profile.total /
                   choice->pipeline * runs_of(base, choice) * base->plan.program.merge_steps;

    return fmax(fmax(slot, mean) * slots, turns) * (1 - 1e-9);
}

/* Weights, one sum of gradients and optimizer states of so many elements. */
static double state_bytes(const struct base *base, const struct full_choice *choice,
                          double elements)
{
    double weight = choice->stage > 0 && base->plan.is_16_bit ? 2 : 4;
    double states = 4.0 * base->plan.program.state_count + (weight == 2 ? 4 : 0);
    double shards = choice->sharding;

    return elements * (weight / (choice->stage >= 3 ? shards : 1) +
                       weight / (choice->stage >= 2 ? shards : 1) + states / shards);
}

/* A rank that holds an average stage, and one of the first stage with the activations of its
 * layers, need no more than the one that needs most. */
static double bound_bytes(const struct base *base, const struct full_choice *choice)
{
    int64_t layers = base->profile.layers, first = layers / choice->pipeline;
    double all = (double)base->plan.program.flat_count, runs = runs_of(base, choice);
    double arena = (double)base->plan.bytes[PLAN_BYTES_ACTIVATIONS];
    double live = choice->all_forward ? runs : fmin(runs, choice->pipeline);
    double average = state_bytes(base, choice, all / choice->pipeline);

    if (choice->pipeline == 1)
        return average + arena;
    return fmax(average, state_bytes(base, choice, base->elements_before[first]) +
                             arena * ((double)first / (double)layers) * live);
}

/* The base of a combination; made if it is the first with its tensor degree. -1: there is none. */
static int find_base(struct search *s, const struct full_choice *choice)
{
    struct fleet_errors ignored = {0};
    int rc;

    for (int i = s->base_count - 1; i >= 0; i--)
        if (s->bases[i].training.micro_batch_size == choice->micro_batch &&
            s->bases[i].recompute == choice->recompute && s->bases[i].model == choice->model)
            return s->bases[i].is_refused ? -1 : i;
    rc = add_base(s, choice->micro_batch, choice->recompute, choice->model, &ignored);
    fleet_errors_release(&ignored);
    if (rc == 0)
        return s->base_count - 1;
    s->bases = fleet_grow(s->bases, (size_t)s->base_count, sizeof(*s->bases));
    s->bases[s->base_count++] = (struct base){.training.micro_batch_size = choice->micro_batch,
                                              .recompute = choice->recompute,
                                              .model = choice->model,
                                              .is_refused = true};
    return -1;
}

static void add_candidate(void *context, const struct full_choice *choice)
{
    struct search *s = context;
    int index = find_base(s, choice);
    const struct base *base = &s->bases[index < 0 ? 0 : index];
    bool offloads =
        s->request->strategy && (s->request->strategy->sharding_configs.optimize_offload);
    double bytes = offloads ? 0 : bound_bytes(base, choice);

    if (index < 0)
        return;
    s->result->combinations++;
    if (bytes > s->request->memory) {
        s->result->least_bytes = fmin(s->result->least_bytes, bytes);
        return;
    }
    s->candidates = fleet_grow(s->candidates, (size_t)s->candidate_count, sizeof(*s->candidates));
    s->candidates[s->candidate_count] = (struct candidate){.choice = *choice,
                                                           .bound = bound_seconds(s, base, choice),
                                                           .base = index,
                                                           .number = s->candidate_count};
    s->candidate_count++;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->bound != y->bound)
        return x->bound < y->bound ? -1 : 1;
    return x->number - y->number;
}

/* ---- the best -------------------------------------------------------------------------------- */

static bool is_better(const struct full_rival *a, const struct full_rival *b)
{
    if (a->time.total != b->time.total)
        return a->time.total < b->time.total;
    return a->bytes < b->bytes;
}

/* Into a list by time; the last goes if it is full. */
static void insert(struct full_rival *list, int *count, int max, const struct full_rival *rival)
{
    int at = *count;

    if (at == max && !is_better(rival, &list[max - 1]))
        return;
    if (at == max)
        at--;
    for (; at > 0 && is_better(rival, &list[at - 1]); at--)
        list[at] = list[at - 1];
    list[at] = *rival;
    if (*count < max)
        ++*count;
}

static void forget(struct kept *kept)
{
    if (kept->used > 0) {
        step_profile_release(&kept->profile);
        plan_release(&kept->plan);
    }
    *kept = (struct kept){.used = 0};
}

/* That of the candidate's base and sharding stage, or NULL. */
static struct kept *find_kept(struct search *s, const struct candidate *candidate)
{
    for (int i = 0; i < KEPT_MAX; i++) {
        struct kept *kept = &s->kept[i];

        if (kept->used == 0 || kept->base != candidate->base ||
            kept->stage != candidate->choice.stage)
            continue;
        kept->used = ++s->uses;
        return kept;
    }
    return NULL;
}

/* Take *plan over, in the place of the one that was used longest ago. */
static struct kept *keep(struct search *s, const struct candidate *candidate,
                         const struct plan *plan)
{
    struct kept *oldest = &s->kept[0];

    for (int i = 1; i < KEPT_MAX; i++)
        if (s->kept[i].used < oldest->used)
            oldest = &s->kept[i];
    forget(oldest);
    *oldest = (struct kept){.used = ++s->uses,
                            .base = candidate->base,
                            .stage = candidate->choice.stage,
                            .plan = *plan};
    step_profile_build(&oldest->plan.program, s->request->links, &oldest->profile);
    return oldest;
}

/* A program that a pass has divided is timed by itself. */
static int build_rival(struct search *s, const struct candidate *candidate, struct full_rival *out,
                       struct fleet_errors *errors)
{
    const struct base *base = &s->bases[candidate->base];
    struct kept *kept = find_kept(s, candidate);
    struct plan plan;

    if (build_plan(s->request, &base->training, &candidate->choice,
                   kept ? &kept->plan : &base->plan, &plan, errors) < 0)
        return -EINVAL;
    *out = (struct full_rival){.choice = candidate->choice,
                               .bytes = (double)plan_bytes_total(&plan),
                               .sent_bytes = plan.sent_bytes,
                               .cannot_run = plan.cannot_run.count > 0};
    if (!plan.borrows_program)
        kept = keep(s, candidate, &plan);
    step_time_of(&plan, plan.borrows_memory || !kept ? &base->profile : &kept->profile,
                 s->request->links, &out->time);
    if (plan.borrows_program)
        plan_release(&plan);
    return 0;
}

static int look_at(struct search *s, const struct candidate *candidate, struct fleet_errors *errors)
{
    struct full_rival rival;

    if (build_rival(s, candidate, &rival, errors) < 0)
        return -EINVAL;
    s->result->looked_at++;
    if (rival.bytes <= s->request->memory && !rival.cannot_run &&
        (!s->result->has_runnable || is_better(&rival, &s->result->runnable))) {
        s->result->runnable = rival;
        s->result->has_runnable = true;
    }
    if (rival.bytes <= s->request->memory)
        insert(s->result->rivals, &s->result->count, FULL_RIVALS_MAX, &rival);
    else
        insert(s->result->misfits, &s->result->misfit_count, FULL_MISFITS_MAX, &rival);
    s->result->least_bytes = fmin(s->result->least_bytes, rival.bytes);
    return 0;
}

/* Can a combination with this bound be among the best? */
static bool is_hopeless(const struct full_result *result, double bound)
{
    return result->count == FULL_RIVALS_MAX &&
           bound > result->rivals[FULL_RIVALS_MAX - 1].time.total;
}

/* The built-in runtime has all passes for it. */
static bool can_run(const struct search *s, const struct candidate *candidate)
{
    STRATEGY_AUTO struct strategy strategy;
    struct plan_request plan = plan_request_for(s->request, &s->bases[candidate->base].training,
                                                &candidate->choice, &strategy);
    struct fleet_errors obstacles = {0};
    bool runs;

    plan_obstacles(&plan, &obstacles);
    runs = obstacles.count == 0;
    fleet_errors_release(&obstacles);
    return runs;
}

/* Can it be the best of those that run? */
static bool may_be_runnable(const struct search *s, const struct candidate *candidate)
{
    const struct full_result *result = s->result;

    return (!result->has_runnable || candidate->bound <= result->runnable.time.total) &&
           can_run(s, candidate);
}

/* A combination that contradicts the job's other settings is none; if all are, the first says
 * why. */
static int look_at_all(struct search *s, struct fleet_errors *errors)
{
    struct fleet_errors first = {0};

    if (s->result->combinations == 0) {
        fleet_errors_add(errors, "spec.training.globalBatchSize",
                         "is %" PRId64
                         ", which %d devices cannot divide: neither stages nor layers "
                         "of this model take the rest",
                         s->request->training->global_batch_size, s->request->devices);
        return -EINVAL;
    }
    if (s->candidate_count == 0)
        return 0;
    qsort(s->candidates, (size_t)s->candidate_count, sizeof(*s->candidates), compare_candidates);
    for (int i = 0; i < s->candidate_count; i++) {
        struct fleet_errors found = {0};

        if (is_hopeless(s->result, s->candidates[i].bound) &&
            !may_be_runnable(s, &s->candidates[i]))
            continue;
        if (look_at(s, &s->candidates[i], &found) < 0 && first.count == 0)
            fleet_errors_append(&first, &found);
        fleet_errors_release(&found);
    }
    if (s->result->looked_at == 0)
        fleet_errors_append(errors, &first);
    fleet_errors_release(&first);
    return errors->count > 0 ? -EINVAL : 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* A draft does not cut the program, so a plan of two stages says whether that is possible: models
 * with running statistics and settings that keep values on each rank refuse it. */
static bool can_cut(const struct search *s, int64_t micro_batch)
{
    struct full_choice two = {
        .data = 1, .sharding = 1, .pipeline = 2, .model = 1, .micro_batch = micro_batch};
    struct training_config training = *s->request->training; /* shallow */
    STRATEGY_AUTO struct strategy strategy;
    struct fleet_errors ignored = {0};
    struct plan_request request;
    struct plan plan;
    int rc;

    training.micro_batch_size = micro_batch;
    request = plan_request_for(s->request, &training, &two, &strategy);
    request.only_explain = true;
    rc = plan_build(&request, &plan, &ignored);
    fleet_errors_release(&ignored);
    if (rc == 0)
        plan_release(&plan);
    return rc == 0;
}

static int add_all(struct search *s, struct fleet_errors *errors)
{
    bool is_given = s->request->strategy && s->request->strategy->has_recompute;
    int64_t *sizes;
    int count = full_space_micro_batches(s->request->training, &sizes), rc = 0;
    bool cuts = s->request->devices > 1 && s->request->training->global_batch_size > sizes[0] &&
                can_cut(s, sizes[0]);

    for (int i = 0; i < count && rc == 0; i++)
        for (int recompute = 0; recompute <= 1 && rc == 0; recompute++) {
            if (is_given && (bool)recompute != s->request->strategy->recompute)
                continue;
            rc = add_base(s, sizes[i], recompute, 1, errors);
            if (rc == 0)
                full_space_each(s->request, cuts ? s->bases[s->base_count - 1].profile.layers : 1,
                                sizes[i], recompute, add_candidate, s);
            else if (rc == -ENOENT)
                rc = 0;
        }
    free(sizes);
    return rc;
}

static void release(struct search *s)
{
    for (int i = 0; i < KEPT_MAX; i++)
        forget(&s->kept[i]);
    for (int i = 0; i < s->base_count; i++) {
        if (s->bases[i].is_refused)
            continue;
        free(s->bases[i].elements_before);
        step_profile_release(&s->bases[i].profile);
        plan_release(&s->bases[i].plan);
    }
    free(s->bases);
    free(s->candidates);
}

int full_search(const struct full_request *request, struct full_result *out,
                struct fleet_errors *errors)
{
    struct full_result result = {.least_bytes = INFINITY};
    struct search s = {.request = request, .result = &result};
    int rc;

    fleet_assert(request->devices >= 1 && request->devices <= FULL_DEVICES_MAX);
    rc = add_all(&s, errors);
    if (rc == 0)
        rc = look_at_all(&s, errors);
    release(&s);
    if (rc == 0)
        *out = result;
    return rc;
}
