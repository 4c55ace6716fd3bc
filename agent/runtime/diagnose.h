/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DIAGNOSE_H
#define AGENT_RUNTIME_DIAGNOSE_H

/*
 * Where a NaN or an infinity in a gradient came from.
 *
 * It runs when the complete gradient of an update is not finite. The update has not been applied
 * yet, so its micro-batches can be run again, exactly as before, and every tensor is checked after
 * every operator. In this order:
 *
 *     parameters       not finite before the step: an update, or the file they came from, did it
 *     micro-batches    the first operator that wrote one, of the first micro-batch that has one
 *     sum              every micro-batch is finite, their sum is not
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

/* Count what is not finite in `count` values of `type` in device memory; out->op and var stay.
 * Types without infinities have none. */
void diagnose_values(struct backend *backend, enum program_type type, const void *values,
                     int64_t count, struct finding *out);

/* The first operator of a micro-batch, its inputs in place, that writes a value that is not finite.
 * Overwrites the gradient space of `bases`. Errors as executor_run(). */
int diagnose_micro_batch(struct executor *executor, const struct program *program,
                         struct backend *backend, const struct executor_bases *bases,
                         const struct run_scalars *scalars, const atomic_bool *stop,
                         struct finding *out, struct fleet_error *err);

/*
 * Say where the gradient of `update`, just voted to be not finite, went wrong, in words:
 * "step 12: NaN in 3 of 64 values of h.0.mlp.out, first written by operator linear (forward) for
 * micro-batch 2 on rank 1". All ranks call it at the same point and get the same text. slots[0] is
 * overwritten. Errors as train_run().
 */
int diagnose_update(struct trainer *trainer, int64_t update, const struct leaf_range *range,
                    char out[DIAGNOSE_TEXT_SIZE], struct fleet_error *err);

#endif
