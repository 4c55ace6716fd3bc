/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_VOTE_H
#define AGENT_RUNTIME_STEP_VOTE_H

/*
 * The vote before an update: a small exchange between all ranks of the generation. A rank that
 * votes holds the complete reduced gradient of the update and keeps it until the commit. Only a
 * rank that has every vote applies the update. So if one rank has applied it, every survivor has
 * voted and can apply it alone. No update is ever taken back.
 *
 * The votes also carry data that every rank needs from the others: for each leaf a row of floats
 * (its loss, its batch statistics), whether the gradient is finite, and whether all ranks save
 * together.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/strategy/topology.h"

struct fleet_error;

struct vote {
    int64_t update; /* number of the update, from 1 */
    bool is_finite; /* the gradient has no NaN or infinity */
    bool is_local;  /* ranks have gradients, or parts, of their own; out: is_finite is of all */
    bool in_turn;   /* ranks run leaves in turn: tree_share_of() */
    bool calls;     /* in: this rank wants all to save after the update; out: any rank wants it */
    int64_t leaves; /* micro-batches of the update */
    int64_t row;    /* floats of a leaf */
    float *rows;    /* [leaves][row]; in: the own range; out: all */
    const struct topology *grid; /* of the ranks; those of the last cell have the losses */
    void *workspace;             /* vote_workspace() bytes, 16-byte aligned */
};

/* Bytes of struct vote's workspace, for any rank of a world of that size. */
size_t vote_workspace(int world, int64_t leaves, int64_t row);

/*
 * Send this rank's vote and wait for all others. On success vote->rows is complete. -EPROTO if a
 * rank votes for another update, or if the ranks disagree on is_finite of one complete gradient
 * (then their copies differ, and a machine is defective). Other errors as comm_exchange().
 */
int vote_cast(struct comm *comm, struct vote *vote, double deadline_ms, struct fleet_error *err);

#endif
