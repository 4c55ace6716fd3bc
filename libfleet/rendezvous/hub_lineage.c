/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How a new generation changes the lineage.
 */
#include <string.h>

#include "libfleet/rendezvous/hub_internal.h"

/* The entry to drop: one without a step of its own, else the oldest. Members name the generation in
 * which they got their state, so entries since the newest one that made a step stay. */
static size_t expendable(const struct hub *hub, const struct fleet_lineage *lineage)
{
    for (size_t i = 0; i + 1 < lineage->count; i++)
        if (fleet_generation_compare(lineage->entries[i].generation, hub->live) < 0 &&
            lineage->entries[i].first_step == lineage->entries[i + 1].first_step)
            return i;
    return 0;
}

/*
 * Drop the entries whose steps will all be made again. An entry that made no step stays: its
 * generation may have saved the step that it began with.
 */
struct fleet_lineage hub_record_lineage(const struct hub *hub, const struct hub_record *record)
{
    struct fleet_lineage out = hub_lineage(hub);
    struct fleet_lineage_entry *entries = out.entries;
    size_t drop;

    if (hub->defect[0])
        return out;
    while (out.count > 0 &&
           (entries[out.count - 1].first_step > record->first_step ||
            fleet_generation_compare(entries[out.count - 1].generation, record->generation) >=
                0)) /* asked for again */
        out.count--;
    if (out.count == FLEET_LINEAGE_MAX) {
        drop = expendable(hub, &out);
        out.count--;
        memmove(entries + drop, entries + drop + 1, (out.count - drop) * sizeof(entries[0]));
    }
    entries[out.count++] = (struct fleet_lineage_entry){record->generation, record->first_step};
    return out;
}
