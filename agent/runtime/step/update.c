/* SPDX-License-Identifier: Apache-2.0 */

/* What happens to a complete gradient: check, apply, report. */

#include "agent/runtime/step/update.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/runtime/step/average.h"
#include "agent/runtime/step/not_finite.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/tree.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/training/schedule.h"

double update_rate(const struct trainer *trainer, int64_t update)
{
    return schedule_rate(&trainer->job.config, trainer->job.complete_updates, update);
}

int64_t update_averaged(const struct trainer *trainer)
{
    return trainer->job.micro_batches *
           (trainer->job.plan.program.merge_average ? trainer->job.merge : 1);
}

/* What the mean over all micro-batches is multiplied by: scale_strategy sum adds the means of the
 * replicas, repeatedLossAdds those of the ranks that compute one loss. */
static double scale_of(const struct trainer *trainer)
{
    const struct plan *plan = &trainer->job.plan;
    double scale = choices_scale(&plan->selection.final) == CHOICES_SCALE_SUM
                       ? (double)trainer->progress.replicas
                       : 1.0;

    return trainer->job.strategy.options.repeated_loss_adds
               ? scale * plan->topology.degree[TOPOLOGY_MODEL]
               : scale;
}

/* The learning rate moves with every complete update, applied or skipped; the powers of beta with
 * those that were applied. Gradients carry the loss scale. */
static struct run_scalars scalars_of(const struct trainer *trainer, int64_t update)
{
    double scale = average_is_on(trainer) ? 1 : scale_of(trainer); /* nothing is summed then */

    return (struct run_scalars){
        .seed = trainer->job.config.seed,
        .step = trainer_steps(trainer, update) - 1,
        .gradient_scale = scale / (trainer->progress.gradient.averaged *
                                   (double)trainer->progress.ledger->scaling.scale),
        .learning_rate = update_rate(trainer, update),
        .update_1based = trainer->progress.ledger->updates + 1,
        .messages = trainer->progress.gradient.messages,
    };
}

static int run_section(struct trainer *trainer, int64_t update, enum program_section section,
                       const atomic_bool *stop, struct fleet_error *err)
{
    struct executor_bases bases = trainer->state.bases;
    struct run_scalars scalars = scalars_of(trainer, update);

    bases.segment[MEMORY_GRADIENTS] = trainer->state.slots[0];
    return executor_run(trainer->device.executor, section, &bases, &scalars, stop, err);
}

/* An update that was voted for is always applied. */
static const atomic_bool never;

int update_exchange(struct trainer *trainer, int64_t update, struct fleet_error *err)
{
    int rc =
        run_section(trainer, update, PROGRAM_SECTION_EXCHANGE, control_stop(trainer->control), err);

    return rc < 0 ? fleet_error_wrap(err, "sum the gradients") : 0;
}

/* The output of the last operator of one of two kinds; PROGRAM_NONE: there is none. */
static int output_of(const struct trainer *trainer, enum op_kind kind, enum op_kind other)
{
    const struct program *program = &trainer->job.plan.program;

    for (int i = program->op_count - 1; i >= 0; i--)
        if (program->ops[i].kind == kind || program->ops[i].kind == other)
            return program->ops[i].outputs[0];
    return PROGRAM_NONE;
}

/* The norms that the optimizer reads. */
static int norms_of(const struct trainer *trainer)
{
    return stage_is_used(trainer) ? output_of(trainer, OP_TOTAL_NORM, OP_TOTAL_NORM)
                                  : output_of(trainer, OP_GRAD_NORM, OP_JOIN_NORMS);
}

/* The last element of a variable; 0 if there is none. */
static float last_of(const struct trainer *trainer, int var)
{
    struct backend *backend = trainer->state.backend;
    const struct program *program = &trainer->job.plan.program;
    float result = 0.0f;
    const float *values;

    if (var == PROGRAM_NONE)
        return 0.0f;
    values = state_address(&trainer->state, var);
    backend->vtable->copy_out(
        backend, &result, values + program_var_elements(&program->vars[var]) - 1, sizeof(result));
    return result;
}

int update_check(struct trainer *trainer, int64_t update, bool *out_is_finite,
                 struct fleet_error *err)
{
    int rc = run_section(trainer, update, PROGRAM_SECTION_CHECK, &never, err);

    if (rc < 0)
        return rc;
    trainer->progress.norm = (double)last_of(trainer, norms_of(trainer));
    *out_is_finite = last_of(trainer, output_of(trainer, OP_CHECK_FINITE, OP_CHECK_FINITE)) == 0.0f;
    trainer->progress.not_finite = 0;
    if (!*out_is_finite && not_finite_is_counted(trainer))
        trainer->progress.not_finite = not_finite_count(trainer);
    return 0;
}

/* The sum of the losses of `count` leaves, in the shape of the summation tree. */
static float sum_of_losses(const float *leaves, int64_t row, int64_t count)
{
    int64_t half;

    if (count == 1)
        return leaves[0];
    half = tree_split(0, count);
    return sum_of_losses(leaves, row, half) + sum_of_losses(leaves + half * row, row, count - half);
}

