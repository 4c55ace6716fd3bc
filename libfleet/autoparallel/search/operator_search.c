/* SPDX-License-Identifier: Apache-2.0 */

/*
 *  model degree ─▶ operators of a layer ─▶ … outside of layers ─▶ the job ─▶ the fastest that fits
 *                  each combination: a model of one layer
 */
#include "libfleet/autoparallel/search/operator_search.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/given_operators.h"
#include "libfleet/autoparallel/given_possible.h"
#include "libfleet/autoparallel/given_tuples.h"
#include "libfleet/autoparallel/search/full_base.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/program/models/model.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

#define GIVEN       "spec.training.operatorStrategies"
#define SMALLER     (1 - 1e-9) /* a time that is not the same up to rounding */
#define NAME_BYTES  (PROGRAM_NAME_MAX + 2)
#define OUTSIDE     (-1) /* of layers */
#define ENTRIES_MAX 64   /* beside those that are given */

/* A list of entries under construction. */
struct entries {
    struct training_operator items[ENTRIES_MAX];
    size_t count;
};

/* One model degree. */
struct search {
    const struct full_request *request;
    struct full_choice choice;
    struct strategy_options options;  /* the job's, with operatorDivisions */
    struct training_config training;  /* the job's with one layer; operators are those on trial */
    struct model_operators operators; /* of it */
    struct operator_grid grid;
    struct training_operator *list; /* given entries, then those on trial */
    size_t given, count;
    int layer;           /* whose operators are on trial, or OUTSIDE */
    double least;        /* seconds of the best so far */
    struct entries best; /* owned copies */
    int *combinations;
};

/* ---- time ------------------------------------------------------------------------------------ */

/* Plan and time of a job with these settings. False: it is not possible. */
static bool predict(const struct full_request *request, const struct training_config *training,
                    const struct full_choice *choice, struct full_rival *out)
{
    struct fleet_errors ignored = {0};
    struct step_profile profile;
    struct plan plan;
    int rc = full_plan(request, training, choice, NULL, &plan, &ignored);

    fleet_errors_release(&ignored);
    if (rc < 0)
        return false;
    if (plan.has_program) {
        step_profile_build(&plan.program, request->links, &profile);
        *out = (struct full_rival){.choice = *choice,
                                   .bytes = (double)plan_bytes_total(&plan),
                                   .sent_bytes = plan.sent_bytes,
                                   .cannot_run = plan.cannot_run.count > 0};
        step_time_of(&plan, &profile, request->links, &out->time);
        step_profile_release(&profile);
    }
    rc = plan.has_program ? 0 : -EINVAL;
    plan_release(&plan);
    return rc == 0;
}

/* Do all entries of `training` hold? */
static bool holds(const struct model_operators *operators, const struct training_config *training,
                  const struct operator_grid *grid)
{
    struct model_operators trial = *operators;
    struct fleet_errors ignored = {0};
    int rc;

    trial.training = training;
    rc = given_operators_check(&training->operators, &trial, grid, GIVEN, &ignored);
    fleet_errors_release(&ignored);
    return rc == 0;
}

/* ---- one combination after the other --------------------------------------------------------- */

static struct training_operator copy_of(const struct training_operator *entry)
{
    struct training_operator copy = {.operator_name = strdup(entry->operator_name),
                                     .in = cJSON_Duplicate(entry->in, true)};

    fleet_assert(copy.operator_name != NULL && copy.in != NULL);
    return copy;
}

static void entries_clear(struct entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) {
        free(entries->items[i].operator_name);
        cJSON_Delete(entries->items[i].in);
    }
    entries->count = 0;
}

static void take(struct search *s)
{
    struct full_rival rival;

    ++*s->combinations;
    if (!holds(&s->operators, &s->training, &s->grid) ||
        !predict(s->request, &s->training, &s->choice, &rival) || rival.cannot_run ||
        rival.time.total >= s->least * SMALLER)
        return;
    s->least = rival.time.total;
    entries_clear(&s->best);
    for (size_t i = s->given; i < s->count; i++)
        s->best.items[s->best.count++] = copy_of(&s->list[i]);
}

static void set_list(struct search *s)
{
    s->training.operators = (struct training_operator_list){s->list, s->count};
}

static bool is_given(const struct search *s, const char *name)
{
    for (size_t i = 0; i < s->given; i++)
        if (fnmatch(s->list[i].operator_name, name, 0) == 0)
            return true;
    return false;
}

/* The ways of operator `op` beside those on trial; fewer than two: it follows from others. Tokens
 * are not divided: activations between layers have all of them. */
