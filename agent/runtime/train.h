/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_TRAIN_H
#define AGENT_RUNTIME_TRAIN_H

/*
 * The steps of a generation, one update after another.
 * `err` may not be NULL anywhere here.
 */

#include <stdint.h>

#include "agent/runtime/executor/executor.h"

struct fleet_error;
struct trainer;

/*
 * Train until one of these:
 *     0                                     the job is complete
 *     -ECONNRESET, -ECONNABORTED,
 *     -ETIMEDOUT, -ECANCELED                a peer was lost or the generation was aborted: join the
 *                                           next generation
 *     -EINTR                                the agent has ordered this trainer to leave
 *     any other error                       a permanent failure
 */
int train_run(struct trainer *trainer, struct fleet_error *err);

/* The scalars for the run of leaf `leaf` of `update`. */
struct run_scalars train_leaf_scalars(const struct trainer *trainer, int64_t update, int64_t leaf);

/* Copy the samples of the leaf into the program's input variables, whose memory is that of `bases`.
 * Errors as dataset_read(). */
int train_load_leaf(struct trainer *trainer, int64_t update, int64_t leaf,
                    const struct executor_bases *bases, struct fleet_error *err);

/* Have the samples of the leaf read meanwhile; those of an update after the last one are not. */
void train_want_leaf(struct trainer *trainer, int64_t update, int64_t leaf);

#endif
