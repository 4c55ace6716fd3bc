/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_DIAGNOSE_H
#define AGENT_RUNTIME_STEP_DIAGNOSE_H

/*
 * Finds the origin of a NaN or an infinity in a gradient.
 *
 * The search runs when the complete gradient of an update is not finite. The update has not been
 * applied yet. So the ranks run its micro-batches again, exactly as before, and check every tensor
 * after every operator. The search ends at the first of these causes:
 *
 *     parameters       they were not finite before the step: from an earlier update or their file
 *     micro-batches    in the first bad micro-batch, the first operator that wrote such a value
 *     sum              every micro-batch is finite, but their sum is not
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/executor/executor.h"

struct fleet_error;
struct leaf_range;
struct trainer;

#define DIAGNOSE_TEXT_SIZE 384

/* A tensor with values that are not finite. */
struct finding {
    bool is_found;
    bool is_nan;    /* else only infinities */
    int op, var;    /* of the program; op PROGRAM_NONE: no operator of the micro-batch wrote it */
    int64_t wrong;  /* values that are not finite */
    int64_t values; /* of the tensor */
};

/* Count the values that are not finite among `count` values of `type` in device memory. out->op and
 * out->var are unchanged. Integer types have no such values. */
void diagnose_values(struct backend *backend, enum program_type type, const void *values,
                     int64_t count, struct finding *out);

/* Find the first operator of a micro-batch that writes a value that is not finite. The inputs of
 * the micro-batch are already loaded. Overwrites the gradient space of `bases`. With
 * scalars->absent it only takes part in gathers. Errors as executor_run(). */
int diagnose_micro_batch(struct executor *executor, const struct program *program,
                         struct backend *backend, const struct executor_bases *bases,
                         const struct run_scalars *scalars, const atomic_bool *stop,
                         struct finding *out, struct fleet_error *err);

/*
 * Describe where the gradient of `update` went wrong, after the vote that it is not finite: "step
 * 12: NaN in 3 of 64 values of h.0.mlp.out, first written by operator linear (forward) for
 * micro-batch 2 on rank 1". All ranks call it at the same point and get the same text. Overwrites
 * slots[0]. Errors as train_run().
 */
int diagnose_update(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                    char out[DIAGNOSE_TEXT_SIZE], struct fleet_error *err);

#endif
