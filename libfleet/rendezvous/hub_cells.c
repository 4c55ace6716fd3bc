/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Generations of jobs whose ranks share a model: as many members as whole replicas need, each cell
 * with a holder of its state if any member has it (cell_assign.h). A state is whole if each cell
 * has a holder; else no state counts, and training goes on from the last checkpoint.
 */
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/rendezvous/cell_assign.h"
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

    return (hub->policy.min + step - 1) / step * step;
}

/* The cell of a member's seat in the newest generation. */
static int cell_of(const struct hub *hub, const struct hub_peer *peer)
{
    if (peer->place < 0 || peer->place >= hub->newest_members)
        return CELL_NONE;
    return cell_assign_cell(&hub->policy.grid, hub->policy.ranks_of_member, hub->newest_members,
                            peer->place);
}

/* A member with several ranks has the cells of all of them. */
static bool has_cell(const struct hub *hub, const struct hub_peer *peer, int cell)
{
    struct topology grid;
    int ranks = hub->policy.ranks_of_member;

    if (peer->place < 0 || !cells_resize(&hub->policy.grid, hub->newest_members * ranks, &grid) ||
        peer->place >= hub->newest_members)
        return false;
    for (int i = 0; i < ranks; i++)
        if (cells_place(&grid, peer->place * ranks + i).cell == cell)
            return true;
    return false;
}

bool hub_cells_are_whole(const struct hub *hub)
{
    for (int cell = 0; hub_cells_are_used(hub) && cell < cells_count(&hub->policy.grid); cell++) {
        bool is_held = false;
        for (size_t i = 0; i < hub->peer_count; i++)
            is_held |= hub_form_is_candidate(hub, hub->peers[i]) &&
                       hub_form_has_state(hub, hub->peers[i]) && has_cell(hub, hub->peers[i], cell);
        if (!is_held)
            return false;
    }
    return true;
}

size_t hub_cells_choose(const struct hub *hub, struct hub_peer **list, size_t count, int seats,
                        int *places)
{
    FLEET_AUTO_FREE struct cell_member *members = calloc(count + 1, sizeof(*members));
    size_t kept = 0;
    bool is_whole;

    fleet_assert(members != NULL);
    for (size_t i = 0; i < count; i++)
        members[i] = (struct cell_member){.last = list[i]->place >= 0 ? list[i]->place : CELL_NONE,
                                          .cell = cell_of(hub, list[i]),
                                          .holds = hub_form_has_state(hub, list[i])};
    is_whole = cell_assign(members, count, &hub->policy.grid, hub->policy.ranks_of_member, seats);
    fleet_assert(is_whole);
    for (size_t i = 0; i < count; i++)
        if (members[i].seat != CELL_NONE) {
            list[kept] = list[i];
            places[kept++] = members[i].seat;
        }
    return kept;
}
