/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Generations of jobs whose ranks share a model: as many members as whole replicas need, each line
 * of the state with a holder if any member has it (cell_lines.h, cell_assign.h). A state is whole
 * if each line has a holder; else no state counts, and training goes on from the last checkpoint.
 */
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/rendezvous/cell_assign.h"
#include "libfleet/rendezvous/cell_cover.h"
#include "libfleet/rendezvous/cell_lines.h"
#include "libfleet/rendezvous/hub_internal.h"
#include "libfleet/strategy/cells.h"

bool hub_cells_are_used(const struct hub *hub)
{
    return hub->policy.grid.world > 0;
}

static int step_of(const struct hub *hub)
{
    return hub_cells_are_used(hub)
               ? cell_assign_step(&hub->policy.grid, hub->policy.ranks_of_member)
               : 1;
}

int hub_cells_seats(const struct hub *hub, int members)
{
    return members - members % step_of(hub);
}

int hub_cells_least(const struct hub *hub)
{
    int step = step_of(hub);

    return hub->policy.min > step ? hub->policy.min : step;
}

/* ---- what members hold ----------------------------------------------------------------------- */

/*
 * The part that a member reports. If it does not say which ranks it had (a job with one cell, an
 * older agent, processes with parts of two maps), those of its place in the newest generation.
 */
static struct fleet_part part_of(const struct hub *hub, const struct fleet_part *reported,
                                 int place)
{
    struct fleet_part part = *reported;
    int ranks = hub->policy.ranks_of_member;

    if (part.world > 0 || place < 0 || place >= hub->newest_members)
        return part;
    part.lacking = 0;
    part.world = hub->newest_members * ranks;
    part.rank = place * ranks;
    if (part.division.shards == 0)
        return part;
    if (part.count == ranks && cells_count(&hub->policy.grid) == 1) {
        part.world = part.division.replicas;
        part.rank = part.first;
    } else {
        part.division = (struct fleet_division){0}; /* only the ranks can say what they hold */
    }
    return part;
}

static void add_peer(const struct hub *hub, struct cell_lines *lines, const struct hub_peer *peer)
{
    struct fleet_part part = part_of(hub, &peer->status.part, peer->place);

    cell_lines_add(lines, &part, hub->policy.ranks_of_member, NULL, 0);
}

static bool is_holder(const struct hub *hub, const struct hub_peer *peer)
{
    return hub_form_is_candidate(hub, peer) && hub_form_has_state(hub, peer);
}

/*
 * Is what `peer` holds a part of the state that `newest` holds? That is so if it has the same step.
 * It is also so if it was in the generation that made this step, and has voted for it: then it can
 * still make it alone.
 */
static bool is_part_of(const struct hub *hub, const struct hub_peer *peer,
                       const struct hub_peer *newest)
{
    const struct message_status *held = &peer->status, *state = &newest->status;
    struct fleet_generation maker =
        fleet_lineage_maker(&hub->lineage, state->state_generation, state->step);

    return held->step == state->step ||
           (held->step == state->step - 1 &&
            fleet_generation_compare(held->state_generation, maker) >= 0);
}

/* Of the ready members with a step below `below` one that holds the newest; NULL = none. */
static const struct hub_peer *find_newest(const struct hub *hub, int64_t below)
{
    const struct hub_peer *newest = NULL;

    for (size_t i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *peer = hub->peers[i];
        if (is_holder(hub, peer) && peer->status.step < below &&
            (!newest || peer->status.step > newest->status.step))
            newest = peer;
    }
    return newest;
}

static void add_ready(const struct hub *hub, struct cell_lines *lines,
                      const struct hub_peer *newest)
{
    for (size_t i = 0; i < hub->peer_count && newest; i++)
        if (is_holder(hub, hub->peers[i]) && is_part_of(hub, hub->peers[i], newest))
            add_peer(hub, lines, hub->peers[i]);
}

