/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/cells.h"

#include "libfleet/base/assert.h"

/* Slowest first: invariant (2). */
static const enum topology_axis cell_axes[] = {TOPOLOGY_PIPELINE, TOPOLOGY_SEQUENCE,
                                               TOPOLOGY_MODEL};
static const enum topology_axis replica_axes[] = {TOPOLOGY_DATA, TOPOLOGY_SHARDING};

#define CELL_AXES    (int)(sizeof(cell_axes) / sizeof(cell_axes[0]))
#define REPLICA_AXES (int)(sizeof(replica_axes) / sizeof(replica_axes[0]))

static int product(const struct topology *grid, const enum topology_axis *axes, int count)
{
    int ranks = 1;

    for (int i = 0; i < count; i++)
        ranks *= grid->degree[axes[i]];
    return ranks;
}

/* The number whose digits, the slowest axis first, are the coordinates along `axes`. */
static int join(const struct topology *grid, const enum topology_axis *axes, int count,
                const int *at)
{
    int number = 0;

    for (int i = 0; i < count; i++)
        number = number * grid->degree[axes[i]] + at[axes[i]];
    return number;
}

static void split(const struct topology *grid, const enum topology_axis *axes, int count,
                  int number, int *at)
{
    for (int i = count - 1; i >= 0; i--) {
        at[axes[i]] = number % grid->degree[axes[i]];
        number /= grid->degree[axes[i]];
    }
}

int cells_count(const struct topology *grid)
{
    return product(grid, cell_axes, CELL_AXES);
}

int cells_replicas(const struct topology *grid)
{
    return product(grid, replica_axes, REPLICA_AXES);
}

struct cell_place cells_place(const struct topology *grid, int rank)
{
    int at[TOPOLOGY_AXES];

    topology_coordinates(grid, rank, at);
    return (struct cell_place){.cell = join(grid, cell_axes, CELL_AXES, at),
                               .replica = join(grid, replica_axes, REPLICA_AXES, at)};
}

int cells_rank(const struct topology *grid, struct cell_place place)
{
    int at[TOPOLOGY_AXES] = {0};

    fleet_assert(0 <= place.cell && place.cell < cells_count(grid) && 0 <= place.replica &&
                 place.replica < cells_replicas(grid));
    split(grid, cell_axes, CELL_AXES, place.cell, at);
    split(grid, replica_axes, REPLICA_AXES, place.replica, at);
    return topology_rank(grid, at);
}

int cells_coordinate(const struct topology *grid, int cell, enum topology_axis axis)
{
    int at[TOPOLOGY_AXES] = {0};

    split(grid, cell_axes, CELL_AXES, cell, at);
    return at[axis];
}

bool cells_resize(const struct topology *grid, int world, struct topology *out)
{
    int others = grid->degree[TOPOLOGY_SHARDING] * cells_count(grid);

    if (world < 1 || world % others != 0)
        return false;
    *out = *grid;
    out->degree[TOPOLOGY_DATA] = world / others;
    out->world = world;
    return true;
}

bool cells_stay(const struct topology *least, const struct topology *grid)
{
    struct topology resized;

    if (cells_count(least) != cells_count(grid) || !cells_resize(least, grid->world, &resized))
        return false;
    for (int rank = 0; rank < grid->world; rank++)
        if (cells_place(&resized, rank).cell != cells_place(grid, rank).cell)
            return false;
    return true;
}
