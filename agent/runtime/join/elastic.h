/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_ELASTIC_H
#define AGENT_RUNTIME_JOIN_ELASTIC_H

/*
 * Joining a generation, and leaving it.
 * `err` may not be NULL anywhere here.
 */

struct fleet_error;
struct link_message;
struct trainer;

/* FLEET_SHARED_MEMORY=0: ranks of one machine use TCP. -EINVAL: the value is neither 0 nor 1. */
int elastic_read_settings(struct trainer *trainer, struct fleet_error *err);

/*
 * Join the generation that `assign` describes: connect, agree on the step, bring every rank there.
 * Errors as train_run().
 */
int elastic_join(struct trainer *trainer, const struct link_message *assign,
                 struct fleet_error *err);

/* Leave the generation: close its connections. The state stays. */
void elastic_leave(struct trainer *trainer);

#endif
