/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_TRAIN_H
#define AGENT_RUNTIME_TRAIN_H

/*
 * The steps of a generation, one update after the other.
 * `err` may not be NULL anywhere here.
 */

#include <stdint.h>

#include "agent/runtime/executor/executor.h"

struct fleet_error;
struct trainer;

/*
 * Step until the job is complete (0), a peer is lost or the generation aborted (-ECONNRESET,
 * -ECONNABORTED, -ETIMEDOUT, -ECANCELED: join the next one), the agent asked to leave (-EINTR), or
 * something is wrong for good (any other error).
 */
int train_run(struct trainer *trainer, struct fleet_error *err);

/* What leaf `leaf` of `update` is run with. */
struct run_scalars train_leaf_scalars(const struct trainer *trainer, int64_t update, int64_t leaf);

/* Put its samples into the program's input variables. Errors as dataset_read(). */
int train_load_leaf(struct trainer *trainer, int64_t update, int64_t leaf, struct fleet_error *err);

#endif
