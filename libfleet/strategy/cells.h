/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_CELLS_H
#define LIBFLEET_STRATEGY_CELLS_H

/*
 * The grid as cells and replicas.
 *
 *   cell     the ranks with the same coordinates on the axes pipeline, sequence and model: they run
 *            the same program on the same parameters
 *   replica  one rank of each cell: together these have one whole model, so a replica has as many
 *            ranks as the job has cells
 *
 *                  cell 0   cell 1
 *     replica 0      0        1        8 ranks with a model degree of 2: 2 cells
 *     replica 1      2        3
 *     replica 2      4        5
 *     replica 3      6        7
 *
 * Invariants:
 *  (1) rank <-> (cell, replica) is a bijection.
 *  (2) Cells ascend with the stage, then with the sequence's part, then with the model rank.
 *      Replicas ascend with the data coordinate, then with the sharding coordinate. Neither depends
 *      on the order of the axes.
 *  (3) The replicas are the data axis and the sharding axis. More or fewer ranks of one job are
 *      more or fewer on the data axis: the number of cells stays.
 *
 * Pure.
 */

#include <stdbool.h>

#include "libfleet/strategy/topology.h"

struct cell_place {
    int cell, replica;
};

/* The number of cells, and the number of replicas: data times sharding. */
int cells_count(const struct topology *grid);
int cells_replicas(const struct topology *grid);

/* The place of `rank`, and back. */
struct cell_place cells_place(const struct topology *grid, int rank);
int cells_rank(const struct topology *grid, struct cell_place place);

/* The coordinate of all ranks of `cell` along TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE or
 * TOPOLOGY_PIPELINE. */
int cells_coordinate(const struct topology *grid, int cell, enum topology_axis axis);

/* The same grid with `world` ranks. False: `world` is no multiple of the degrees other than the
 * data degree. */
bool cells_resize(const struct topology *grid, int world, struct topology *out);

/* True if each rank of `grid` has the cell that it has in `least`, resized to as many ranks. It is
 * false where more ranks of a job become more shards, and the axis of the shards varies faster than
 * one of the cells. */
bool cells_stay(const struct topology *least, const struct topology *grid);

#endif
