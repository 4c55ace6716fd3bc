/* SPDX-License-Identifier: Apache-2.0 */

/* The program of a rank has the slices of a grid already, so a grid's cost is read off it. */
#include "libfleet/autoparallel/search/grid_search.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "libfleet/autoparallel/operator_strategy.h"
#include "libfleet/autoparallel/search/cost_graph.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/program/models/model.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

/* ---- the score ------------------------------------------------------------------------------- */

static int check(const struct grid_request *request, const struct grid *grid,
                 struct fleet_error *err)
{
    int64_t micro_batches = training_micro_batches(request->training);

    if (request->model > 0 && grid->model > request->model)
        return fleet_error(err, -EINVAL, "the strategy gives the model degree %d", request->model);
    if (micro_batches / grid->data < request->stages)
        return fleet_error(err, -EINVAL,
                           "%d replicas of %d stages need more micro-batches than %" PRId64,
                           grid->data, request->stages, micro_batches);
    return grid->model > 1 ? model_check_ranks(request->training, grid->model, err) : 0;
}

/* Bytes of computation and communication of the slices of one device. */
struct bytes {
    double computation, forward, backward;
};

/* Those of a plan's program; `shares`: replicas sum gradients. */
static struct bytes bytes_of(const struct plan *plan, bool shares)
{
    const struct program *program = &plan->program;
    static const struct operator_strategy whole = {.parts = {1, 1, 1, 1, 1, 1, 1, 1},
                                                   .repeated = 1};
    struct bytes out = {0};

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        struct operator_axes axes;
        struct operator_cost cost;

        if (op->section != PROGRAM_SECTION_MICRO_BATCH)
            continue;
        if (op_definition(op->kind)->is_communication) {
            *(op->backward ? &out.backward : &out.forward) += program_traffic_in_cell(plan, i);
        } else if (!op->backward) {
            operator_axes_build(program, op, &axes);
            operator_strategy_cost(program, op, &axes, &whole, &cost);
            out.computation += cost.forward_computation + (shares ? cost.parameters : 0);
            out.backward += shares ? cost.parameters : 0;
        }
    }
    return out;
}

/* The program of a rank that takes all samples of the busiest replica at once, with so many layers.
 */
static int build(const struct grid_request *request, const struct grid *grid, int64_t layers,
                 struct plan *out, struct fleet_error *err)
{
    STRATEGY_AUTO struct strategy strategy = {0};
    struct training_config training = *request->training; /* shallow: batch and layers are others */
    int64_t micro_batches = training_micro_batches(&training);
    struct fleet_errors errors = {0};
    struct strategy_options options;
    struct plan_request plan;
    int rc;

    training.micro_batch_size *= (micro_batches + grid->data - 1) / grid->data;
    training.global_batch_size = training.micro_batch_size;
    training.model.layers = layers;
    strategy_init(&strategy);
    strategy.hybrid_configs.mp_degree = grid->model;
    strategy.hybrid_configs.has_mp_degree = strategy.has_hybrid_configs = KNOB_BY_NAME;
    strategy_options_init(&options);
    options.operator_divisions = request->by_operator;
    plan = plan_request_of(&training, &strategy, STRATEGY_FULL, &options, grid->model);
    plan.only_explain = plan.is_draft = true;
    rc = plan_build(&plan, out, &errors);
    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (rc == 0 && !out->has_program) {
        plan_release(out);
        return fleet_error(err, -EINVAL, "the vocabulary is not known");
    }
    return rc < 0 ? -EINVAL : 0;
}

static int build_bytes(const struct grid_request *request, const struct grid *grid, int64_t layers,
                       struct bytes *out, struct fleet_error *err)
{
    struct plan plan;

    if (build(request, grid, layers, &plan, err) < 0)
        return -EINVAL;
    *out = bytes_of(&plan, grid->data > 1);
    plan_release(&plan);
    return 0;
}

/* If all layers are alike, two programs say what any number of layers costs. The controller asks
 * whenever it reads the job, and a program of a thousand layers takes seconds. */
static int count_bytes(const struct grid_request *request, const struct grid *grid,
                       struct bytes *out, struct fleet_error *err)
{
    int64_t layers = request->training->model.layers;
    struct bytes one, two;

    if (layers <= 2 || request->by_operator)
        return build_bytes(request, grid, layers, out, err);
    if (build_bytes(request, grid, 1, &one, err) < 0 ||
        build_bytes(request, grid, 2, &two, err) < 0)
        return -EINVAL;
    *out =
        (struct bytes){one.computation + (double)(layers - 1) * (two.computation - one.computation),
                       one.forward + (double)(layers - 1) * (two.forward - one.forward),
                       one.backward + (double)(layers - 1) * (two.backward - one.backward)};
    return 0;
}

int grid_score(const struct grid_request *request, const struct grid *grid, double *out,
               struct fleet_error *err)
{
    static const struct search_weights weights = {
        .alpha = 1, .beta = SEARCH_BETA_DEFAULT, .memory_limit = INFINITY};
    struct search_cost cost;
    struct bytes bytes;

    if (check(request, grid, err) < 0 || count_bytes(request, grid, &bytes, err) < 0)
        return -EINVAL;
    cost = search_cost_of_operator(bytes.computation, bytes.forward, bytes.backward, 0);
    *out = search_score(&cost, &weights);
    return 0;
}

/* ---- the searches ---------------------------------------------------------------------------- */

static int search_all(const struct grid_request *request, struct grid *out, struct fleet_error *err)
{
    double best = INFINITY;

    (void)fleet_error(err, -EINVAL, "model degree %d does not divide them", request->model);
    for (int model = 1; model <= request->devices; model++) {
        struct grid grid = {request->devices / model, model};
        double score;

        if (request->devices % model != 0 || (request->model > 0 && model != request->model) ||
            grid_score(request, &grid, &score, err) < 0 || score >= best)
            continue;
        best = score;
        *out = grid;
    }
    return best < INFINITY ? 0 : -EINVAL;
}

static int search_by_halves(const struct grid_request *request, struct grid *out,
                            struct fleet_error *err)
{
    struct grid grid = {1, 1};

    if ((request->devices & (request->devices - 1)) != 0)
        return fleet_error(err, -EINVAL,
                           "recursive_programming needs a power of two as the devices of a stage, "
                           "not %d: dynamic_programming takes any number",
                           request->devices);
    while (grid.data * grid.model < request->devices) {
        struct grid by_data = {2 * grid.data, grid.model}, by_model = {grid.data, 2 * grid.model};
        double of_data = INFINITY, of_model = INFINITY;

        (void)grid_score(request, &by_data, &of_data, err);
        (void)grid_score(request, &by_model, &of_model, err);
        if (of_data == INFINITY && of_model == INFINITY)
            return -EINVAL;
        grid = of_data <= of_model ? by_data : by_model;
    }
    *out = grid;
    return 0;
}

int grid_search(const struct grid_request *request, struct grid *out, struct fleet_error *err)
{
    struct grid grid = {1, 1};
    int rc = request->kind == GRID_SEARCH_DYNAMIC || request->model > 0
                 ? search_all(request, &grid, err)
                 : search_by_halves(request, &grid, err);

    if (rc < 0)
        return fleet_error_wrap(err, "no grid for %d devices of a stage", request->devices);
    *out = grid;
    return 0;
}
