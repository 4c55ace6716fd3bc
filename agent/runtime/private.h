/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_PRIVATE_H
#define AGENT_RUNTIME_PRIVATE_H

/*
 * State that is each rank's own, when ranks come and go:
 *
 *   localsgd  parameters between two averages. If a rank is new or lost, those that stayed average
 *             at once, and the new ones start from that (spec/strategy.md 12).
 *   dgc       u and v of the tensors that take part, from the sparse phase on. Those of a lost rank
 *             are gone, a new rank starts with zeros (14.2).
 *
 * Rank 0 says what it cost. `err` may not be NULL anywhere here.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct state_part;
struct trainer;

/* What a rank tells the others of it; plain bytes between equal builds. */
struct private_peer {
    int64_t has_average; /* its parameters are the average behind its newest update */
    int64_t is_copy;     /* they are another rank's */
    int64_t world;       /* ranks of the generation that its state is of, 0 = it has none */
    int64_t is_newcomer; /* set by the caller of private_join() */
};

void private_describe(const struct trainer *trainer, struct private_peer *out);

/* An average changes this part of the state. */
bool private_is_averaged(const struct trainer *trainer, const struct state_part *part);

/* Parameters are those of a start or a checkpoint: what is derived from them. */
int private_begin(struct trainer *trainer, struct fleet_error *err);

/* All ranks have the state of peers[holder]; settle what is their own. */
int private_join(struct trainer *trainer, const struct private_peer *peers, int holder,
                 struct fleet_error *err);

#endif
