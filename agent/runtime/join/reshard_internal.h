/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_RESHARD_INTERNAL_H
#define AGENT_RUNTIME_JOIN_RESHARD_INTERNAL_H

/*
 * What the files of reshard.h share, for them alone: reshard.c (the whole), reshard_maps.c (which
 * rank holds what), reshard_move.c (from rank to rank), reshard_files.c (from a checkpoint).
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/join/reshard.h"
#include "libfleet/plan/memory_plan.h"
#include "libfleet/plan/ownership.h"

struct trainer;

#define RESHARD_READ_MS 3600e3 /* a disk may be slow; a rank that dies breaks the connection */

/* Of each slot. */
extern const enum memory_segment reshard_segments[RESHARD_SLOTS];
extern const enum ownership_space reshard_spaces[RESHARD_SLOTS];

/* The divided spaces of one rank: its map, and its memory. */
struct reshard_side {
    const struct ownership *map;
    int replica;
    float *states[RESHARD_SLOTS]; /* of the slots that are divided */
};

/* Slots [0, result) are divided. */
int reshard_slots(const struct trainer *trainer);

/* ---- reshard_maps.c -------------------------------------------------------------------------- */

/* The maps of the memory that the peers hold; few differ. */
struct reshard_maps {
    struct ownership *maps; /* [world]; replicas 0: that of another rank is the same */
    int *of;                /* [world] index into maps, -1 = holds nothing */
    int world;
};

void reshard_maps_init(struct reshard_maps *maps, const struct trainer *trainer,
                       const struct reshard_peer *peers);
void reshard_maps_release(struct reshard_maps *maps);

/* By this map the replica holds what is divided of the parameter at `element`. */
bool reshard_holds(const struct ownership *map, int64_t element, int replica);

/* Rank r holds it in its memory. */
bool reshard_has(const struct reshard_maps *maps, const struct reshard_peer *peers, int r,
                 int64_t element);

/* The lowest rank that holds it, or -1. */
int reshard_source_of(const struct reshard_maps *maps, const struct reshard_peer *peers,
                      int64_t element);

/* ---- reshard_move.c, reshard_files.c --------------------------------------------------------- */

/* Fill this rank's new places from its old ones and from other ranks' memory; send to others what
 * they need of it. Errors of the collectives. */
int reshard_move(struct trainer *trainer, const struct reshard_peer *peers,
                 const struct reshard_side *from, const struct reshard_side *to,
                 struct fleet_error *err);

/* Fill this rank's places from the checkpoint that the first rank reads. The first rank needs room
 * for one more rank's part meanwhile. Errors of the collectives, and of reading. */
int reshard_read_files(struct trainer *trainer, const struct reshard_side *to,
                       struct fleet_error *err);

#endif
