/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/division.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/limits.h"

/* One rank holds it alone, except for a buddy. */
static bool is_single(const struct fleet_division *division, int shard)
{
    return shard + division->shards >= division->replicas;
}

int fleet_division_buddy(const struct fleet_division *division, int shard)
{
    return division->has_buddies && division->replicas > 1 && is_single(division, shard)
               ? (shard + 1) % division->replicas
               : FLEET_DIVISION_NOBODY;
}

bool fleet_division_holds(const struct fleet_division *division, int shard, int replica)
{
    return replica >= 0 && (replica % division->shards == shard ||
                            fleet_division_buddy(division, shard) == replica);
}

bool fleet_part_is_sound(const struct fleet_part *part)
{
    const struct fleet_division *d = &part->division;

    if (part->world > 0 && part->rank >= part->world)
        return false;
    if (d->shards == 0)
        return true;
    return d->shards >= 1 && d->shards <= d->replicas && d->replicas <= FLEET_WORLD_MAX &&
           part->first >= 0 && part->count >= 0 && part->first <= d->replicas - part->count &&
           part->lost >= 0 && part->lost <= d->shards;
}

static bool is_same(const struct fleet_division *a, const struct fleet_division *b)
{
    return a->replicas == b->replicas && a->shards == b->shards && a->has_buddies == b->has_buddies;
}

void fleet_part_add(struct fleet_part *part, const struct fleet_part *other)
{
    if (part->division.shards == 0 && other->division.shards == 0)
        return;
    if (is_same(&part->division, &other->division) && part->count > 0 && other->count > 0 &&
        part->first + part->count == other->first)
        part->count += other->count;
    else
        part->count = 0;
}

static void mark(const struct fleet_part *part, bool *held)
{
    const struct fleet_division *d = &part->division;

    for (int r = part->first; r < part->first + part->count; r++) {
        int before = (r + d->replicas - 1) % d->replicas; /* the one whose buddy is r */
        held[r % d->shards] = true;
        if (before < d->shards && fleet_division_buddy(d, before) == r)
            held[before] = true;
    }
}

int fleet_parts_lost(const struct fleet_part *parts, size_t count)
{
    int shards = count > 0 ? parts[0].division.shards : 0;
    FLEET_AUTO_FREE bool *held = calloc((size_t)shards + 1, sizeof(*held));

    fleet_assert(held != NULL);
    for (size_t i = 0; i < count; i++) {
        const struct fleet_part *part = &parts[i];
        if (part->division.shards == 0 || part->count == 0 || !fleet_part_is_sound(part) ||
            !is_same(&part->division, &parts[0].division))
            return FLEET_DIVISION_WHOLE;
        mark(part, held);
    }
    for (int shard = 0; shard < shards; shard++)
        if (!held[shard])
            return shard;
    return FLEET_DIVISION_WHOLE;
}
