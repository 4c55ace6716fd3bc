/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A search with return: the line that the fewest members can still cover comes first, since each
 * choice needs one of them.
 */
#include "libfleet/rendezvous/cell_cover.h"

#include <stdint.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/rendezvous/cell_assign.h"
#include "libfleet/strategy/cells.h"

#define WORK_MAX 100000000 /* lines looked at, times holders */

struct search {
    struct cell_holder *holders;
    size_t count;
    int lines;
    bool *held;   /* [count * lines] */
    int *covered; /* [lines] by how many of the marked holders */
    int *left;    /* [cells] seats for members whose first process has this cell */
    int64_t work;
};

static bool holds(const struct search *s, size_t holder, int line)
{
    return s->held[holder * (size_t)s->lines + (size_t)line];
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int count_shards(const struct cell_holder *holders, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (holders[i].part.world > 0 && holders[i].part.division.shards > 0)
            return holders[i].part.division.shards;
    return 1;
}

/* The lines that the holder has: those of cell c begin at c * shards. */
static void find_lines(const struct cell_holder *holder, const struct topology *grid, int processes,
                       int shards, bool *held)
{
    const struct fleet_part *part = &holder->part;
    const struct fleet_division *division = &part->division;
    struct topology had;

    if (part->world == 0 || !cells_resize(grid, part->world, &had))
        return;
    for (int i = 0; i < processes && part->rank + i < had.world; i++) {
        struct cell_place place = cells_place(&had, part->rank + i);
        bool is_whole = division->shards != shards || division->replicas <= place.replica;
        if (i < FLEET_PART_PROCESSES && part->lacking >> i & 1)
            continue;
        for (int shard = 0; shard < shards; shard++)
            if (is_whole || fleet_division_holds(division, shard, place.replica))
                held[place.cell * shards + shard] = true;
    }
}

static bool is_held(const struct search *s, int line)
{
    for (size_t i = 0; i < s->count; i++)
        if (holds(s, i, line))
            return true;
    return false;
}

/* ---- the search ------------------------------------------------------------------------------ */

static bool may_stay(const struct search *s, size_t holder)
{
    return !s->holders[holder].is_needed && s->left[s->holders[holder].cell] > 0;
}

/* The uncovered line that the fewest holders can cover, or -1; *out: how many can. */
static int hardest_line(struct search *s, int *out)
{
    int hardest = -1;

    for (int line = 0; line < s->lines; line++) {
        int can = 0;
        if (s->covered[line] > 0)
            continue;
        s->work += (int64_t)s->count;
        for (size_t i = 0; i < s->count; i++)
            can += may_stay(s, i) && holds(s, i, line);
        if (hardest < 0 || can < *out) {
            hardest = line;
            *out = can;
        }
    }
    return hardest;
}

static void mark(struct search *s, size_t holder, bool is_needed)
{
    int change = is_needed ? 1 : -1;

    s->holders[holder].is_needed = is_needed;
    s->left[s->holders[holder].cell] -= change;
    for (int line = 0; line < s->lines; line++)
        s->covered[line] += holds(s, holder, line) ? change : 0;
}

/* Recursive: one holder at each depth, so at most as deep as there are seats. */
static bool cover_all(struct search *s)
{
    int can = 0, line = hardest_line(s, &can);

    if (line < 0)
        return true;
    for (size_t i = 0; i < s->count && can > 0 && s->work < WORK_MAX; i++) {
        if (!may_stay(s, i) || !holds(s, i, line))
            continue;
        mark(s, i, true);
        if (cover_all(s))
            return true;
        mark(s, i, false);
    }
    return false;
}

bool cell_cover(struct cell_holder *holders, size_t count, const struct topology *grid,
                int processes, int seats)
{
    int cells = cells_count(grid), shards = count_shards(holders, count), lines = cells * shards;
    FLEET_AUTO_FREE bool *held = calloc(count * (size_t)lines + 1, sizeof(*held));
    FLEET_AUTO_FREE int *covered = calloc((size_t)lines + 1, sizeof(*covered));
    FLEET_AUTO_FREE int *left = calloc((size_t)cells, sizeof(*left));
    struct search s = {holders, count, lines, held, covered, left, 0};

    fleet_assert(held && covered && left && seats % cell_assign_step(grid, processes) == 0);
    for (size_t i = 0; i < count; i++) {
        holders[i].is_needed = false;
        find_lines(&holders[i], grid, processes, shards, &held[i * (size_t)lines]);
    }
    for (int line = 0; line < lines; line++)
        covered[line] = is_held(&s, line) ? 0 : 1; /* nobody can cover it */
    for (int seat = 0; seat < seats; seat++)
        left[cell_assign_cell(grid, processes, seats, seat)]++;
    return cover_all(&s);
}
