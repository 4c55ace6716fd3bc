/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_PEER_STATE_H
#define AGENT_RUNTIME_JOIN_PEER_STATE_H

/*
 * What the ranks of a generation hold when they have connected: each says it to all, and all draw
 * the same conclusions from it. Lists have an entry for each rank.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/join/reshard.h"
#include "agent/runtime/step/private.h"
#include "libfleet/base/digest.h"

struct fleet_error;
struct trainer;

/* A rank's report about itself to all ranks. Ranks of the same build send the struct as it is. */
struct peer_state {
    int64_t committed, voted;
    int64_t saved;           /* updates in the newest checkpoint that it knows */
    int64_t evaluated;       /* updates whose evaluation it has reported */
    int64_t evaluation_step; /* that evaluation */
    double evaluation_loss;
    int64_t has_jumped; /* its newest update asks to go back to a checkpoint */
    int64_t is_initial; /* its state is the initial one, which the seed determines */
    struct reshard_peer divided;
    int64_t is_finite; /* the gradient of its newest update had no inf or nan on any rank */
    struct private_peer private; /* what ranks do not share */
    uint8_t digest[FLEET_SHA256_SIZE];
};

/* Tell all ranks what this one holds, `divided` of the divided state, and learn the same of them:
 * all[world]. -EINVAL: a rank has another program or other data. Errors of the collective. */
int peer_state_exchange(struct trainer *trainer, bool is_initial, struct reshard_peer divided,
                        struct peer_state *all, struct fleet_error *err);

/* The lowest rank with the newest state, or -1 if there is no state at all. One whose parameters
 * are those of all ranks comes before others. */
int peer_state_newest(const struct peer_state *all, int world);

/* One update behind with that update's gradient in hand: it commits that update, and is there. */
bool peer_state_is_one_behind(const struct peer_state *peer, int64_t newest);

/* It has not got the newest update and cannot make it: it needs a whole state. */
bool peer_state_is_newcomer(const struct peer_state *peer, int64_t newest);

/* The lowest rank of `cell` that has the newest update, or will have it; -1: none has. One whose
 * parameters are those of all ranks comes before others. */
int peer_state_holder(const struct trainer *trainer, const struct peer_state *all, int cell,
                      int64_t newest);

/* A cell whose state no rank has; -1: together the ranks have a whole state. */
int peer_state_lost_cell(const struct trainer *trainer, const struct peer_state *all,
                         int64_t newest);

/* The newest update asks to go back to a checkpoint. A rank that has done so does it again, so that
 * all have. */
bool peer_state_has_jumped(const struct peer_state *all, int world, int64_t newest);

/* The divided state of our cell's ranks that are at the newest update, or will be: [replicas], to
 * be freed. */
struct reshard_peer *peer_state_divided(const struct trainer *trainer, const struct peer_state *all,
                                        int64_t newest);

#endif