/* The loss of batch `batch` of an update, from its leaves' rows. */
static double batch_loss(const struct trainer *trainer, const float *leaves, int64_t batch)
{
    const float *first = leaves + batch * trainer->job.micro_batches * trainer->job.row;

    return sum_of_losses(first, trainer->job.row, trainer->job.micro_batches) /
           (float)trainer->job.micro_batches;
}

/* The mean over the replicas of each one's own mean loss, in this generation's shares. */
static double loss_of_replicas(const struct trainer *trainer, const float *leaves, int64_t count)
{
    int replicas = trainer->generation.replicas;
    double sum = 0;

    for (int r = 0; r < replicas; r++) {
        int64_t first = tree_first_leaf(count, replicas, r),
                end = tree_first_leaf(count, replicas, r + 1);
        double own = 0;
        for (int64_t i = first; i < end; i++)
            own += (double)leaves[i * trainer->job.row];
        sum += own / (double)(end > first ? end - first : 1);
    }
    return sum / replicas;
}

/* Must the parameters be averaged now? A rank that commits in the next generation learns
 * it from the ledger of one that has committed before. */
static void plan_average(struct trainer *trainer, int64_t update, const float *leaves,
                         int64_t count)
{
    struct averaging_step step = {.update = update,
                                  .loss = loss_of_replicas(trainer, leaves, count),
                                  .rate = update_rate(trainer, update)};

    if (ledger_average(trainer->progress.ledger, &trainer->job.rules, &step) &&
        trainer->generation.rank == 0)
        trainer_warn(trainer,
                     "step %" PRId64
                     ": no interval follows from a loss of %g and a learning rate of %g, so "
                     "parameters are still averaged every %" PRId64 " updates",
                     trainer_steps(trainer, update), step.loss, step.rate,
                     trainer->progress.ledger->averaging.interval);
}

/* overflowAction zeroGrad: the optimizer runs on zeros; their norms, too, are zero. No operator of
 * the check section runs again: it may communicate, and a commit must not. */
static void zero_gradient(struct trainer *trainer)
{
    struct backend *memory = trainer->state.backend;
    const struct program *program = &trainer->job.plan.program;
    int norms = norms_of(trainer);

    trainer->progress.norm = 0;
    memory->vtable->clear(memory, trainer->state.slots[0],
                          trainer->state.memory->bytes[MEMORY_GRADIENTS]);
    if (norms != PROGRAM_NONE)
        memory->vtable->clear(memory, state_address(&trainer->state, norms),
                              program_var_bytes(&program->vars[norms]));
}

static int apply_update(struct trainer *trainer, int64_t update, enum ledger_verdict verdict,
                        struct fleet_error *err)
{
    int rc;

    if (verdict != LEDGER_APPLY && verdict != LEDGER_ZERO)
        return 0;
    save_guard(trainer);
    if (verdict == LEDGER_ZERO)
        zero_gradient(trainer);
    rc = run_section(trainer, update, PROGRAM_SECTION_UPDATE, &never, err);
    return rc < 0 ? fleet_error_wrap(err, "update %" PRId64, update) : 0;
}

static int refuse_infinite(const struct trainer *trainer, int64_t update, struct fleet_error *err)
{
    return fleet_error(
        err, -EDOM,
        "%s; training stopped after step %" PRId64
        ", try a smaller spec.training.optimizer.learningRate or spec.training.optimizer.clip",
        trainer->health.diagnosis, trainer_steps(trainer, update - 1));
}

int update_commit(struct trainer *trainer, int64_t update, const float *leaves,
                  struct fleet_error *err)
{
    int64_t batches = trainer_batches(trainer, update),
            leaf_count = batches * trainer->job.micro_batches;
    enum ledger_verdict verdict = LEDGER_APPLY;
    bool is_complete = trainer_is_complete(trainer, update);

    fleet_assert(update == trainer->progress.committed + 1 && trainer->progress.voted == update);
    for (int64_t b = 0; b < batches; b++)
        trainer->progress.batch_losses[b] = batch_loss(trainer, leaves, b);
    if (is_complete) {
        verdict =
            ledger_judge(trainer->progress.ledger, &trainer->job.rules,
                         trainer->progress.voted_finite, trainer->progress.batch_losses, batches);
        if (verdict == LEDGER_FATAL)
            return refuse_infinite(trainer, update, err);
        if (apply_update(trainer, update, verdict, err) < 0)
            return err->code;
    }
    running_fold(&trainer->progress.running, &trainer->state, leaves + 1, trainer->job.row,
                 leaf_count);
    ledger_commit(trainer->progress.ledger, &trainer->job.rules, is_complete, verdict,
                  trainer->progress.voted_finite, trainer->progress.batch_losses, batches);
    if (is_complete && average_is_on(trainer))
        plan_average(trainer, update, leaves, leaf_count);
    trainer->progress.verdict = verdict;
    memmove(trainer->progress.committed_leaves, leaves,
            (size_t)(leaf_count * trainer->job.row) * sizeof(*leaves));
    trainer->progress.committed = update;
    sample_log_commit(trainer, update);
    return 0;
}

double update_norm(const struct trainer *trainer)
{
    if (trainer->progress.gradient.is_local)
        return NAN;
    return trainer->progress.norm;
}
