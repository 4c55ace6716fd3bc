/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_CELL_COVER_H
#define LIBFLEET_RENDEZVOUS_CELL_COVER_H

/*
 * Which members must stay in their cells, so that a whole state stays?
 *
 * cell_assign.h chooses survivors one after the other. Where single processes have lost their
 * parts, the choice may leave out the only holder of a line (cell_lines.h), though another choice
 * keeps all lines. This module finds such a choice:
 *
 *                    of cell 0, by its      of cell 1, by its
 *                    first process          second process
 *     member a       shard 0                shard 0
 *     member b       shard 1                nothing
 *     member c       nothing                shard 1             a, b and c need three seats
 *     member d       shards 0 and 1         nothing
 *     member e       nothing                shards 0 and 1      d and e need two
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/base/division.h"
#include "libfleet/strategy/topology.h"

struct cell_holder {
    struct fleet_part part; /* that it holds; world 0 = nothing */
    int cell;               /* of its first process, whose seats it may stay in */
    bool is_needed;         /* out */
};

/*
 * Mark the holders[count] that must stay: together they hold each line that any of them holds, and
 * each cell has enough of `seats` seats for those of its members. `seats` is a multiple of
 * cell_assign_step(). All members have `processes` ranks. False: there is no such choice, or the
 * search needs too many tries (a tenth of a second); nobody is marked. Pure.
 */
bool cell_cover(struct cell_holder *holders, size_t count, const struct topology *grid,
                int processes, int seats);

#endif
