/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/join/reshard.h"

#include <stdlib.h>
#include <string.h>

#include "agent/runtime/join/device.h"
#include "agent/runtime/join/reshard_internal.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

const enum memory_segment reshard_segments[RESHARD_SLOTS] = {MEMORY_STATE0, MEMORY_STATE1,
                                                             MEMORY_PARAMETERS};
const enum ownership_space reshard_spaces[RESHARD_SLOTS] = {OWNERSHIP_STATE0, OWNERSHIP_STATE1,
                                                            OWNERSHIP_PARAMETERS};

int reshard_slots(const struct trainer *trainer)
{
    return exchange_gathers(trainer) ? RESHARD_SLOTS : RESHARD_VALUES;
}

struct reshard_peer reshard_own(const struct trainer *trainer)
{
    const struct placement *placement = &trainer->placement;

    if (trainer->progress.committed == TRAINER_NO_STATE || placement->replica < 0)
        return (struct reshard_peer){.source = RESHARD_NONE};
    return (struct reshard_peer){.source = RESHARD_HELD,
                                 .replicas = placement->map.replicas,
                                 .shards = placement->map.shards,
                                 .replica = placement->replica};
}

struct fleet_part reshard_part(const struct trainer *trainer)
{
    struct reshard_peer own = reshard_own(trainer);
    const struct ownership *map = &trainer->placement.map;
    const struct topology *grid = &trainer->job.plan.topology;
    struct fleet_part part = {.lost = trainer->placement.lost};
    struct topology placed;

    if (own.source == RESHARD_HELD && map->shards > 1) {
        part.division = (struct fleet_division){map->replicas, map->shards, map->has_buddies};
        part.first = trainer->placement.replica;
        part.count = 1;
    }
    if (own.source == RESHARD_HELD && cells_count(grid) > 1 &&
        cells_resize(grid, map->replicas * cells_count(grid), &placed)) {
        part.world = placed.world;
        part.rank = cells_rank(&placed, (struct cell_place){trainer->job.plan.cell, own.replica});
    }
    return part;
}

static struct reshard_side side_of(const struct placement *placement, void *const *states)
{
    struct reshard_side side = {.map = &placement->map, .replica = placement->replica};

    for (int slot = 0; slot < RESHARD_SLOTS; slot++)
        side.states[slot] = states[slot];
    return side;
}

static struct reshard_side own_side(const struct trainer *trainer)
{
    void *states[RESHARD_SLOTS];

    for (int slot = 0; slot < RESHARD_SLOTS; slot++)
        states[slot] = trainer->state.bases.segment[reshard_segments[slot]];
    return side_of(&trainer->placement, states);
}

/* This rank holds nothing yet. */
static bool has_none(const struct trainer *trainer, const struct reshard_peer *peers)
{
    return peers[trainer->generation.place.replica].source != RESHARD_HELD;
}

static bool are_initial(const struct trainer *trainer, const struct reshard_peer *peers)
{
    for (int r = 0; r < trainer->generation.replicas; r++)
        if (peers[r].source == RESHARD_ZERO)
            return true;
    return false;
}

static int fill(struct trainer *trainer, const struct reshard_peer *peers,
                const struct reshard_side *to, struct fleet_error *err)
{
    struct reshard_side from = own_side(trainer);

    if (are_initial(trainer, peers))
        return 0; /* states are zero as they were allocated; take_turns() makes the parameters */
    for (int r = 0; r < trainer->generation.replicas; r++)
        if (peers[r].source == RESHARD_FILES)
            return reshard_read_files(trainer, to, err);
    return reshard_move(trainer, peers, &from, to, err);
}

/* Nothing to bring anywhere: all hold all, before and after. */
static bool is_as_before(const struct trainer *trainer, const struct placement *next)
{
    const struct memory_plan *old = trainer->state.memory;

    return next->map.shards == 1 && trainer->placement.map.shards == 1 &&
           memcmp(old->bytes, next->memory.bytes, sizeof(old->bytes)) == 0;
}

