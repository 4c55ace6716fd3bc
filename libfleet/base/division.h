/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_DIVISION_H
#define LIBFLEET_BASE_DIVISION_H

/*
 * State that is divided into shards: which ranks hold which shard. The ownership map
 * (libfleet/plan/ownership.h) follows this rule. The hub uses it, too: it knows no program, but it
 * has to know whether the living members together hold a whole state.
 *
 * Rank r of `replicas` owns shard r mod shards. If a shard has one owner only, it has a buddy,
 * unless buddies are off.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLEET_DIVISION_NOBODY (-1)
#define FLEET_DIVISION_WHOLE  (-1) /* fleet_parts_lost(): no shard is known to be lost */

struct fleet_division {
    int replicas, shards; /* replicas >= shards >= 1; shards 0: nothing is divided */
    bool has_buddies;
};

/* The second holder of a shard that one rank would hold alone; NOBODY: it has none. */
int fleet_division_buddy(const struct fleet_division *division, int shard);

/* `replica` owns the shard, or is its buddy. */
bool fleet_division_holds(const struct fleet_division *division, int shard, int replica);

/* What one process, or all processes of one worker, hold of a divided state. All zero: the state is
 * not divided, so they hold all of it. */
struct fleet_part {
    struct fleet_division division;
    int first, count; /* as the replicas first … first + count - 1; count 0: not known */
    int lost;         /* 1 + a shard that ranks have found to be lost with its holders; 0 = none */
    /* Ranks share a model: the rank of the (first) process when it got this state, of `world`
     * ranks. Process i had rank + i. world 0: not known, or the job has no cells. */
    int rank, world;
    int64_t lacking; /* bit i: process i holds nothing of the state */
};

/* `lacking` is sent as a number of JSON: it has bits for so many processes. */
#define FLEET_PART_PROCESSES 52

/* True if the numbers of a part from outside fit together. */
bool fleet_part_is_sound(const struct fleet_part *part);

/* `part` becomes what both hold. Where that is not a row of replicas of one division, its count is
 * 0: not known. */
void fleet_part_add(struct fleet_part *part, const struct fleet_part *other);

/*
 * The lowest shard that none of parts[count] holds, or WHOLE. It is WHOLE also where only the ranks
 * can say what is lost: a part is not known, or the divisions differ, because a generation ended
 * while it moved state.
 */
int fleet_parts_lost(const struct fleet_part *parts, size_t count);

#endif
