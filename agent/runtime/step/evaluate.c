/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The loss on held-out data (evaluation.h): the ranks share its micro-batches as they share a
 * step's. Every rank adds up all losses in the same order, so the number does not depend on the
 * workers.
 */

#include "agent/runtime/step/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/evaluation.h"
#include "agent/runtime/step/average.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/tree.h"

#define DEADLINE_LEAST_MS     60000.0
#define DEADLINE_IN_DURATIONS 20.0

struct evaluation {
    struct evaluation_cut cut;
    int64_t micro_batches;
    float *mine, *all; /* [micro_batches] losses */
    float *gathered;   /* the same as `all`, in the order of the ranks */
    size_t *bytes;     /* [world_max] */
    int world_max;
};

void evaluate_open(struct trainer *trainer)
{
    const struct program *program = &trainer->job.plan.program;
    int64_t held_out = dataset_validation_count(trainer->data.dataset);
    struct evaluation *e;

    if (!trainer->job.config.has_evaluation)
        return;
    fleet_assert(held_out >= 1); /* the dataset holds out at least one sample if asked to */
    e = trainer->data.evaluation = calloc(1, sizeof(*e));
    fleet_assert(e != NULL);
    e->cut = (struct evaluation_cut){
        .samples = evaluation_samples(held_out, trainer->job.config.evaluation.batches,
                                      trainer->job.config.global_batch_size),
        .micro_batch_size = program->micro_batch_size,
        .repeats = trainer->job.plan.topology.degree[TOPOLOGY_SEQUENCE] > 1};
    e->micro_batches = evaluation_micro_batches(&e->cut);
    e->mine = calloc((size_t)e->micro_batches, sizeof(*e->mine));
    e->all = calloc((size_t)e->micro_batches, sizeof(*e->all));
    e->gathered = calloc((size_t)e->micro_batches, sizeof(*e->gathered));
    fleet_assert(e->mine && e->all && e->gathered);
}

void evaluate_reserve(struct trainer *trainer)
{
    struct evaluation *e = trainer->data.evaluation;

    if (!e || trainer->generation.world <= e->world_max)
        return;
    e->bytes = realloc(e->bytes, (size_t)trainer->generation.world * sizeof(*e->bytes));
    fleet_assert(e->bytes != NULL);
    e->world_max = trainer->generation.world;
}

void evaluate_close(struct trainer *trainer)
{
    struct evaluation *e = trainer->data.evaluation;

    if (!e)
        return;
    free(e->mine);
    free(e->all);
    free(e->gathered);
    free(e->bytes);
    free(e);
    trainer->data.evaluation = NULL;
}

/* The micro-batches of a replica: [*out_first, + result). */
static int64_t share_of(const struct trainer *trainer, int replica, int64_t *out_first)
{
    int64_t count = trainer->data.evaluation->micro_batches;

    *out_first = tree_first_leaf(count, trainer->generation.replicas, replica);
    return tree_first_leaf(count, trainer->generation.replicas, replica + 1) - *out_first;
}

/* The ranks of the last cell have the losses. */
static int gather_losses(struct trainer *trainer, double deadline_ms, struct fleet_error *err)
{
    const struct topology *grid = &trainer->job.plan.topology;
    struct evaluation *e = trainer->data.evaluation;
    const float *from = e->gathered;
    int64_t first;

    for (int r = 0; r < trainer->generation.world; r++) {
        struct cell_place place = cells_place(grid, r);
        bool is_last = place.cell + 1 == cells_count(grid);
        e->bytes[r] =
            is_last ? (size_t)share_of(trainer, place.replica, &first) * sizeof(*e->mine) : 0;
    }
    if (comm_all_gather_varying(trainer->net.comm, e->mine, e->bytes, e->gathered, deadline_ms,
                                err) < 0)
        return fleet_error_wrap(err, "gather the evaluation");
    for (int r = 0; r < trainer->generation.world; r++) {
        (void)share_of(trainer, cells_place(grid, r).replica, &first);
        memcpy(e->all + first, from, e->bytes[r]);
        from += e->bytes[r] / sizeof(*from);
    }
    return 0;
}

/* Where replicas gather parameters, each takes part in the micro-batches of the first, which has
 * most. */
static int run_share(struct trainer *trainer, const struct evaluation_range *range, int64_t first,
                     int64_t count, struct fleet_error *err)
{
    struct evaluation *e = trainer->data.evaluation;
    const atomic_bool *stop = control_stop(trainer->control);
    int64_t none, rounds = exchange_gathers(trainer) ? share_of(trainer, 0, &none) : count;

    for (int64_t i = 0; i < count; i++)
        if (evaluation_run(range, first + i, stop, &e->mine[i], err) < 0)
            return err->code;
    for (int64_t i = count; i < rounds; i++)
        if (evaluation_take_part(range, stop, err) < 0)
            return err->code;
    return 0;
}

/* The losses of all micro-batches, on every rank. */
static int evaluate_shared(struct trainer *trainer, struct fleet_error *err)
{
    struct evaluation *e = trainer->data.evaluation;
    int64_t first, count = share_of(trainer, trainer->generation.place.replica, &first);
    double started_ms = fleet_monotonic_ms(), took_ms;
    struct evaluation_range range = {.dataset = trainer->data.dataset,
                                     .program = &trainer->job.plan.program,
                                     .state = &trainer->state,
                                     .executor = trainer->device.executor,
                                     .inputs = trainer->job.inputs,
                                     .targets = trainer->job.targets,
                                     .first = dataset_training_count(trainer->data.dataset),
                                     .cut = e->cut,
                                     .vocabulary = trainer->job.config.model.vocabulary,
                                     .seed = trainer->job.config.seed,
                                     .gradients = trainer->state.slots[0],
                                     .shape = stage_is_used(trainer) ? &trainer->job.plan.schedule
                                                                     : NULL,
                                     .stage = stage_number(trainer)};
    struct executor_bases bases;

    if (average_view(trainer, &bases, err) < 0)
        return err->code;
    range.parameters = bases.segment[MEMORY_PARAMETERS];
    if (run_share(trainer, &range, first, count, err) < 0)
        return err->code;
    took_ms = fleet_monotonic_ms() - started_ms;
    return gather_losses(
        trainer, fleet_monotonic_ms() + fmax(DEADLINE_LEAST_MS, DEADLINE_IN_DURATIONS * took_ms),
        err);
}

static bool is_due(const struct trainer *trainer)
{
    int64_t every = trainer->job.config.evaluation.every_steps;
    int64_t before = trainer_steps(trainer, trainer->progress.committed - 1);
    int64_t now = trainer_steps(trainer, trainer->progress.committed);

    return trainer->data.evaluation && trainer->progress.committed > trainer->report.evaluated &&
           (before / every != now / every || trainer->progress.committed == trainer->job.updates);
}

int evaluate_if_due(struct trainer *trainer, struct fleet_error *err)
{
    if (!is_due(trainer))
        return 0;
    if (evaluate_shared(trainer, err) < 0)
        return err->code;
    report_evaluation(
        trainer, trainer_steps(trainer, trainer->progress.committed),
        evaluation_mean(trainer->data.evaluation->all, &trainer->data.evaluation->cut));
    trainer->report.evaluated = trainer->progress.committed;
    return 0;
}