/* The next placement is the trainer's; its old memory, which a checkpoint may be reading, goes. */
static void adopt(struct trainer *trainer, struct placement *next, void *const *states)
{
    if (states) {
        save_finish(trainer);
        state_replace(&trainer->state, reshard_segments, states, reshard_slots(trainer));
    }
    placement_release(&trainer->placement);
    trainer->placement = *next;
}

static int allocate(struct trainer *trainer, const struct placement *next, void **states,
                    struct fleet_error *err)
{
    for (int slot = 0; slot < reshard_slots(trainer); slot++) {
        states[slot] = state_allocate(&trainer->state, reshard_segments[slot],
                                      next->memory.bytes[reshard_segments[slot]], err);
        if (!states[slot])
            return err->code;
    }
    return 0;
}

/*
 * A rank that had nothing takes the new places at once, the others when all have theirs: so the old
 * places are there until the new ones are there.
 */
static int take_turns(struct trainer *trainer, struct placement *next, void *const *states,
                      const struct reshard_peer *peers, struct fleet_error *err)
{
    bool had_none = has_none(trainer, peers);
    int rc;

    if (had_none)
        adopt(trainer, next, states);
    if (had_none && are_initial(trainer, peers) && exchange_gathers(trainer))
        placement_initialize(trainer);
    rc = comm_barrier(trainer->net.cell, fleet_monotonic_ms() + RESHARD_READ_MS, err);
    if (rc == 0 && !had_none)
        adopt(trainer, next, states);
    return rc < 0 ? fleet_error_wrap(err, "move the divided state") : 0;
}

static void give_back(struct trainer *trainer, struct placement *next, void *const *states)
{
    for (int slot = 0; slot < RESHARD_SLOTS; slot++)
        state_deallocate(&trainer->state, reshard_segments[slot], states[slot]);
    placement_release(next);
}

int reshard_apply(struct trainer *trainer, const struct reshard_peer *peers, bool *out_has_moved,
                  struct fleet_error *err)
{
    struct placement next;
    void *states[RESHARD_SLOTS] = {NULL};
    struct reshard_side to;
    int rc = placement_build(&trainer->job.plan, trainer->generation.replicas,
                             trainer->generation.place.replica, &next, err);

    *out_has_moved = false;
    if (rc < 0)
        return rc;
    if (is_as_before(trainer, &next)) {
        adopt(trainer, &next, NULL);
        return 0;
    }
    rc = allocate(trainer, &next, states, err);
    to = side_of(&next, states);
    if (rc == 0)
        rc = fill(trainer, peers, &to, err);
    if (rc < 0) {
        give_back(trainer, &next, states);
        return rc;
    }
    rc = take_turns(trainer, &next, states, peers, err);
    *out_has_moved = rc == 0 || has_none(trainer, peers);
    if (!*out_has_moved)
        give_back(trainer, &next, states);
    return rc;
}

int reshard_undivided(struct trainer *trainer, struct fleet_error *err)
{
    void *states[RESHARD_SLOTS] = {NULL};
    struct placement next;
    int rc;

    if (trainer->generation.replicas == 1 || trainer->placement.map.shards == 1 ||
        plan_shards(&trainer->job.plan) > 1)
        return 0;
    rc = placement_build(&trainer->job.plan, trainer->generation.replicas,
                         trainer->generation.place.replica, &next, err);
    if (rc < 0)
        return rc;
    rc = allocate(trainer, &next, states, err);
    if (rc < 0) {
        give_back(trainer, &next, states);
        return rc;
    }
    adopt(trainer, &next, states);
    device_drop_executor(trainer);
    return 0;
}

int reshard_read(struct trainer *trainer, struct fleet_error *err)
{
    struct reshard_side own = own_side(trainer);

    return own.map->shards > 1 ? reshard_read_files(trainer, &own, err) : 0;
}
