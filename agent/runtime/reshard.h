/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_RESHARD_H
#define AGENT_RUNTIME_RESHARD_H

/*
 * Divided state at the beginning of a generation: what each rank holds by the old map goes to where
 * the new map wants it, and nothing else moves. The old memory stays until the new one is complete,
 * so a generation that breaks meanwhile loses nothing: each rank then holds its part by the old map
 * or by the new one, and says which.
 *
 *     the new holder has it by its old map ─▶ a copy in its own memory
 *     else the lowest rank that has it     ─▶ a message, with the values of the parameter
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct placement;
struct trainer;

/* Where the divided state of a rank comes from. */
enum reshard_source {
    RESHARD_NONE,  /* it has none: a newcomer */
    RESHARD_HELD,  /* its memory */
    RESHARD_ZERO,  /* it is zero everywhere: before the first update */
    RESHARD_FILES, /* the checkpoint that save_restore() has found */
};

/* What a rank holds, in plain numbers, so that it can be sent. */
struct reshard_peer {
    int64_t source;                    /* enum reshard_source */
    int64_t replicas, shards, replica; /* HELD: of its map */
};

/* Own memory, as the placement says. */
struct reshard_peer reshard_own(const struct trainer *trainer);

/* A job that might divide its state, but does not on the generation's number of ranks: memory for
 * all of it, which trainer_open() has left to the first generation. -ENOMEM. */
int reshard_undivided(struct trainer *trainer, struct fleet_error *err);

/* A shard that none of the peers [world] holds, or -1: together they have all of the state. */
int reshard_lost(const struct trainer *trainer, const struct reshard_peer *peers);

/*
 * Bring the divided state to the places that the generation's map gives, and make these the
 * trainer's placement; *out_has_moved: some lie elsewhere now, so that the executor is
 * stale. All ranks call it with the same list, in which no shard is lost. Errors as
 * those of the collectives, of reading files (first rank) and -ENOMEM; a rank that held something
 * keeps it where it was.
 */
int reshard_apply(struct trainer *trainer, const struct reshard_peer *peers, bool *out_has_moved,
                  struct fleet_error *err);

/* All ranks, when the first one has read the checkpoint that save_read() found: it fills the
 * divided state of all from it. */
int reshard_read(struct trainer *trainer, struct fleet_error *err);

#endif
