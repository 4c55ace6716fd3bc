/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_PRIVATE_H
#define AGENT_RUNTIME_STEP_PRIVATE_H

/*
 * State that each rank has for itself, and what happens to it when ranks come and go:
 *
 *   localsgd  The parameters between two averages. If a rank is new or lost, the ranks that stayed
 *             average at once, and the new ranks start from that average.
 *   dgc       u and v of the tensors that take part, from the sparse phase on. Those of a lost rank
 *             are lost; a new rank starts with zeros.
 *
 * A checkpoint holds these values of all ranks (private_save.h). Rank 0 reports the loss.
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct state_part;
struct trainer;

/* A rank's description of this state for the others. Plain bytes: all ranks run the same build. */
struct private_peer {
    int64_t has_average; /* its parameters are the average after its newest update */
    int64_t is_copy;     /* its parameters are those of another rank */
    int64_t world;       /* number of ranks in the generation of its state, 0 = no state */
    int64_t is_newcomer; /* set by the caller of private_join() */
};

void private_describe(const struct trainer *trainer, struct private_peer *out);

/* True if an average changes this part of the state. */
bool private_is_averaged(const struct trainer *trainer, const struct state_part *part);

/* Set the state that is derived from parameters, after a start or from a checkpoint. */
int private_begin(struct trainer *trainer, struct fleet_error *err);

/* All ranks have the common state of peers[holder]. Set the state that is each rank's own. */
int private_join(struct trainer *trainer, const struct private_peer *peers, int holder,
                 struct fleet_error *err);

/* All ranks have gone back to a checkpoint of update `update`, which rank 0 has read: dgc's u and v
 * are those of that checkpoint again. All ranks call it. */
int private_go_back(struct trainer *trainer, int64_t update, struct fleet_error *err);

#endif
