/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A rough bound for each combination; in the order of the bounds the base of its cell, which gives
 * a better bound; in the order of these its plan, which borrows a program where one is the same.
 */
#include "libfleet/autoparallel/search/full_search.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/search/full_base.h"
#include "libfleet/autoparallel/search/full_space.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/memory.h"
#include "libfleet/training/training.h"

struct candidate {
    struct full_choice choice;
    double bound; /* seconds; no plan of it is faster */
    double bytes; /* or needs less */
    int base;     /* that of its cell, as soon as it is known to be worth one; NOT_MADE */
    int number;
};

#define NOT_MADE (-1)

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
    struct full_bases bases;
    struct candidate *heap;  /* the one of least bound is first; then the first that was listed */
    struct candidate *large; /* that do not fit by their bound */
    int count, large_count, whole;
    struct full_result *result;
};

/* ---- candidates ------------------------------------------------------------------------------ */

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    return a->bound != b->bound ? a->bound < b->bound : a->number < b->number;
}

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate kept = *a;

    *a = *b;
    *b = kept;
}

static void push(struct search *s, const struct candidate *candidate)
{
    int at = s->count;

    s->heap = fleet_grow(s->heap, (size_t)s->count, sizeof(*s->heap));
    s->heap[s->count++] = *candidate;
    for (; at > 0 && is_before(&s->heap[at], &s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        swap(&s->heap[at], &s->heap[(at - 1) / 2]);
}

static struct candidate pop(struct search *s)
{
    struct candidate first = s->heap[0];
    int at = 0;

    s->heap[0] = s->heap[--s->count];
    for (;;) {
        int left = 2 * at + 1, least = at;

        for (int child = left; child <= left + 1 && child < s->count; child++)
            if (is_before(&s->heap[child], &s->heap[least]))
                least = child;
        if (least == at)
            return first;
        swap(&s->heap[at], &s->heap[least]);
        at = least;
    }
}

/* It is worth a look, if it may fit. */
static void consider(struct search *s, const struct full_base *base, struct candidate *candidate)
{
    bool offloads = s->request->strategy && s->request->strategy->sharding_configs.optimize_offload;
    double bound = full_bound_seconds(s->request, base, &candidate->choice);

    candidate->bound = fmax(candidate->bound, bound);
    candidate->bytes = offloads ? 0 : full_bound_bytes(base, &candidate->choice);
    if (candidate->bytes <= s->request->memory) {
        push(s, candidate);
        return;
    }
    s->large = fleet_grow(s->large, (size_t)s->large_count, sizeof(*s->large));
    s->large[s->large_count++] = *candidate;
}

static void add_candidate(void *context, const struct full_choice *choice)
{
    struct search *s = context;
    struct candidate candidate = {
        .choice = *choice, .base = NOT_MADE, .number = (int)s->result->combinations++};

    consider(s, &s->bases.items[s->whole], &candidate);
}

/* The base of its own cell says more. */
static void refine(struct search *s, struct candidate *candidate)
{
    candidate->base = full_bases_find(&s->bases, &candidate->choice);
    if (candidate->base >= 0)
        consider(s, &s->bases.items[candidate->base], candidate);
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
    const struct full_base *base = &s->bases.items[candidate->base];
    struct kept *kept = find_kept(s, candidate);
    struct plan plan;

    if (full_plan(s->request, &base->training, &candidate->choice, kept ? &kept->plan : &base->plan,
                  &plan, errors) < 0)
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
    struct training_config training = *s->request->training; /* shallow */
    struct fleet_errors obstacles = {0};
    struct plan_request plan;
    bool runs;

    training.micro_batch_size = candidate->choice.micro_batch;
    plan = full_plan_request(s->request, &training, &candidate->choice, &strategy);
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

static int compare_bytes(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Nothing fits. What would be needed at least, as the bases of all cells that matter say it. */
static void find_least(struct search *s)
{
    double *least = &s->result->least_bytes;

    if (s->large_count > 0)
        qsort(s->large, (size_t)s->large_count, sizeof(*s->large), compare_bytes);
    for (int i = 0; i < s->large_count && s->large[i].bytes < *least; i++) {
        const struct full_choice *choice = &s->large[i].choice;
        int base = full_bases_find(&s->bases, choice);

        if (base >= 0)
            *least = fmin(*least, full_bound_bytes(&s->bases.items[base], choice));
    }
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
    while (s->count > 0) {
        struct candidate next = pop(s);
        struct fleet_errors found = {0};

        if (is_hopeless(s->result, next.bound) && !may_be_runnable(s, &next))
            continue;
        if (next.base == NOT_MADE)
            refine(s, &next);
        else if (look_at(s, &next, &found) < 0 && first.count == 0)
            fleet_errors_append(&first, &found);
        fleet_errors_release(&found);
    }
    if (s->result->count == 0)
        find_least(s);
    if (s->result->looked_at == 0 && s->large_count == 0)
        fleet_errors_append(errors, &first);
    fleet_errors_release(&first);
    return errors->count > 0 ? -EINVAL : 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* A draft does not cut the program, so a plan of two stages says whether that is possible: models
 * with running statistics and settings that keep values on each rank refuse it. */
static bool can_cut(const struct search *s, int64_t micro_batch)
{
    struct full_choice two = {.data = 1,
                              .sharding = 1,
                              .pipeline = 2,
                              .sequence = 1,
                              .model = 1,
                              .micro_batch = micro_batch};
    struct training_config training = *s->request->training; /* shallow */
    STRATEGY_AUTO struct strategy strategy;
    struct fleet_errors ignored = {0};
    struct plan_request request;
    struct plan plan;
    int rc;

    training.micro_batch_size = micro_batch;
    request = full_plan_request(s->request, &training, &two, &strategy);
    request.only_explain = true;
    rc = plan_build(&request, &plan, &ignored);
    fleet_errors_release(&ignored);
    if (rc == 0)
        plan_release(&plan);
    return rc == 0;
}

static int add_all(struct search *s, struct fleet_errors *errors)
{
    struct full_choice whole = {.sequence = 1, .model = 1};
    bool is_given = s->request->strategy && s->request->strategy->has_recompute;
    int64_t *sizes;
    int count = full_space_micro_batches(s->request->training, &sizes), rc = 0;
    bool cuts = s->request->devices > 1 && s->request->training->global_batch_size > sizes[0] &&
                can_cut(s, sizes[0]);

    for (int i = 0; i < count && rc == 0; i++)
        for (int recompute = 0; recompute <= 1 && rc == 0; recompute++) {
            if (is_given && (bool)recompute != s->request->strategy->recompute)
                continue;
            whole.micro_batch = sizes[i];
            whole.recompute = recompute;
            rc = full_bases_add(&s->bases, &whole, errors);
            s->whole = s->bases.count - 1;
            if (rc == 0)
                full_space_each(s->request, cuts ? s->bases.items[s->whole].profile.layers : 1,
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
    full_bases_release(&s->bases);
    free(s->heap);
    free(s->large);
}

int full_search(const struct full_request *request, struct full_result *out,
                struct fleet_errors *errors)
{
    struct full_result result = {.least_bytes = INFINITY};
    struct search s = {.request = request, .bases = {.request = request}, .result = &result};
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