static size_t list_ways(const struct search *s, int op, struct operator_strategy **out)
{
    const char *name = model_operators_name(&s->operators, op);
    struct operator_axes axes;
    size_t all, count = 0;

    *out = NULL;
    if (s->operators.program.ops[op].layer != s->layer || s->count == s->given + ENTRIES_MAX ||
        is_given(s, name))
        return 0;
    model_operators_axes(&s->operators, op, &axes);
    all = given_possible_strategies(&s->operators, op, &s->grid, out);
    for (size_t i = 0; i < all; i++) {
        struct operator_splits x;

        operator_strategy_splits(&(*out)[i], &axes.inputs[0], &x);
        if (x.dims < 3 || x.split[1] == 1)
            (*out)[count++] = (*out)[i];
    }
    return count;
}

static void visit(struct search *s, int op)
{
    FLEET_AUTO_FREE struct operator_strategy *ways = NULL;
    size_t count = 0;

    for (; op < s->operators.program.op_count; op++) {
        count = list_ways(s, op, &ways);
        if (count > 1)
            break;
        free(ways);
        ways = NULL;
    }
    if (op == s->operators.program.op_count) {
        take(s);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        struct training_operator *entry = &s->list[s->count];
        struct operator_axes axes;

        model_operators_axes(&s->operators, op, &axes);
        *entry = (struct training_operator){.operator_name =
                                                (char *)model_operators_name(&s->operators, op),
                                            .in = given_tuples_make(&axes, &ways[i])};
        s->count++;
        set_list(s);
        visit(s, op + 1);
        s->count--;
        set_list(s);
        cJSON_Delete(entry->in);
    }
}

/* ---- all layers ------------------------------------------------------------------------------ */

/* "h.0.mlp.c_fc" of layer 0 becomes "h.*.mlp.c_fc". */
static void widen(struct training_operator *entry)
{
    char name[NAME_BYTES];
    const char *at = strstr(entry->operator_name, ".0.");

    fleet_assert(at != NULL);
    (void)snprintf(name, sizeof(name), "%.*s.*.%s", (int)(at - entry->operator_name),
                   entry->operator_name, at + strlen(".0."));
    fleet_set_text(&entry->operator_name, name);
}

/* The best ways of the operators of a layer, or of those outside. */
static void search_part(struct search *s, int layer, double whole, struct entries *out)
{
    s->layer = layer;
    s->least = whole;
    visit(s, 0);
    *out = s->best;
    s->best.count = 0;
    for (size_t i = 0; i < out->count && layer != OUTSIDE; i++)
        widen(&out->items[i]);
}

static cJSON *encode(const struct entries *entries)
{
    cJSON *list = fleet_json_new_list();

    for (size_t i = 0; i < entries->count; i++) {
        cJSON *entry = fleet_json_new_object();

        fleet_json_set_string(entry, "operator", entries->items[i].operator_name);
        fleet_json_set(entry, "in", cJSON_Duplicate(entries->items[i].in, true));
        fleet_json_add(list, entry);
    }
    return list;
}

/* The whole job with these entries behind the given ones; true if it is faster than `least`. */
static bool try_job(struct search *s, const struct entries *found, double least,
                    struct operator_division *out)
{
    struct training_config training = *s->request->training; /* shallow */
    struct full_rival rival;

    if (found->count == 0)
        return false;
    for (size_t i = 0; i < found->count; i++)
        s->list[s->given + i] = found->items[i];
    training.operators = (struct training_operator_list){s->list, s->given + found->count};
    if (!predict(s->request, &training, &s->choice, &rival) || rival.cannot_run ||
        rival.bytes > s->request->memory || rival.time.total >= least * SMALLER)
        return false;
    *out = (struct operator_division){.rival = rival, .entries = encode(found)};
    return true;
}

static struct full_choice one_stage(const struct full_choice *choice)
{
    struct full_choice one = *choice;

    one.pipeline = 1;
    one.all_forward = false;
    return one;
}

/* Both parts, then the job; `least`: what it must beat. */
static bool search_ways(struct search *s, double least, struct operator_division *out)
{
    struct full_choice job = s->choice;
    struct entries layers, outside;
    struct full_rival whole;
    bool is_found;

    s->choice = one_stage(&job);
    s->count = s->given;
    set_list(s);
    if (!predict(s->request, &s->training, &s->choice, &whole) ||
        !holds(&s->operators, &s->training, &s->grid))
        whole.time.total = INFINITY;
    search_part(s, 0, whole.time.total, &layers);
    search_part(s, OUTSIDE, whole.time.total, &outside);
    for (size_t i = 0; i < outside.count; i++)
        layers.items[layers.count++] = outside.items[i];
    s->choice = job;
    is_found = try_job(s, &layers, least, out);
    entries_clear(&layers);
    return is_found;
}

/* ---- model degrees --------------------------------------------------------------------------- */

