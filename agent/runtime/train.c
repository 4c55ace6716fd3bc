/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The step, top to bottom: gradient of our micro-batches, sum over all, check, vote, commit.
 */

#include "agent/runtime/train.h"

#include <errno.h>
#include <math.h>

#include "agent/runtime/join/rollback.h"
#include "agent/runtime/step/average.h"
#include "agent/runtime/step/evaluate.h"
#include "agent/runtime/step/exchange.h"
#include "agent/runtime/step/gradient.h"
#include "agent/runtime/step/leaf.h"
#include "agent/runtime/step/update.h"
#include "agent/runtime/step/vote.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/tree.h"

#define LAST_WRITES_MS 3600e3 /* a disk may be slow; a rank that dies breaks its connection */

/* The next leaf that we run after instruction `after`, perhaps the first one of the next update. */
static void want_next(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                      int64_t after)
{
    for (int64_t i = after + 1; i < range->count; i++)
        if (range->instructions[i].kind == TREE_RUN) {
            leaf_want(trainer, update, range->instructions[i].leaf);
            return;
        }
    if (range->count > 0)
        leaf_want(trainer, update + 1, range->instructions[0].leaf);
}

/* Behind the last one of an update nothing is left to do for the gradient but what the operators of
 * the exchange do themselves. */
static int run_micro_batch(struct trainer *trainer, const struct leaf_range *range, int64_t number,
                           const struct executor_bases *bases, const struct run_scalars *scalars,
                           struct fleet_error *err)
{
    const atomic_bool *stop = control_stop(trainer->control);
    struct executor *executor = trainer->device.executor;
    struct executor_bases sum = trainer->state.bases;
    bool is_last = number + 1 >= range->folds_first + exchange_absences(trainer, range);
    int rc;

    if (range != &trainer->generation.range || !is_last || !exchange_folds(trainer)) {
        rc = executor_run(executor, PROGRAM_SECTION_MICRO_BATCH, bases, scalars, stop, err);
        divided_sum_next_round(&trainer->net.groups.divided);
        return rc;
    }
    sum.segment[MEMORY_GRADIENTS] = trainer->state.slots[0];
    return executor_run_last(executor, bases, &sum, scalars, stop, err);
}

/* Forward and backward of the leaf of instruction `number`: its gradient into the instruction's
 * slot, its loss and statistics into its row, where they are after backend_finish(). */
static int run_leaf(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                    int64_t number, struct fleet_error *err)
{
    int64_t leaf = range->instructions[number].leaf;
    float *row = trainer->progress.leaves + leaf * trainer->job.row;
    struct executor_bases bases = trainer->state.bases;
    struct run_scalars scalars = leaf_scalars(trainer, update, leaf);

    if (leaf_load(trainer, update, leaf, &bases, err) < 0)
        return err->code;
    want_next(trainer, update, range, number);
    bases.segment[MEMORY_GRADIENTS] = trainer->state.slots[range->instructions[number].slot];
    if (run_micro_batch(trainer, range, number, &bases, &scalars, err) < 0)
        return err->code;
    state_read_later(&trainer->state, trainer->job.plan.program.loss, row);
    if (trainer->progress.running.is_shared && trainer->generation.place.replica > 0)
        running_pass_over(&trainer->progress.running, row + 1);
    else
        running_take(&trainer->progress.running, &trainer->state, row + 1);
    return 0;
}

/* The other ranks have more micro-batches than this one and communicate inside them. */
static int take_part(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                     struct fleet_error *err)
{
    struct run_scalars scalars = leaf_scalars(trainer, update, 0);
    struct executor_bases bases = trainer->state.bases;
    int64_t absences = exchange_absences(trainer, range);

    scalars.absent = true;
    bases.segment[MEMORY_GRADIENTS] = trainer->state.slots[0];
    for (int64_t i = 0; i < absences; i++)
        if (run_micro_batch(trainer, range, range->folds_first + i, &bases, &scalars, err) < 0)
            return err->code;
    return 0;
}

