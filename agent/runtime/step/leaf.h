/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_LEAF_H
#define AGENT_RUNTIME_STEP_LEAF_H

/*
 * The samples of one leaf, that is, of one micro-batch of an update: which they are, and how they
 * come into the program's input variables. Leaves of an update count from 0.
 */

#include <stdint.h>

#include "agent/runtime/executor/executor.h"

struct fleet_error;
struct trainer;

/* The scalars for the run of leaf `leaf` of `update`. */
struct run_scalars leaf_scalars(const struct trainer *trainer, int64_t update, int64_t leaf);

/* Copy the samples of the leaf into the program's input variables, whose memory is that of `bases`.
 * Errors as dataset_read(). */
int leaf_load(struct trainer *trainer, int64_t update, int64_t leaf,
              const struct executor_bases *bases, struct fleet_error *err);

/* Have the samples of the leaf read meanwhile; those of an update after the last one are not. */
void leaf_want(struct trainer *trainer, int64_t update, int64_t leaf);

#endif