static bool are_whole(struct cell_lines *lines)
{
    int shard;
    bool is_whole = cell_lines_lost(lines, &shard) == CELL_LINES_WHOLE;

    cell_lines_release(lines);
    return is_whole;
}

static bool is_whole(const struct hub *hub, const struct hub_peer *newest)
{
    struct cell_lines lines;

    cell_lines_init(&lines, &hub->policy.grid);
    add_ready(hub, &lines, newest);
    return are_whole(&lines);
}

const struct hub_peer *hub_cells_state(const struct hub *hub)
{
    const struct hub_peer *newest = find_newest(hub, INT64_MAX), *peer = newest;

    while (peer && !is_whole(hub, peer))
        peer = find_newest(hub, peer->status.step);
    return peer ? peer : newest;
}

bool hub_cells_hold(const struct hub *hub, const struct hub_peer *peer,
                    const struct hub_peer *state)
{
    return state && hub_form_has_state(hub, peer) && is_part_of(hub, peer, state);
}

bool hub_cells_are_whole(const struct hub *hub)
{
    return !hub_cells_are_used(hub) || is_whole(hub, hub_cells_state(hub));
}

/* States of two generations are never mixed. */
static bool fits(const struct hub *hub, struct fleet_generation generation, int64_t step)
{
    return step >= 0 && fleet_generation_compare(generation, hub->live) >= 0 &&
           fleet_lineage_has(&hub->lineage, generation, step);
}

bool hub_cells_may_become_whole(const struct hub *hub)
{
    struct cell_lines lines;

    cell_lines_init(&lines, &hub->policy.grid);
    add_ready(hub, &lines, find_newest(hub, INT64_MAX));
    for (size_t i = 0; i < hub->peer_count; i++)
        if (fits(hub, hub->peers[i]->status.state_generation, hub->peers[i]->status.step))
            add_peer(hub, &lines, hub->peers[i]);
    for (size_t i = 0; i < hub->absent_count; i++) {
        const struct hub_absent *absent = &hub->absent[i];
        if (fits(hub, absent->generation, absent->step))
            cell_lines_add(&lines, &absent->part, hub->policy.ranks_of_member, NULL, 0);
    }
    return are_whole(&lines);
}

struct fleet_part hub_cells_part(const struct hub *hub, const struct hub_peer *peer)
{
    return hub_cells_are_used(hub) ? part_of(hub, &peer->status.part, peer->place)
                                   : peer->status.part;
}

int hub_cells_kept(const struct hub *hub, struct hub_peer *const *list, const int *seats,
                   size_t count, int *shard)
{
    const struct hub_peer *state = hub_cells_state(hub);
    int ranks = hub->policy.ranks_of_member, lost;
    struct cell_lines lines;
    struct topology to;
    bool is_grid = cells_resize(&hub->policy.grid, (int)count * ranks, &to);

    fleet_assert(is_grid);
    cell_lines_init(&lines, &hub->policy.grid);
    for (size_t i = 0; i < count; i++) {
        struct fleet_part part = part_of(hub, &list[i]->status.part, list[i]->place);
        if (hub_cells_hold(hub, list[i], state))
            cell_lines_add(&lines, &part, ranks, &to, seats[i] * ranks);
    }
    lost = cell_lines_lost(&lines, shard);
    cell_lines_release(&lines);
    return lost;
}

/* ---- seats ----------------------------------------------------------------------------------- */

/* The shards that a member holds of its cell's state. */
static void find_shards(const struct fleet_division *division, int replica, int shards[2])
{
    shards[0] = shards[1] = CELL_NONE;
    if (division->shards == 0)
        return;
    shards[0] = replica % division->shards;
    for (int shard = 0; shard < division->shards; shard++)
        if (fleet_division_buddy(division, shard) == replica)
            shards[1] = shard;
}

