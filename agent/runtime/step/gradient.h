/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_GRADIENT_H
#define AGENT_RUNTIME_STEP_GRADIENT_H

/*
 * The gradient that slot 0 holds after the exchange of an update. Usually it is that of the whole
 * job. With localsgd nothing is exchanged, and it is that of the rank's own leaves. In the sparse
 * phase of dgc this is also true for the tensors that take part, and net.messages holds the
 * messages of all ranks for them. With one worker it is always that of the whole job.
 */

#include <stdint.h>

struct fleet_error;
struct leaf_range;
struct trainer;

/* Allocate memory for the messages of dgc in this generation. -ENOMEM. */
int gradient_reserve(struct trainer *trainer, struct fleet_error *err);

/* Set progress.gradient, and the messages of the exchange, for `update`, before any part of it
 * runs. */
void gradient_begin(struct trainer *trainer, int64_t update, const struct leaf_range *range);

/* If nothing is exchanged: add up the rank's own leaves in slot 0. */
void gradient_fold(struct trainer *trainer, const struct leaf_range *range);

#endif
