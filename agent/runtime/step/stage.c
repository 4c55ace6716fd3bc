/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/stage.h"

#include <math.h>
#include <stdlib.h>

#include "agent/runtime/executor/schedule.h"
#include "agent/runtime/step/leaf.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

bool stage_is_used(const struct trainer *trainer)
{
    return trainer->job.plan.is_cut;
}

int stage_number(const struct trainer *trainer)
{
    return cells_coordinate(&trainer->job.plan.topology, trainer->generation.place.cell,
                            TOPOLOGY_PIPELINE);
}

/* The plan's, with the number of micro-batches that this replica has. Where replicas gather
 * parameters in each part of a micro-batch, all run the schedule of the one that has most. */
static struct pipeline_shape shape_of(const struct trainer *trainer)
{
    const struct leaf_range *range = &trainer->generation.range;
    struct pipeline_shape shape = trainer->job.plan.schedule;

    shape.micro_batches = (int)leaf_range_own(range);
    if (exchange_gathers(trainer))
        shape.micro_batches += (int)exchange_absences(trainer, range);
    return shape;
}

static bool is_absent(const struct trainer *trainer, int micro_batch)
{
    return schedule_leaf(trainer->stage.schedule, micro_batch) == SCHEDULE_ABSENT;
}

/* The last chunk of the last stage computes losses. */
static bool has_losses(const struct trainer *trainer)
{
    return stage_number(trainer) + 1 == trainer->job.plan.schedule.stages;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The first micro-batch uses the state's own memory. */
static int make_copies(struct trainer *trainer, int count, struct fleet_error *err)
{
    struct trainer_stage *stage = &trainer->stage;

    stage->bases = calloc((size_t)count, sizeof(*stage->bases));
    fleet_assert(stage->bases != NULL);
    stage->bases[0] = trainer->state.bases;
    for (stage->copies = 1; stage->copies < count; stage->copies++)
        if (state_copy_transient(&trainer->state, &stage->bases[stage->copies], err) < 0)
            return fleet_error_wrap(err, "allocate memory for %d micro-batches in flight", count);
    return 0;
}

int stage_open(struct trainer *trainer, struct fleet_error *err)
{
    const struct leaf_range *range = &trainer->generation.range;
    struct trainer_stage *stage = &trainer->stage;
    struct pipeline_shape shape = shape_of(trainer);
    struct schedule_tree tree = {.instructions = range->instructions,
                                 .count = range->count,
                                 .folds_first =
                                     exchange_folds(trainer) ? range->folds_first : range->count,
                                 .slots = trainer->state.slots,
                                 .backend = trainer->device.backend};
    int copies = 1;

    stage_close(trainer);
    if (!stage_is_used(trainer))
        return 0;
    if (shape.micro_batches > 0) {
        stage->copy_of = calloc((size_t)shape.micro_batches, sizeof(*stage->copy_of));
        fleet_assert(stage->copy_of != NULL);
        copies = pipeline_copies(&shape, stage_number(trainer), stage->copy_of);
        stage->schedule =
            schedule_new(&shape, stage_number(trainer), &trainer->job.plan.program, &tree);
    }
    return make_copies(trainer, copies, err);
}

void stage_close(struct trainer *trainer)
{
    struct trainer_stage *stage = &trainer->stage;

    for (int copy = 1; copy < stage->copies; copy++)
        state_free_transient(&trainer->state, &stage->bases[copy]);
    schedule_free(stage->schedule);
    free(stage->bases);
    free(stage->copy_of);
    *stage = (struct trainer_stage){0};
}

/* ---- an update ------------------------------------------------------------------------------- */

static void take_loss(struct trainer *trainer, int64_t leaf)
{
    if (has_losses(trainer))
        state_read(&trainer->state, trainer->job.plan.program.loss,
                   trainer->progress.leaves + leaf * trainer->job.row);
}

/* Read its samples, and have those of the next one read meanwhile. */
static int begin(void *context, const struct pipeline_step *step, struct fleet_error *err)
{
    struct trainer *trainer = context;
    const struct trainer_stage *stage = &trainer->stage;
    int next = step->micro_batch + 1;

    if (is_absent(trainer, step->micro_batch))
        return 0;
    if (leaf_load(trainer, stage->update, schedule_leaf(stage->schedule, step->micro_batch),
                  &stage->bases[stage->copy_of[step->micro_batch]], err) < 0)
        return err->code;
    if (next < shape_of(trainer).micro_batches && !is_absent(trainer, next))
        leaf_want(trainer, stage->update, schedule_leaf(stage->schedule, next));
    else
        leaf_want(trainer, stage->update + 1, schedule_leaf(stage->schedule, 0));
    return 0;
}

static int end(void *context, const struct pipeline_step *step, struct fleet_error *err)
{
    struct trainer *trainer = context;

    (void)err;
    if (step->pass == PIPELINE_FORWARD && step->chunk + 1 == trainer->job.plan.schedule.chunks &&
        !is_absent(trainer, step->micro_batch))
        take_loss(trainer, schedule_leaf(trainer->stage.schedule, step->micro_batch));
    return 0;
}

static void use(void *context, const struct pipeline_step *step, struct executor_bases *out_bases,
                struct run_scalars *out_scalars)
{
    struct trainer *trainer = context;
    const struct trainer_stage *stage = &trainer->stage;

    divided_sum_set_round(&trainer->net.groups.divided, step->micro_batch);
    *out_bases = stage->bases[stage->copy_of[step->micro_batch]];
    *out_scalars = leaf_scalars(trainer, stage->update,
                                is_absent(trainer, step->micro_batch)
                                    ? 0
                                    : schedule_leaf(stage->schedule, step->micro_batch));
    out_scalars->absent = is_absent(trainer, step->micro_batch);
}

/* Seconds in which this rank computes: of passes and additions, or of samples. */
static double busy_s(const struct trainer *trainer)
{
    struct executor_times times;

    executor_times(trainer->device.executor, &times);
    return times.forward_s + times.backward_s + trainer->report.times.data_s +
           trainer->report.times.backward_s;
}

static int run_schedule(struct trainer *trainer, struct fleet_error *err)
{
    struct schedule_owner owner = {.context = trainer, .begin = begin, .end = end, .use = use};
    double started_ms = fleet_monotonic_ms(), busy_before_s = busy_s(trainer);
    int rc = schedule_run(trainer->stage.schedule, trainer->device.executor, &owner,
                          control_stop(trainer->control), err);

    trainer->stage.times.total_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
    trainer->stage.times.busy_s += busy_s(trainer) - busy_before_s;
    return rc;
}

/* Forward in micro-batches that only other replicas have, so without messages. */
static int take_part_forward(struct trainer *trainer, int64_t update, int64_t absences,
                             struct fleet_error *err)
{
    struct run_scalars scalars = leaf_scalars(trainer, update, 0);
    int64_t parts = absences * trainer->job.plan.schedule.chunks;
    int rc = 0;

    scalars.absent = true;
    for (int64_t i = 0; i < parts && rc == 0; i++) {
        struct executor_part part = {.chunk = (int)(i % trainer->job.plan.schedule.chunks)};
        rc = executor_run_part(trainer->device.executor, &part, &trainer->state.bases, &scalars,
                               control_stop(trainer->control), err);
    }
    return rc;
}

/* For the losses alone: one micro-batch after the other. */
static int run_forward(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                       struct fleet_error *err)
{
    struct pipeline_shape shape = shape_of(trainer);
    int64_t absences = exchange_gathers(trainer) ? exchange_absences(trainer, range) : 0;

    for (int64_t leaf = range->first; leaf < range->end; leaf += range->step) {
        struct run_scalars scalars = leaf_scalars(trainer, update, leaf);
        if (leaf_load(trainer, update, leaf, &trainer->state.bases, err) < 0 ||
            schedule_forward(&shape, stage_number(trainer), trainer->device.executor,
                             &trainer->state.bases, &scalars, control_stop(trainer->control),
                             err) < 0)
            return err->code;
        take_loss(trainer, leaf);
    }
    return take_part_forward(trainer, update, absences, err);
}

/* Other replicas have more micro-batches than this one, and communicate inside them. */
static int take_part(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                     struct fleet_error *err)
{
    struct run_scalars scalars = leaf_scalars(trainer, update, 0);
    int64_t own = leaf_range_own(range), absences = exchange_absences(trainer, range);
    int rc = 0;

    scalars.absent = true;
    for (int64_t i = 0; i < 2 * absences && rc == 0; i++) {
        struct executor_part part = {.backward = true, .weights = i % 2 == 1};
        divided_sum_set_round(&trainer->net.groups.divided, own + i / 2);
        rc = executor_run_part(trainer->device.executor, &part, &trainer->state.bases, &scalars,
                               control_stop(trainer->control), err);
    }
    return rc;
}

int stage_run(struct trainer *trainer, int64_t update, const struct leaf_range *range,
              struct fleet_error *err)
{
    trainer->stage.update = update;
    if (range != &trainer->generation.range)
        return run_forward(trainer, update, range, err);
    if (trainer->stage.schedule && run_schedule(trainer, err) < 0)
        return err->code;
    if (exchange_gathers(trainer)) /* the schedule has all micro-batches */
        return 0;
    return take_part(trainer, update, range, err);
}

/* ---- the bubble ------------------------------------------------------------------------------ */

static const char *name_of(const struct pipeline_shape *shape)
{
    return shape->zero_bubble   ? "zero-bubble"
           : shape->all_forward ? "F-then-B"
           : shape->chunks > 1  ? "interleaved 1F1B"
                                : "1F1B";
}

int stage_report(struct trainer *trainer, struct fleet_error *err)
{
    const struct pipeline_shape *shape = &trainer->job.plan.schedule;
    FLEET_AUTO_FREE struct stage_times *all =
        calloc((size_t)trainer->generation.world, sizeof(*all));
    double total_s = 0, used_s = 0, ideal = 3.0 * shape->micro_batches;

    fleet_assert(all != NULL);
    if (!stage_is_used(trainer))
        return 0;
    if (comm_all_gather(trainer->net.comm, &trainer->stage.times, sizeof(*all), all,
                        trainer_deadline_ms(trainer), err) < 0)
        return fleet_error_wrap(err, "gather the times of the stages");
    for (int r = 0; r < trainer->generation.world; r++) {
        total_s += all[r].total_s;
        used_s += all[r].busy_s;
    }
    if (trainer->generation.rank != 0 || used_s <= 0)
        return 0;
    trainer_note(trainer,
                 "pipeline of %d stages, %s, %d micro-batches: the bubble is %.1f %% of the time "
                 "in which stages compute, planned %.1f %%",
                 shape->stages, name_of(shape), shape->micro_batches,
                 100 * fmax(0, total_s / used_s - 1),
                 100 * (pipeline_makespan(shape, 1, 2) / ideal - 1));
    return 0;
}
