/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_GRADIENT_H
#define AGENT_RUNTIME_GRADIENT_H

/*
 * Whose gradient slot 0 holds behind the exchange of an update. As a rule that of the whole job.
 * With localsgd, where nothing is exchanged, that of the rank's own leaves. With dgc, in the sparse
 * phase, the same for the tensors that take part, and net.messages holds what all ranks send of
 * them. On one worker it is always the whole job's.
 */

#include <stdint.h>

struct fleet_error;
struct leaf_range;
struct trainer;

/* Have memory for the messages of dgc in this generation. -ENOMEM. */
int gradient_reserve(struct trainer *trainer, struct fleet_error *err);

/* Say in progress.gradient, and to the exchange, what `update` is going to make. Before anything of
 * it runs. */
void gradient_begin(struct trainer *trainer, int64_t update, const struct leaf_range *range);

/* Where nothing is exchanged: the sum of the rank's own leaves into slot 0. */
void gradient_fold(struct trainer *trainer, const struct leaf_range *range);

#endif
