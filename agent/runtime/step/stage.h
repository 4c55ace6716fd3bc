/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_STAGE_H
#define AGENT_RUNTIME_STEP_STAGE_H

/*
 * A rank that is a stage of a pipeline (libfleet/program/passes/pipeline.h): its schedule for the
 * micro-batches of an update, and memory for those in flight. `err` may not be NULL anywhere here.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/executor/executor.h"

struct fleet_error;
struct leaf_range;
struct schedule;
struct trainer;

/* Seconds of a generation's updates. Both are 0 before the first one. */
struct stage_times {
    double total_s; /* from the first to the last action of each update */
    double busy_s;  /* of this: passes, additions, and reading samples */
};

struct trainer_stage {
    struct schedule
        *schedule; /* NULL: this replica has no micro-batches, or there is no pipeline */
    struct executor_bases *bases; /* [copies]; the first one is the state's own memory */
    int copies;
    int *copy_of;   /* [micro-batches] */
    int64_t update; /* at work */
    struct stage_times times;
};

/* True if the ranks of a replica are stages. */
bool stage_is_used(const struct trainer *trainer);

/* Which stage this rank is; 0 without a pipeline. */
int stage_number(const struct trainer *trainer);

/* Make the schedule of the generation's range of micro-batches, and allocate the copies of
 * memory. Placement, slots and communication are those of the generation. Does nothing without a
 * pipeline. -ENOMEM. */
int stage_open(struct trainer *trainer, struct fleet_error *err);

/* Free both, before plan and state change. Fine if nothing is open. */
void stage_close(struct trainer *trainer);

/*
 * Run the micro-batches of `update`, all stages of a replica at the same time: their gradients into
 * the slots, and on the last stage their losses into the rows. An incomplete update (any other
 * range than that of complete ones) runs forward passes alone. Errors as executor_run(), or of the
 * dataset.
 */
int stage_run(struct trainer *trainer, int64_t update, const struct leaf_range *range,
              struct fleet_error *err);

/* Write into the log, on rank 0, the time in which stages waited, as a part of the time in which
 * they computed, beside the bubble that the schedule has if messages take no time and a backward
 * pass takes twice as long as a forward pass. All ranks call it. Does nothing without a pipeline,
 * or before the first update of the generation. Errors as comm_all_gather(). */
int stage_report(struct trainer *trainer, struct fleet_error *err);

#endif
