/* SPDX-License-Identifier: Apache-2.0 */

/* Which rank holds what: the maps of the ranks' memory, and the shards that no rank holds. */
#include <stdlib.h>

#include "agent/runtime/join/reshard_internal.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"

void reshard_maps_init(struct reshard_maps *maps, const struct trainer *trainer,
                       const struct reshard_peer *peers)
{
    int world = trainer->generation.replicas;

    *maps = (struct reshard_maps){.maps = calloc((size_t)world, sizeof(*maps->maps)),
                                  .of = calloc((size_t)world, sizeof(*maps->of)),
                                  .world = world};
    fleet_assert(maps->maps && maps->of);
    for (int r = 0; r < world; r++) {
        int same = 0;
        maps->of[r] = -1;
        if (peers[r].source != RESHARD_HELD)
            continue;
        while (same < r && (maps->maps[same].replicas != peers[r].replicas ||
                            maps->maps[same].shards != peers[r].shards))
            same++;
        maps->of[r] = same;
        if (same == r)
            plan_ownership(&trainer->job.plan, (int)peers[r].replicas, (int)peers[r].shards,
                           &maps->maps[r]);
    }
}

void reshard_maps_release(struct reshard_maps *maps)
{
    for (int r = 0; r < maps->world; r++)
        ownership_release(&maps->maps[r]);
    free(maps->maps);
    free(maps->of);
}

bool reshard_holds(const struct ownership *map, int64_t element, int replica)
{
    const struct ownership_line *line = ownership_part(map, element);

    return !line || ownership_holds(map, line, replica);
}

bool reshard_has(const struct reshard_maps *maps, const struct reshard_peer *peers, int r,
                 int64_t element)
{
    return maps->of[r] >= 0 &&
           reshard_holds(&maps->maps[maps->of[r]], element, (int)peers[r].replica);
}

int reshard_source_of(const struct reshard_maps *maps, const struct reshard_peer *peers,
                      int64_t element)
{
    for (int r = 0; r < maps->world; r++)
        if (reshard_has(maps, peers, r, element))
            return r;
    return -1;
}

int reshard_lost(const struct trainer *trainer, const struct reshard_peer *peers)
{
    const struct program *program = &trainer->job.plan.program;
    struct reshard_maps maps;
    int lost = -1;

    if (plan_shards(&trainer->job.plan) == 1 && trainer->placement.map.shards == 1)
        return -1;
    for (int r = 0; r < trainer->generation.replicas; r++)
        if (peers[r].source == RESHARD_ZERO || peers[r].source == RESHARD_FILES)
            return -1;
    reshard_maps_init(&maps, trainer, peers);
    for (int v = 0; v < program->var_count && lost < 0; v++) {
        const struct program_var *var = &program->vars[v];
        if (var->role != PROGRAM_ROLE_PARAMETER ||
            reshard_source_of(&maps, peers, var->flat_offset) >= 0)
            continue;
        lost = 0;
        for (int r = 0; r < maps.world; r++)
            if (maps.of[r] >= 0)
                lost = ownership_part(&maps.maps[maps.of[r]], var->flat_offset)->shard;
    }
    reshard_maps_release(&maps);
    return lost;
}
