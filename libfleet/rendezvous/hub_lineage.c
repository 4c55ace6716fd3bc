/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which generations count: their checkpoints are read, and the state that their members hold in
 * memory may be gone on from. The rule is the one that manifests are read by: a state counts if its
 * generation is listed and no newer one began before its step.
 */
#include <string.h>

#include "libfleet/rendezvous/hub_internal.h"

bool hub_lineage_has(const struct hub *hub, struct fleet_generation generation, int64_t step)
{
    bool is_listed = false;

    for (size_t i = 0; i < hub->lineage_count; i++) {
        int order = fleet_generation_compare(hub->lineage[i].generation, generation);
        if (order == 0 || (i == 0 && order > 0))
            is_listed = true;
        if (order > 0 && hub->lineage[i].first_step <= step)
            return false;
    }
    return is_listed;
}

/* The entry that is missed least: one without a step of its own, else the oldest. */
static size_t expendable(const struct message_lineage *lineage, size_t count)
{
    for (size_t i = 0; i + 1 < count; i++)
        if (lineage[i].first_step == lineage[i + 1].first_step)
            return i;
    return 0;
}

/*
 * Entries that could only hold steps which will now be made again are no part of the lineage. One
 * that made no step stays: it may have saved the step it began with.
 */
size_t hub_record_lineage(const struct hub *hub, const struct hub_record *record,
                          struct message_lineage out[MESSAGE_LINEAGE_MAX])
{
    size_t count = hub->lineage_count, drop;

    if (hub->defect[0])
        return 0;
    while (count > 0 && (hub->lineage[count - 1].first_step > record->first_step ||
                         fleet_generation_compare(hub->lineage[count - 1].generation,
                                                  record->generation) >= 0)) /* asked for again */
        count--;
    if (count > 0)
        memcpy(out, hub->lineage, count * sizeof(out[0]));
    if (count == MESSAGE_LINEAGE_MAX) {
        drop = expendable(out, count);
        count--;
        memmove(out + drop, out + drop + 1, (count - drop) * sizeof(out[0]));
    }
    out[count] = (struct message_lineage){record->generation, record->first_step};
    return count + 1;
}
