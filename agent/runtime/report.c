/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reports of a committed update: its steps to the agent; on rank 0 also to the pod's log and to
 * TensorBoard. Errors here never fail the training: an output that cannot be written causes one
 * warning.
 */
#include "agent/runtime/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "agent/runtime/step/not_finite.h"
#include "agent/runtime/step/update.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"
#include "libfleet/training/step_line.h"

#define MEAN_KEEP 0.95 /* weight of the past in the mean time of a step */

/* ---- the steps of an update ------------------------------------------------------------------ */

static bool has_applied(const struct trainer *trainer, int64_t update)
{
    return trainer_is_complete(trainer, update) &&
           (trainer->progress.verdict == LEDGER_APPLY || trainer->progress.verdict == LEDGER_ZERO);
}

static struct link_step step_of(const struct trainer *trainer, int64_t update, int64_t batch)
{
    int64_t batches = trainer_batches(trainer, update);
    int64_t tokens =
        trainer->job.config.global_batch_size * trainer->job.plan.program.tokens_per_sample;
    double seconds = trainer->report.total_s;
    struct link_step step = {
        .step = (update - 1) * trainer->job.merge + 1 + batch,
        .loss = trainer->progress.batch_losses[batch],
        .tokens = tokens,
        .tokens_per_second = seconds > 0 ? (double)(tokens * batches) / seconds : 0.0,
        .has_update = batch == batches - 1 && has_applied(trainer, update),
        .times = {.data_s = trainer->report.times.data_s / (double)batches,
                  .forward_s = trainer->report.times.forward_s / (double)batches,
                  .backward_s = trainer->report.times.backward_s / (double)batches,
                  .exchange_s = trainer->report.times.exchange_s / (double)batches,
                  .optimizer_s = trainer->report.times.optimizer_s / (double)batches,
                  .hidden_s = trainer->report.times.hidden_s / (double)batches},
    };

    if (step.has_update) {
        step.gradient_norm = update_norm(trainer);
        step.learning_rate = update_rate(trainer, update);
    }
    return step;
}

/* ---- TensorBoard ----------------------------------------------------------------------------- */

static void write_charts(struct trainer *trainer)
{
    struct fleet_error err;

    if (trainer->generation.rank == 0 && charts_write(&trainer->report.charts, &err) < 0)
        trainer_warn(trainer, "%s; training goes on without", err.text);
}

static void send_evaluation(struct trainer *trainer)
{
    struct link_message message = {.kind = LINK_EVALUATION,
                                   .evaluation = {.step = trainer->report.evaluation_step,
                                                  .loss = trainer->report.evaluation_loss}};

    if (trainer->report.evaluation_step > 0)
        control_send(trainer->control, &message);
}

int report_join(struct trainer *trainer, int holder, struct fleet_error *err)
{
    struct charts *charts = &trainer->report.charts;
    int64_t step = trainer_steps(trainer, trainer->progress.committed);
    struct fleet_error reason;

    /* the rank that had to report the step may have died; the agent drops repetitions */
    send_evaluation(trainer);
    if (!charts->log)
        return 0;
    if (comm_broadcast(trainer->net.comm, &charts->points, sizeof(charts->points), holder,
                       trainer_deadline_ms(trainer), err) < 0)
        return fleet_error_wrap(err, "receive the charts");
    if (trainer->generation.rank == 0 && charts_resume(charts, step, &reason) < 0)
        trainer_warn(trainer, "%s; training goes on without", reason.text);
    return 0;
}

/* The times are of the whole update: its last step shows them. */
static void chart_times(const struct trainer_report *report, struct chart_point *point)
{
    const struct fleet_step_times *times = &report->times;

    point->values[CHART_STEP] = report->total_s;
    point->values[CHART_DATA] = times->data_s;
    point->values[CHART_FORWARD] = times->forward_s;
    point->values[CHART_BACKWARD] = times->backward_s;
    point->values[CHART_EXCHANGE] = times->exchange_s;
    point->values[CHART_OPTIMIZER] = times->optimizer_s;
    point->values[CHART_HIDDEN] = times->hidden_s;
}

static void chart_step(struct trainer *trainer, int64_t update, const struct link_step *step)
{
    struct chart_point point = chart_point_now(step->step);

    point.values[CHART_LOSS] = step->loss;
    point.values[CHART_TOKENS_PER_SECOND] = step->tokens_per_second;
    if (step->has_update) {
        point.values[CHART_NORM] = step->gradient_norm;
        point.values[CHART_RATE] = step->learning_rate;
    }
    if (step->step == trainer_steps(trainer, update)) {
        chart_times(&trainer->report, &point);
        if (not_finite_is_counted(trainer)) /* also of an update that was skipped */
            point.values[CHART_NOT_FINITE] = (double)trainer->progress.not_finite;
    }
    if (loss_scaling_is_on(trainer->job.rules.strategy)) {
        point.values[CHART_LOSS_SCALE] = (double)trainer->progress.ledger->scaling.scale;
        point.values[CHART_SKIPPED] = (double)trainer->progress.ledger->skipped;
    }
    charts_add(&trainer->report.charts, &point);
}