/* What the gradient of the loss starts from: the same for all leaves of an update. */
static void set_loss_scale(struct trainer *trainer)
{
    int var = trainer->job.plan.program.loss_scaling;

    if (var != PROGRAM_NONE)
        state_write(&trainer->state, var, &trainer->progress.ledger->scaling.scale);
}

/* Fold our leaves into the partial sums we owe: slot i holds node i of our range, up to additions
 * that the exchange makes. */
static int compute_gradient(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                            struct fleet_error *err)
{
    int64_t count = trainer->job.plan.program.flat_count;
    bool is_folded_later = range == &trainer->generation.range && exchange_folds(trainer);
    int64_t end = is_folded_later ? range->folds_first : range->count;

    if (trainer->progress.viewed > 0)
        save_guard(trainer); /* a checkpoint may still be read from slot 0 */
    trainer->progress.viewed = 0;
    set_loss_scale(trainer);
    if (stage_is_used(trainer))
        return stage_run(trainer, update, range, err);
    for (int64_t i = 0; i < end; i++) {
        const struct tree_instruction *in = &range->instructions[i];
        if (in->kind == TREE_ADD) {
            double started_ms = fleet_monotonic_ms();
            trainer->device.backend->vtable->add(trainer->device.backend,
                                                 trainer->state.slots[in->into],
                                                 trainer->state.slots[in->slot], count);
            trainer->report.times.backward_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
            continue;
        }
        if (run_leaf(trainer, update, range, i, err) < 0)
            return err->code;
    }
    return take_part(trainer, update, range, err);
}

/* From here on our complete gradient counts; it stays in slot 0 until the commit. */
static int vote(struct trainer *trainer, int64_t update, bool is_finite, int64_t leaves,
                struct fleet_error *err)
{
    int rc;
    struct vote ballot = {.update = update,
                          .is_finite = is_finite,
                          .calls = save_calls(trainer),
                          .is_local =
                              trainer->progress.gradient.is_local || exchange_divides(trainer),
                          .in_turn = exchange_divides(trainer),
                          .leaves = leaves,
                          .row = trainer->job.row,
                          .rows = trainer->progress.leaves,
                          .grid = &trainer->job.plan.topology,
                          .workspace = trainer->progress.vote_workspace};

    trainer->progress.voted = update;
    trainer->progress.voted_finite = is_finite;
    sample_log_vote(trainer);
    rc = vote_cast(trainer->net.comm, &ballot, trainer_deadline_ms(trainer), err);
    if (rc < 0)
        return rc;
    trainer->progress.voted_finite = ballot.is_finite;
    trainer->save.is_called = ballot.calls;
    return 0;
}

/* Whether it is worth to find out where an infinity came from: not where a smaller loss scale may
 * help, and then for the first, second, fourth, … skipped update of a job. */
static bool is_worth_diagnosing(const struct trainer *trainer)
{
    const struct strategy *strategy = trainer->job.rules.strategy;
    int64_t skipped = trainer->progress.ledger->skipped;
    bool may_shrink = loss_scaling_is_on(strategy) &&
                      strategy->amp_configs.use_dynamic_loss_scaling &&
                      trainer->progress.ledger->scaling.scale > 1.0f;

    return !may_shrink && (skipped & (skipped - 1)) == 0;
}

/* ---- where the time of an update goes -------------------------------------------------------- */

static void times_begin(struct trainer *trainer)
{
    trainer->report.times = (struct fleet_step_times){0};
    trainer->report.step_started_ms = fleet_monotonic_ms();
    executor_times(trainer->device.executor, &trainer->report.executor_before);
}

/* Called in pairs around what waits for other ranks. */
static void times_exchange(struct trainer *trainer, bool begins)
{
    double now_s = fleet_monotonic_ms() * 1e-3;

    trainer->report.times.exchange_s += begins ? -now_s : now_s;
}

