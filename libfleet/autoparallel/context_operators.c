/* SPDX-License-Identifier: Apache-2.0 */

/*
 * spec.training.operatorStrategies in semi_auto_parallel and auto_parallel: the grid that divides
 * all operators as they say. If several do, semi_auto_parallel and sharding_propagation take the
 * one with most replicas, and the other searches that of least score.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_internal.h"
#include "libfleet/autoparallel/given_operators.h"
#include "libfleet/autoparallel/search/grid_search.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/training/training.h"

#define KEY "operatorStrategies"

/* Are all degrees that the strategy gives those of the grid? */
static bool fits(const struct strategy *s, const struct operator_grid *grid)
{
    const struct strategy_hybrid_config *h = &s->hybrid_configs;
    bool divides_rows = s->tensor_parallel_configs.sequence_parallel;

    return (!h->has_mp_degree || h->mp_degree == grid->model) &&
           (!h->has_sep_degree || h->sep_degree == grid->sequence) &&
           (!s->tensor_parallel_configs.has_sequence_parallel ||
            divides_rows == grid->divides_rows);
}

static void use_divisions(const struct context_apply *a)
{
    if (a->options->has_operator_divisions && !a->options->operator_divisions) {
        context_report(a->errors, a->path, KEY,
                       "divide operators in different ways, but "
                       "spec.strategyOptions.operatorDivisions is false; leave it out");
        return;
    }
    a->options->operator_divisions = true;
    a->options->has_operator_divisions = true;
}

/* Set what the grid has beside what all strategies have. */
static void use(const struct context_apply *a, const struct operator_grid *grid)
{
    struct strategy *s = a->strategy;
    struct strategy_hybrid_config *h = &s->hybrid_configs;
    struct strategy_tensor_parallel_config *t = &s->tensor_parallel_configs;

    if (grid->model > 1 || h->has_mp_degree) {
        context_ask_int(a, KEY, "hybrid_configs.mp_degree", &h->mp_degree, &h->has_mp_degree,
                        grid->model);
        s->has_hybrid_configs = KNOB_BY_NAME;
    }
    if (grid->sequence > 1 || h->has_sep_degree) {
        context_ask_int(a, KEY, "hybrid_configs.sep_degree", &h->sep_degree, &h->has_sep_degree,
                        grid->sequence);
        s->has_hybrid_configs = KNOB_BY_NAME;
    }
    if (grid->by_operator)
        use_divisions(a);
    if (grid->divides_rows || t->has_sequence_parallel) {
        context_ask_bool(a, KEY, "tensor_parallel_configs.sequence_parallel", &t->sequence_parallel,
                         &t->has_sequence_parallel, grid->divides_rows);
        s->has_tensor_parallel_configs = KNOB_BY_NAME;
    }
}

/* The score of a grid that the searches know, else INFINITY. */
static double score_of(const struct context_apply *a, const struct operator_grid *grid, int stages)
{
    struct grid_request request = {.training = a->job->training,
                                   .devices = grid->data * grid->model,
                                   .stages = stages,
                                   .by_operator = grid->by_operator,
                                   .kind = GRID_SEARCH_DYNAMIC};
    double score = INFINITY;
    struct fleet_error err;

    if (grid->sequence == 1 && !grid->divides_rows)
        (void)grid_score(&request, &(struct grid){grid->data, grid->model}, &score, &err);
    return score;
}

static bool scores(const cJSON *context)
{
    return context_mode(context) == CONTEXT_AUTO_PARALLEL &&
           strcmp(context_search(context), "sharding_propagation") != 0;
}

static const struct operator_grid *
choose(const struct context_apply *a, const struct operator_grid *grids, size_t count, int stages)
{
    const struct operator_grid *best = NULL;
    double least = INFINITY;

    for (size_t i = 0; i < count; i++) {
        double score;

        if (!fits(a->strategy, &grids[i]))
            continue;
        score = scores(a->context) && count > 1 ? score_of(a, &grids[i], stages) : INFINITY;
        if (!best || score < least) {
            best = &grids[i];
            least = score;
        }
    }
    return best ? best : &grids[0]; /* which contradicts the strategy: use() says so */
}

static bool can_read(const struct context_apply *a)
{
    if (a->job->is_elastic)
        context_report(a->errors, a->path, KEY,
                       "are for a fixed number of workers: leave out spec.worker.minReplicas and "
                       "maxReplicas");
    else if (a->job->training && training_lacks_vocabulary(a->job->training))
        context_report(a->errors, a->path, KEY,
                       "need the sizes of all tensors: give spec.training.model.vocabulary");
    else
        return true;
    return false;
}

void context_operators_apply(const struct context_apply *a)
{
    const struct strategy_hybrid_config *h = &a->strategy->hybrid_configs;
    struct context_apply own = *a;
    int64_t stages = h->pp_degree > 1 ? h->pp_degree : 1, world = a->job->world;
    struct operator_grid *grids;
    struct model_operators operators;
    struct fleet_error err;
    size_t count;

    own.path = "spec.training";
    if (!can_read(&own) || world < 1 || world > TOPOLOGY_WORLD_MAX || world % stages != 0)
        return;
    if (model_operators_init(a->job->training, &operators, &err) < 0)
        return; /* the plan says why */
    count = given_operators_grids(&a->job->training->operators, &operators, (int)(world / stages),
                                  "spec.training." KEY, &grids, a->errors);
    if (count > 0) {
        use(&own, choose(a, grids, count, (int)stages));
        free(grids);
    }
    model_operators_release(&operators);
}
