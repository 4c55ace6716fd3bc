/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_CELL_LINES_H
#define LIBFLEET_RENDEZVOUS_CELL_LINES_H

/*
 * Do some members together hold a whole state, where ranks share a model? Each cell
 * (strategy/cells.h) has an ownership map of its own, so a state has a line for each shard of each
 * cell. It is whole if every line has a holder.
 *
 *     struct cell_lines lines;
 *     cell_lines_init(&lines, &grid);
 *     … cell_lines_add(&lines, &part, processes, NULL, 0);
 *     lost = cell_lines_lost(&lines, &shard);
 *     cell_lines_release(&lines);
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/base/division.h"
#include "libfleet/strategy/topology.h"

#define CELL_LINES_WHOLE (-1)

struct cell_lines {
    const struct topology *grid;
    int cells, shards; /* shards: of a divided part; 0 = none has come */
    bool *whole;       /* [cells] held without a division, or only the ranks can say what is lost */
    bool *held;        /* [cells * shards] */
};

/* `grid` is that of the job with any number of ranks; it is borrowed until the release. */
void cell_lines_init(struct cell_lines *lines, const struct topology *grid);
void cell_lines_release(struct cell_lines *lines);

/*
 * A member of so many `processes` holds `part`; one without a world holds nothing. With `to`, only
 * what it still holds as the ranks from `first_rank` on of that grid: a rank that moves to another
 * cell gives its state up.
 */
void cell_lines_add(struct cell_lines *lines, const struct fleet_part *part, int processes,
                    const struct topology *to, int first_rank);

/* The lowest cell with a line that has no holder; WHOLE: there is none. *shard: the shard of that
 * line; FLEET_DIVISION_NOBODY if nobody holds anything of the cell. */
int cell_lines_lost(const struct cell_lines *lines, int *shard);

#endif