void report_evaluation(struct trainer *trainer, int64_t step, double loss)
{
    struct chart_point point = chart_point_now(step);

    trainer->report.evaluation_step = step;
    trainer->report.evaluation_loss = loss;
    send_evaluation(trainer);
    point.values[CHART_EVALUATION] = loss;
    charts_add(&trainer->report.charts, &point);
    write_charts(trainer);
    if (trainer->generation.rank == 0) {
        (void)printf("held-out loss after step %" PRId64 ": %.4f\n", step, loss);
        (void)fflush(stdout);
    }
}

/* ---- the log --------------------------------------------------------------------------------- */

static void log_step(struct trainer *trainer, int64_t update, const struct link_step *step)
{
    struct step_line line = {.step = step->step,
                             .steps = trainer->job.config.steps,
                             .loss = step->loss,
                             .norm = step->has_update ? step->gradient_norm : NAN,
                             .learning_rate = step->has_update ? step->learning_rate : NAN,
                             .tokens_per_second = step->tokens_per_second,
                             .eta_s = step->step < trainer->job.config.steps
                                          ? (double)(trainer->job.config.steps - step->step) *
                                                trainer->report.step_mean_s
                                          : NAN,
                             .is_skipped = step->step == trainer_steps(trainer, update) &&
                                           trainer_is_complete(trainer, update) &&
                                           !step->has_update};

    fleet_strbuf_clear(&trainer->report.line);
    step_line_append(&line, &trainer->report.line);
    (void)puts(trainer->report.line.text);
    (void)fflush(stdout);
}

/* Report an update that was skipped, once for the whole job. */
static void report_skipped(struct trainer *trainer, int64_t update)
{
    int64_t step = trainer_steps(trainer, update);

    if (trainer->generation.rank != 0 || !trainer_is_complete(trainer, update) ||
        trainer->progress.verdict == LEDGER_APPLY)
        return;
    if (trainer->health.diagnosis[0])
        trainer_warn(trainer, "%s", trainer->health.diagnosis);
    if (trainer->progress.verdict == LEDGER_OVERFLOW || trainer->progress.verdict == LEDGER_ZERO)
        trainer_warn(trainer,
                     "step %" PRId64 ": the gradient overflowed, %s; loss scale now %g (%" PRId64
                     " of %" PRId64 " updates skipped so far)",
                     step,
                     trainer->progress.verdict == LEDGER_ZERO ? "a zero gradient was applied"
                                                              : "update skipped",
                     (double)trainer->progress.ledger->scaling.scale,
                     trainer->progress.ledger->skipped, update);
    else
        trainer_warn(trainer, "step %" PRId64 ": the loss jumped to %g, update skipped%s", step,
                     trainer->progress.batch_losses[trainer_batches(trainer, update) - 1],
                     trainer->progress.verdict == LEDGER_ROLLBACK ? ", back to the last checkpoint"
                                                                  : "");
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void measure_mean(struct trainer *trainer, int64_t batches)
{
    double step_s = trainer->report.total_s / (double)batches;

    trainer->report.step_mean_s =
        trainer->report.step_mean_s > 0
            ? MEAN_KEEP * trainer->report.step_mean_s + (1 - MEAN_KEEP) * step_s
            : step_s;
}

void report_update(struct trainer *trainer, int64_t update)
{
    struct link_message message = {.kind = LINK_PROGRESS, .generation = trainer->generation.id};
    int64_t batches = trainer_batches(trainer, update), every = trainer->job.config.log.every_steps;

    measure_mean(trainer, batches);
    for (int64_t b = 0; b < batches; b++) {
        struct link_step step = step_of(trainer, update, b);
        message.progress.steps[message.progress.count++] = step;
        trainer->report.last_loss = step.loss;
        if (message.progress.count == LINK_STEPS_MAX || b == batches - 1) {
            control_send(trainer->control, &message);
            message.progress.count = 0;
        }
        if (step.step % every == 0 || step.step == trainer->job.config.steps) {
            chart_step(trainer, update, &step);
            if (trainer->generation.rank == 0)
                log_step(trainer, update, &step);
        }
    }
    write_charts(trainer);
    report_skipped(trainer, update);
}