static void times_end(struct trainer *trainer)
{
    const struct executor_times *before = &trainer->report.executor_before;
    double took_ms = fleet_monotonic_ms() - trainer->report.step_started_ms;
    struct executor_times now;

    executor_times(trainer->device.executor, &now);
    trainer->report.times.forward_s = now.forward_s - before->forward_s;
    trainer->report.times.backward_s += now.backward_s - before->backward_s;
    trainer->report.times.optimizer_s =
        now.check_s - before->check_s + now.update_s - before->update_s;
    trainer->report.times.exchange_s += now.waited_s - before->waited_s;
    trainer->report.times.hidden_s =
        fmax(0, now.communication_s - before->communication_s - (now.waited_s - before->waited_s));
    trainer->report.total_s = took_ms * 1e-3;
    trainer->report.step_longest_ms = fmax(trainer->report.step_longest_ms, took_ms);
}

/* ---- the step -------------------------------------------------------------------------------- */

static int train_update(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                        struct fleet_error *err)
{
    bool is_finite = true, is_complete = trainer_is_complete(trainer, update);
    int rc;

    times_begin(trainer);
    gradient_begin(trainer, update, range);
    trainer->health.diagnosis[0] = '\0';
    trainer->progress.replicas = plan_replicas(&trainer->job.plan);
    if (compute_gradient(trainer, update, range, err) < 0)
        return err->code;
    gradient_fold(trainer, range);
    if (is_complete && update_exchange(trainer, update, err) < 0)
        return err->code;
    rc = is_complete ? update_check(trainer, update, &is_finite, err)
                     : backend_finish(trainer->device.backend, err);
    if (rc < 0)
        return rc;
    times_exchange(trainer, true);
    if (vote(trainer, update, is_finite, range->leaves, err) < 0)
        return err->code;
    times_exchange(trainer, false);
    if (!trainer->progress.voted_finite && is_worth_diagnosing(trainer) &&
        diagnose_update(trainer, update, range, trainer->health.diagnosis, err) < 0)
        return err->code;
    if (update_commit(trainer, update, trainer->progress.leaves, err) < 0)
        return err->code;
    times_exchange(trainer, true);
    rc = share_parameters(trainer, err);
    times_exchange(trainer, false);
    times_end(trainer);
    report_update(trainer, update); /* it is committed, shared or not */
    if (rc < 0)
        return rc;
    if (trainer->generation.first_step_pending)
        trainer_announce(trainer, FLEET_PHASE_FIRST_STEP);
    trainer->generation.first_step_pending = false;
    return 0;
}

/* What follows a commit, in this order: all ranks get the parameters that others own; a checkpoint
 * of a step is made only after the step's evaluation has been reported. All of it is done again
 * after a restart unless it had been completed. */
static int after_commit(struct trainer *trainer, struct fleet_error *err)
{
    if (share_parameters(trainer, err) < 0 || average_if_due(trainer, err) < 0 ||
        rollback_if_due(trainer, err) < 0 || evaluate_if_due(trainer, err) < 0)
        return err->code;
    return save_if_due(trainer, err);
}

/* No rank leaves before the last checkpoint is on disk and the last step is in the charts: if the
 * rank that writes them dies, the others are still there to do it. */
static int await_last_writes(struct trainer *trainer, struct fleet_error *err)
{
    if (!trainer->job.config.has_checkpoint && !trainer->report.charts.log)
        return 0;
    return comm_barrier(trainer->net.comm, fleet_monotonic_ms() + LAST_WRITES_MS, err);
}

int train_run(struct trainer *trainer, struct fleet_error *err)
{
    save_reserve(trainer);
    if (after_commit(trainer, err) < 0)
        return err->code;
    while (trainer->progress.committed < trainer->job.updates) {
        int64_t update = trainer->progress.committed + 1;
        int rc;

        if (control_leaving(trainer->control) && save_lets_leave(trainer))
            return fleet_error(err, -EINTR, "asked to leave");
        save_if_ordered(trainer);
        rc = train_update(trainer, update,
                          trainer_is_complete(trainer, update) ? &trainer->generation.range
                                                               : &trainer->generation.last_range,
                          err);
        if (rc < 0 || (rc = after_commit(trainer, err)) < 0)
            return rc;
    }
    if (stage_report(trainer, err) < 0)
        return err->code;
    return await_last_writes(trainer, err);
}
