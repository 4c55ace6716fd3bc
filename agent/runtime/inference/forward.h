/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_INFERENCE_FORWARD_H
#define AGENT_RUNTIME_INFERENCE_FORWARD_H

/*
 * The forward part of a job's program, ready to run: the same operators in the same order as in
 * training, without gradients and optimizer states.
 *
 *     forward_new()      plan of the job without its backward part, memory, kernels
 *     forward_load()     parameters and buffers
 *     executor_run(…, PROGRAM_SECTION_MICRO_BATCH, …) with scalars.evaluation
 *
 * Programs of one model with samples of different lengths can share parameters: a shorter one reads
 * the first rows of the table of positions.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"
#include "libfleet/checkpoint/job_record.h"

struct fleet_error;
struct weights;

struct forward {
    struct program program; /* forward operators alone */
    struct memory_plan memory;
    struct state state;
    struct executor *executor; /* NULL: holds parameters only */
    int inputs, targets;       /* input variables */
    int logits;                /* input of the cross-entropy; PROGRAM_NONE without one */
    bool borrows;              /* parameters and buffers belong to another struct forward */
};

struct forward_options {
    struct backend *backend;          /* borrowed for the life of the forward part */
    bool parameters_only;             /* only hold parameters that others share */
    bool without_loss;                /* end at the logits, which then stay in memory */
    const struct forward *parameters; /* share its parameters; NULL: own ones, zero */
};

/* Plan the job of `record`. -EINVAL with the plan's errors; -ENOMEM, -ENOTSUP. */
int forward_new(const struct job_record *record, const struct forward_options *options,
                struct forward **out, struct fleet_error *err);
void forward_free(struct forward *forward); /* NULL is fine */

/* Errors as weights_load(). */
int forward_load(struct forward *forward, const struct weights *weights, struct fleet_error *err);

#endif
