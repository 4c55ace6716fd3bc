/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_TRAIN_H
#define AGENT_RUNTIME_TRAIN_H

/*
 * The steps of a generation, one update after another.
 * `err` may not be NULL anywhere here.
 */

struct fleet_error;
struct trainer;

/*
 * Train until one of these:
 *     0                                     the job is complete
 *     -ECONNRESET, -ECONNABORTED,
 *     -ETIMEDOUT, -ECANCELED                a peer was lost or the generation was aborted: join the
 *                                           next generation
 *     -EINTR                                the agent has ordered this trainer to leave
 *     any other error                       a permanent failure
 */
int train_run(struct trainer *trainer, struct fleet_error *err);

#endif
