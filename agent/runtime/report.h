/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_REPORT_H
#define AGENT_RUNTIME_REPORT_H

/*
 * What the trainer says of its steps: to the agent, the log and TensorBoard.
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
    double total_s;                /* the whole time of that */
    struct executor_times executor_before; /* when the update at work was begun */
    double step_started_ms;                /* when the update at work was begun */
    double step_longest_ms;                /* of this process so far, by an update */
    double step_mean_s;       /* mean time of a batch, for what is left; 0 = not known */
    struct charts charts;     /* of all ranks; rank 0 writes them */
    struct fleet_strbuf line; /* of the log */
    double last_loss;         /* of the newest step that was reported */
    int64_t evaluation_step;  /* newest evaluation of this process, 0 = none */
    double evaluation_loss;
    int64_t evaluated; /* newest update whose evaluation has been reported */
};

/* A generation is being joined, `holder` has had the newest state: the charts go on from there. All
 * ranks call it; errors as train_run(). */
int report_join(struct trainer *trainer, int holder, struct fleet_error *err);

/* Tell of the steps of the update just committed: the agent, the log, TensorBoard. */
void report_update(struct trainer *trainer, int64_t update);
void report_evaluation(struct trainer *trainer, int64_t step, double loss);

#endif
