/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/lineage.h"

bool fleet_lineage_has(const struct fleet_lineage *lineage, struct fleet_generation generation,
                       int64_t step)
{
    bool is_listed = false;

    for (size_t i = 0; i < lineage->count; i++) {
        int order = fleet_generation_compare(lineage->entries[i].generation, generation);
        if (order == 0 || (i == 0 && order > 0))
            is_listed = true;
        if (order > 0 && lineage->entries[i].first_step <= step)
            return false;
    }
    return is_listed;
}

struct fleet_generation fleet_lineage_maker(const struct fleet_lineage *lineage,
                                            struct fleet_generation generation, int64_t step)
{
    struct fleet_generation maker = {0};

    for (size_t i = 0; i < lineage->count; i++)
        if (lineage->entries[i].first_step <= step &&
            fleet_generation_compare(lineage->entries[i].generation, generation) <= 0)
            maker = lineage->entries[i].generation;
    return maker;
}

bool fleet_lineage_made(const struct fleet_lineage *lineage, struct fleet_generation generation,
                        int64_t step)
{
    for (size_t i = 0; i < lineage->count; i++)
        if (fleet_generation_compare(lineage->entries[i].generation, generation) == 0)
            return step >= lineage->entries[i].first_step &&
                   fleet_lineage_has(lineage, generation, step);
    return false;
}