static struct cell_member describe(const struct hub *hub, const struct hub_peer *peer,
                                   const struct hub_peer *state)
{
    struct fleet_part part = part_of(hub, &peer->status.part, peer->place);
    struct cell_member member = {.last = peer->place >= 0 ? peer->place : CELL_NONE,
                                 .cell = CELL_NONE,
                                 .holds = hub_cells_hold(hub, peer, state),
                                 .lacks = part.world > 0 && part.lacking != 0,
                                 .shards = {CELL_NONE, CELL_NONE},
                                 .wish = CELL_NONE};
    struct topology had;

    if (peer->place >= 0 && peer->place < hub->newest_members)
        member.cell = cell_assign_cell(&hub->policy.grid, hub->policy.ranks_of_member,
                                       hub->newest_members, peer->place);
    if (!member.holds || part.world == 0 || part.rank >= part.world ||
        !cells_resize(&hub->policy.grid, part.world, &had))
        return member;
    member.cell = cells_place(&had, part.rank).cell;
    find_shards(&part.division, cells_place(&had, part.rank).replica, member.shards);
    return member;
}

/* In their seats the members give up a line that the ready ones hold. */
static bool loses_a_line(const struct hub *hub, struct hub_peer *const *list,
                         const struct cell_member *members, size_t count, int seats)
{
    FLEET_AUTO_FREE struct hub_peer **chosen = calloc((size_t)seats + 1, sizeof(*chosen));
    FLEET_AUTO_FREE int *places = calloc((size_t)seats + 1, sizeof(*places));
    size_t kept = 0;
    int shard;

    fleet_assert(chosen && places);
    for (size_t i = 0; i < count; i++)
        if (members[i].seat != CELL_NONE) {
            chosen[kept] = list[i];
            places[kept++] = members[i].seat;
        }
    return hub_cells_are_whole(hub) && hub_cells_kept(hub, chosen, places, kept, &shard) >= 0;
}

/* Mark the members that keep all lines. */
static bool mark_needed(const struct hub *hub, struct hub_peer *const *list,
                        struct cell_member *members, size_t count, int seats)
{
    FLEET_AUTO_FREE struct cell_holder *holders = calloc(count + 1, sizeof(*holders));

    fleet_assert(holders != NULL);
    for (size_t i = 0; i < count; i++)
        if (members[i].holds && members[i].cell != CELL_NONE)
            holders[i] =
                (struct cell_holder){.part = part_of(hub, &list[i]->status.part, list[i]->place),
                                     .cell = members[i].cell};
    if (!cell_cover(holders, count, &hub->policy.grid, hub->policy.ranks_of_member, seats))
        return false;
    for (size_t i = 0; i < count; i++)
        members[i].is_needed = holders[i].is_needed;
    return true;
}

size_t hub_cells_choose(const struct hub *hub, struct hub_peer **list, size_t count, int seats,
                        int *places)
{
    FLEET_AUTO_FREE struct cell_member *members = calloc(count + 1, sizeof(*members));
    const struct hub_peer *state = hub_cells_state(hub);
    const struct topology *grid = &hub->policy.grid;
    int ranks = hub->policy.ranks_of_member;
    size_t kept = 0, placed = 0;
    bool is_whole;

    fleet_assert(members != NULL);
    for (size_t i = 0; i < count; i++) {
        members[i] = describe(hub, list[i], state);
        placed += list[i]->place >= 0;
    }
    for (size_t i = 0; i < count && placed > 0; i++) /* the indices below a smaller number are whole
                                                        replicas */
        members[i].wish = list[i]->index;
    is_whole = cell_assign(members, count, grid, ranks, seats);
    fleet_assert(is_whole);
    if (loses_a_line(hub, list, members, count, seats) &&
        mark_needed(hub, list, members, count, seats))
        (void)cell_assign(members, count, grid, ranks, seats);
    for (size_t i = 0; i < count; i++)
        if (members[i].seat != CELL_NONE) {
            list[kept] = list[i];
            places[kept++] = members[i].seat;
        }
    return kept;
}
