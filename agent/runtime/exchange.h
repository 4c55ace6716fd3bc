/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXCHANGE_H
#define AGENT_RUNTIME_EXCHANGE_H

/*
 * The exchange of gradients between the ranks, as the program's EXCHANGE section says. Before it a
 * rank holds the partial sums of its leaves, in the first slots; afterwards slot 0 of every rank
 * holds the same complete sum over all leaves.
 */

#include <stddef.h>

struct fleet_error;
struct leaf_range;
struct trainer;

/* Bytes of host memory (trainer.net.workspace) that the exchange takes in this generation. */
size_t exchange_workspace(const struct trainer *trainer);

/* Errors as those of the collectives in comm.h. */
int exchange_gradient(struct trainer *trainer, const struct leaf_range *range,
                      struct fleet_error *err);

#endif
