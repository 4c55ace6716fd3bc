/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_REPORT_H
#define AGENT_RUNTIME_REPORT_H

/*
 * Reports on the trainer's steps, to the agent, the log and TensorBoard.
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/charts.h"
#include "agent/runtime/executor/executor.h"
#include "libfleet/base/step_times.h"
#include "libfleet/base/strbuf.h"

struct fleet_error;
struct trainer;

/* The part of a trainer that this file keeps. */
struct trainer_report {
    struct fleet_step_times times; /* of the update at work, then of the newest committed one */
    double total_s;                /* the whole time of that update */
    struct executor_times executor_before; /* at the start of the update at work */
    double step_started_ms;                /* start of the update at work */
    double step_longest_ms;                /* longest update of this process so far */
    double step_mean_s;       /* mean time of a batch, to estimate the end; 0 = not known */
    struct charts charts;     /* of all ranks; rank 0 writes them */
    struct fleet_strbuf line; /* of the log */
    double last_loss;         /* of the newest step that was reported */
    int64_t evaluation_step;  /* newest evaluation of this process, 0 = none */
    double evaluation_loss;
    int64_t evaluated; /* newest update whose evaluation has been reported */
};

/* Continue the charts in a generation that is being joined, from the points of `holder`, the rank
 * that had the newest state. All ranks call it. Errors as train_run(). */
int report_join(struct trainer *trainer, int holder, struct fleet_error *err);

/* Report the steps of the update that was just committed, or an evaluation. */
void report_update(struct trainer *trainer, int64_t update);
void report_evaluation(struct trainer *trainer, int64_t step, double loss);

#endif
