/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_VOTE_H
#define AGENT_RUNTIME_VOTE_H

/*
 * The vote before an update: a small exchange between ALL ranks of the generation.
 * A rank that votes holds the complete reduced gradient of the update and keeps it until the
 * commit. Only a rank that has seen every vote applies the update; so, if one rank has applied it,
 * every survivor has voted and can apply it by itself. Nothing is ever rolled back.
 *
 * The votes also carry what every rank needs to know of the others' micro-batches: of each leaf a
 * row of floats (its loss, its batch statistics), whether anything was infinite, and whether all
 * are to save together.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/comm/comm.h"

struct fleet_error;

struct vote {
    int64_t update;  /* number of the update, from 1 */
    bool is_finite;  /* the gradient has no NaN or infinity */
    bool is_local;   /* each rank has a gradient of its own: is_finite becomes that of all */
    bool calls;      /* in: this rank wants all to save behind the update; out: any of them does */
    int64_t leaves;  /* micro-batches of the update */
    int64_t row;     /* floats of a leaf */
    float *rows;     /* [leaves][row]; own range filled in before, all of it afterwards */
    void *workspace; /* vote_workspace() bytes, 16-byte aligned */
};

/* Bytes of struct vote's workspace, for any rank of that world. */
size_t vote_workspace(int world, int64_t leaves, int64_t row);

/*
 * Cast the own vote and wait for all others. On success vote->rows is complete. -EPROTO if a rank
 * votes for another update or the ranks disagree on is_finite of one complete gradient (theirs
 * differ: a broken machine); otherwise as comm_exchange().
 */
int vote_cast(struct comm *comm, struct vote *vote, double deadline_ms, struct fleet_error *err);

#endif
