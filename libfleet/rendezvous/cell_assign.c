/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/rendezvous/cell_assign.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/strategy/cells.h"

int cell_assign_step(const struct topology *grid, int ranks_of_member)
{
    int ranks = cells_count(grid) * grid->degree[TOPOLOGY_SHARDING], step = 1;

    while (step * ranks_of_member % ranks != 0)
        step++;
    return step;
}

int cell_assign_cell(const struct topology *grid, int ranks_of_member, int seats, int seat)
{
    struct topology now;

    if (!cells_resize(grid, seats * ranks_of_member, &now))
        return CELL_NONE;
    return cells_place(&now, seat * ranks_of_member).cell;
}

struct seats {
    struct cell_member *members;
    size_t member_count;
    int *cells;  /* [count] of each seat */
    bool *taken; /* [count] */
    int count;
};

/* The first seat of `cell` (CELL_NONE: of any) that is free, or CELL_NONE. */
static int free_seat(const struct seats *s, int cell)
{
    for (int seat = 0; seat < s->count; seat++)
        if (!s->taken[seat] && (cell == CELL_NONE || s->cells[seat] == cell))
            return seat;
    return CELL_NONE;
}

static void take(struct seats *s, struct cell_member *member, int seat)
{
    fleet_assert(!s->taken[seat] && member->seat == CELL_NONE);
    s->taken[seat] = true;
    member->seat = seat;
}

static int seats_of(const struct seats *s, int cell)
{
    int count = 0;

    for (int seat = 0; seat < s->count; seat++)
        count += s->cells[seat] == cell;
    return count;
}

/* One that stays in the cell holds the shard. */
static bool is_held(const struct seats *s, int cell, const bool *stays, int shard)
{
    for (size_t i = 0; i < s->member_count; i++)
        if (stays[i] && s->members[i].cell == cell &&
            (s->members[i].shards[0] == shard || s->members[i].shards[1] == shard))
            return true;
    return false;
}

/* In which pass a survivor may be chosen. */
enum pass {
    PASS_NEEDED,
    PASS_OWN,   /* for its own shard, which no other one has, … */
    PASS_BUDDY, /* … for the one that it has as a buddy */
    PASS_OWN_IN_PART,
    PASS_BUDDY_IN_PART, /* the same of those that hold the state with some processes only */
    PASS_HOLDER,
    PASS_HOLDER_IN_PART,
    PASS_ANY,
    PASSES
};

static bool is_chosen(const struct seats *s, const struct cell_member *member, const bool *stays,
                      enum pass pass)
{
    bool may_lack =
        pass == PASS_OWN_IN_PART || pass == PASS_BUDDY_IN_PART || pass == PASS_HOLDER_IN_PART;
    int shard = member->shards[pass == PASS_BUDDY || pass == PASS_BUDDY_IN_PART];

    if (pass == PASS_NEEDED)
        return member->is_needed;
    if (pass == PASS_ANY)
        return true;
    if (!member->holds || (member->lacks && !may_lack))
        return false;
    if (pass == PASS_HOLDER || pass == PASS_HOLDER_IN_PART)
        return true;
    return shard != CELL_NONE && !is_held(s, member->cell, stays, shard);
}

/* (2) Mark in stays[] the survivors of `cell` that stay in it. */
static void choose_survivors(const struct seats *s, int cell, bool *stays)
{
    int left = seats_of(s, cell);

    for (enum pass pass = PASS_NEEDED; pass < PASSES; pass++)
        for (size_t i = 0; i < s->member_count && left > 0; i++)
            if (s->members[i].cell == cell && !stays[i] &&
                is_chosen(s, &s->members[i], stays, pass)) {
                stays[i] = true;
                left--;
            }
}

static bool keeps(const struct seats *s, const struct cell_member *member)
{
    return member->last != CELL_NONE && member->last < s->count &&
           s->cells[member->last] == member->cell && !s->taken[member->last];
}

static void seat_survivors(struct seats *s, const bool *stays)
{
    for (size_t i = 0; i < s->member_count; i++)
        if (stays[i] && keeps(s, &s->members[i]))
            take(s, &s->members[i], s->members[i].last);
    for (size_t i = 0; i < s->member_count; i++)
        if (stays[i] && s->members[i].seat == CELL_NONE)
            take(s, &s->members[i], free_seat(s, s->members[i].cell));
}

/* A spare of the last generation may hold an older one's state: that still counts. */
static bool is_newcomer(const struct cell_member *member)
{
    return member->last == CELL_NONE && !member->holds;
}

/* (3) */
static int rank_of_left(const struct cell_member *member)
{
    return is_newcomer(member) ? 0 : member->holds ? 2 : 1;
}

static void seat_others(struct seats *s)
{
    for (size_t i = 0; i < s->member_count; i++) {
        struct cell_member *m = &s->members[i];
        if (is_newcomer(m) && m->seat == CELL_NONE && m->wish != CELL_NONE && m->wish < s->count &&
            !s->taken[m->wish])
            take(s, m, m->wish);
    }
    for (int order = 0; order < 3; order++)
        for (size_t i = 0; i < s->member_count; i++)
            if (s->members[i].seat == CELL_NONE && rank_of_left(&s->members[i]) == order &&
                free_seat(s, CELL_NONE) != CELL_NONE)
                take(s, &s->members[i], free_seat(s, CELL_NONE));
}

bool cell_assign(struct cell_member *members, size_t count, const struct topology *grid,
                 int ranks_of_member, int seats)
{
    FLEET_AUTO_FREE int *cells = calloc((size_t)seats + 1, sizeof(*cells));
    FLEET_AUTO_FREE bool *taken = calloc((size_t)seats + 1, sizeof(*taken));
    FLEET_AUTO_FREE bool *stays = calloc(count + 1, sizeof(*stays));
    struct seats s = {members, count, cells, taken, seats};

    fleet_assert(cells && taken && stays && seats >= 0);
    for (size_t i = 0; i < count; i++)
        members[i].seat = CELL_NONE;
    if (count < (size_t)seats)
        return false;
    for (int seat = 0; seat < seats; seat++)
        cells[seat] = cell_assign_cell(grid, ranks_of_member, seats, seat);
    for (int cell = 0; cell < cells_count(grid); cell++)
        choose_survivors(&s, cell, stays);
    seat_survivors(&s, stays);
    seat_others(&s);
    return true;
}
