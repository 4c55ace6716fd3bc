/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_CATCH_UP_H
#define AGENT_RUNTIME_JOIN_CATCH_UP_H

/* Bringing a rank to the update that the ranks of its generation go on from. */

struct fleet_error;
struct peer_state;
struct trainer;

/*
 * Bring this rank to the update of rank `holder`: by the gradient that it holds, or by what others
 * send. Then the divided state moves to its new places. All ranks call it with the same list.
 * -ECANCELED: a shard of the state is lost, so the next generation begins with the last checkpoint.
 * Other errors as train_run(). `err` may not be NULL.
 */
int catch_up(struct trainer *trainer, const struct peer_state *all, int holder,
             struct fleet_error *err);

#endif
