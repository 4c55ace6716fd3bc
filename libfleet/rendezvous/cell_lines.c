/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/rendezvous/cell_lines.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/strategy/cells.h"

void cell_lines_init(struct cell_lines *lines, const struct topology *grid)
{
    *lines = (struct cell_lines){.grid = grid, .cells = cells_count(grid)};
    lines->whole = calloc((size_t)lines->cells, sizeof(*lines->whole));
    fleet_assert(lines->whole != NULL);
}

void cell_lines_release(struct cell_lines *lines)
{
    free(lines->whole);
    free(lines->held);
}

/* The first divided part says how many shards there are. */
static void use_shards(struct cell_lines *lines, int shards)
{
    if (lines->shards > 0)
        return;
    lines->shards = shards;
    lines->held = calloc((size_t)lines->cells * (size_t)shards, sizeof(*lines->held));
    fleet_assert(lines->held != NULL);
}

static void mark(struct cell_lines *lines, struct cell_place place,
                 const struct fleet_division *division)
{
    if (division->shards > 0)
        use_shards(lines, division->shards);
    if (division->shards != lines->shards || division->replicas <= place.replica) {
        lines->whole[place.cell] = true;
        return;
    }
    for (int shard = 0; shard < lines->shards; shard++)
        if (fleet_division_holds(division, shard, place.replica))
            lines->held[place.cell * lines->shards + shard] = true;
}

void cell_lines_add(struct cell_lines *lines, const struct fleet_part *part, int processes,
                    const struct topology *to, int first_rank)
{
    struct topology had;

    if (part->world == 0 || !cells_resize(lines->grid, part->world, &had))
        return;
    for (int i = 0; i < processes && part->rank + i < had.world; i++) {
        struct cell_place place = cells_place(&had, part->rank + i);
        if (i < FLEET_PART_PROCESSES && part->lacking >> i & 1)
            continue;
        if (!to || cells_place(to, first_rank + i).cell == place.cell)
            mark(lines, place, &part->division);
    }
}

int cell_lines_lost(const struct cell_lines *lines, int *shard)
{
    for (int cell = 0; cell < lines->cells; cell++) {
        int lost = FLEET_DIVISION_NOBODY, held = 0;
        for (int s = lines->shards - 1; s >= 0; s--) {
            held += lines->held[cell * lines->shards + s];
            lost = lines->held[cell * lines->shards + s] ? lost : s;
        }
        if (lines->whole[cell] || (held > 0 && held == lines->shards))
            continue;
        *shard = held > 0 ? lost : FLEET_DIVISION_NOBODY;
        return cell;
    }
    return CELL_LINES_WHOLE;
}