/* `given` ranks divide by operator. */
static bool search_degree(const struct full_request *request, const struct full_choice *choice,
                          double least, int *combinations, struct operator_division *out)
{
    const struct training_operator_list *given = &request->training->operators;
    struct full_request own = *request;
    struct search s = {.request = &own,
                       .choice = *choice,
                       .training = *request->training, /* shallow */
                       .grid = {.data = choice->data * choice->sharding,
                                .sequence = 1,
                                .model = choice->model,
                                .by_operator = true},
                       .given = given->count,
                       .combinations = combinations};
    struct fleet_error err;
    bool is_found;

    if (request->options)
        s.options = *request->options;
    else
        strategy_options_init(&s.options);
    s.options.operator_divisions = true;
    own.options = &s.options;
    s.training.model.layers = 1;
    if (model_operators_init(&s.training, &s.operators, &err) < 0)
        return false;
    s.list = calloc(given->count + 2 * ENTRIES_MAX, sizeof(*s.list));
    fleet_assert(s.list != NULL);
    if (given->count > 0)
        memcpy(s.list, given->items, given->count * sizeof(*s.list));
    is_found = search_ways(&s, least, out);
    model_operators_release(&s.operators);
    free(s.list);
    return is_found;
}

static bool suits_one_way(const struct full_request *request, const struct full_choice *choice)
{
    const struct operator_grid grid = {choice->data * choice->sharding, 1, choice->model, false,
                                       false};
    struct model_operators operators;
    struct fleet_error err;
    bool is_suitable;

    if (request->training->operators.count == 0)
        return true;
    if (model_operators_init(request->training, &operators, &err) < 0)
        return false;
    is_suitable = holds(&operators, request->training, &grid);
    model_operators_release(&operators);
    return is_suitable;
}

static void look_at(const struct full_request *request, const struct full_choice *choice,
                    struct operator_search_result *out)
{
    struct operator_division found;
    struct full_rival rival;
    double least = out->best.rival.time.total;

    if (suits_one_way(request, choice) && predict(request, request->training, choice, &rival) &&
        !rival.cannot_run && rival.bytes <= request->memory) {
        if (!out->has_one_way || rival.time.total < out->one_way.time.total * SMALLER)
            out->one_way = rival;
        out->has_one_way = true;
        if (rival.time.total < least * SMALLER) {
            cJSON_Delete(out->best.entries);
            out->best = (struct operator_division){.rival = rival};
            least = rival.time.total;
        }
    }
    if (choice->model > 1 && search_degree(request, choice, least, &out->combinations, &found)) {
        cJSON_Delete(out->best.entries);
        out->best = found;
    }
}

/* Do the given entries match the same operators in all layers? */
static bool are_alike(const struct full_request *request, struct fleet_errors *errors)
{
    const struct training_operator_list *given = &request->training->operators;

    for (size_t i = 0; i < given->count; i++) {
        const char *name = given->items[i].operator_name;

        if (name[strcspn(name, "0123456789")] == '\0')
            continue;
        fleet_errors_add(errors, GIVEN,
                         "\"%s\" names operators of single layers: this search needs entries that "
                         "are for all layers, or none",
                         name);
        return false;
    }
    return true;
}

static int refuse(const struct full_request *request, struct fleet_errors *errors)
{
    fleet_errors_add(errors, "",
                     "no division of %d devices by samples and tensors is possible and fits into "
                     "%.0f bytes of each",
                     request->devices, request->memory);
    return -EINVAL;
}

int operator_search(const struct full_request *request, const struct full_choice *grid,
                    struct operator_search_result *out, struct fleet_errors *errors)
{
    int unit = grid->sharding * grid->pipeline, ranks = request->devices / unit;
    int64_t micro_batches = training_micro_batches(request->training);
    struct operator_search_result result = {.best.rival.time.total = INFINITY};
    struct fleet_error err;

    fleet_assert(grid->sequence <= 1);
    if (training_lacks_vocabulary(request->training)) {
        fleet_errors_add(errors, "spec.training.model.vocabulary",
                         "not known: without it there is nothing to search");
        return -EINVAL;
    }
    if (!are_alike(request, errors))
        return -EINVAL;
    for (int model = 1; model <= ranks && request->devices % unit == 0; model++) {
        struct full_choice choice = *grid;

        choice.model = model;
        choice.data = ranks / model;
        if (ranks % model != 0 || (grid->model > 0 && grid->model != model) ||
            micro_batches / (choice.data * grid->sharding) < grid->pipeline ||
            (model > 1 && model_check_ranks(request->training, model, &err) < 0))
            continue;
        look_at(request, &choice, &result);
    }
    if (!isfinite(result.best.rival.time.total))
        return refuse(request, errors);
    *out = result;
    return 0;
}

void operator_search_release(struct operator_search_result *result)
{
    cJSON_Delete(result->best.entries);
    *result = (struct operator_search_result){.combinations = 0};
}
