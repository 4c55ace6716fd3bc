/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_RESHARD_H
#define AGENT_RUNTIME_JOIN_RESHARD_H

/*
 * Moves divided state at the beginning of a generation: from its places in the old map to its
 * places in the new one. Nothing else moves. The old memory stays until the new one is complete. So
 * a generation that breaks meanwhile loses nothing: each rank then holds its part by the old map or
 * by the new one, and reports which.
 *
 * All calls concern one cell. In this header a rank, the first rank and a peer are replicas of it.
 *
 *     the new holder has it by its old map ─▶ a copy in its own memory
 *     else the lowest rank that has it     ─▶ a message, with the values of the parameter
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/division.h"

struct fleet_error;
struct placement;
struct trainer;

/* The arrays of a rank's divided state: one of each optimizer state, then the parameters. */
#define RESHARD_VALUES 2
#define RESHARD_SLOTS  3

/* The source of a rank's divided state. */
enum reshard_source {
    RESHARD_NONE,  /* none: the rank is a newcomer */
    RESHARD_HELD,  /* the rank's memory */
    RESHARD_ZERO,  /* the initial one: before the first update */
    RESHARD_FILES, /* the checkpoint that save_restore() has found */
};

/* The state that a rank holds, described in plain numbers that can be sent. */
struct reshard_peer {
    int64_t source;                    /* enum reshard_source */
    int64_t replicas, shards, replica; /* HELD: of its map */
};

/* The description of this rank, from its placement. */
struct reshard_peer reshard_own(const struct trainer *trainer);

/* The same for the hub, which asks each member what it holds. */
struct fleet_part reshard_part(const struct trainer *trainer);

/* For a job that can divide its state, but does not with this generation's number of ranks:
 * allocate memory for the whole state. The first generation calls it; trainer_open() does not.
 * -ENOMEM. */
int reshard_undivided(struct trainer *trainer, struct fleet_error *err);

/* A shard that none of peers[replicas] holds; -1 if together they hold the whole state. */
int reshard_lost(const struct trainer *trainer, const struct reshard_peer *peers);

/*
 * Move the divided state to its places in the generation's map, and make these the trainer's
 * placement. *out_has_moved: some addresses have changed, so the executor must be made again. All
 * ranks call it with the same list, in which no shard is lost. Errors: those of the collectives, of
 * reading files (first rank), and -ENOMEM. After an error a rank still holds what it held before.
 */
int reshard_apply(struct trainer *trainer, const struct reshard_peer *peers, bool *out_has_moved,
                  struct fleet_error *err);

/* All ranks call it after the first one has read the checkpoint that save_read() found. The first
 * rank fills the divided state of all ranks from that checkpoint. */
int reshard_read(struct trainer *trainer, struct fleet_error *err);

#endif
