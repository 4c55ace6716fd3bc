/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_LOST_SHARD_H
#define AGENT_RUNTIME_JOIN_LOST_SHARD_H

/*
 * A shard can be lost in one cell alone: only the ranks of that cell see that nobody holds it. All
 * ranks must give up the state then.
 */

struct fleet_error;
struct trainer;

/*
 * `*lost` is the shard that this rank's cell has lost, or -1 (reshard_lost()). If it is -1, it
 * becomes the one that the lowest cell with a loss has lost. All ranks of the generation call it.
 * Nothing is sent if the job has one cell, or cannot divide its state. Errors as comm_all_gather().
 */
int lost_shard_agree(struct trainer *trainer, int *lost, struct fleet_error *err);

#endif
