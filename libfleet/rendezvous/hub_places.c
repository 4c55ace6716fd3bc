/* SPDX-License-Identifier: Apache-2.0 */

/* A member may be lost and come back, so a generation counts places, not events. */
#include <stdlib.h>

#include "libfleet/base/memory.h"
#include "libfleet/rendezvous/hub_internal.h"

bool hub_places_add(struct hub_places *places, int place)
{
    for (size_t i = 0; i < places->count; i++)
        if (places->items[i] == place)
            return false;
    places->items = fleet_grow(places->items, places->count, sizeof(int));
    places->items[places->count++] = place;
    return true;
}

void hub_places_remove(struct hub_places *places, int place)
{
    size_t kept = 0;

    for (size_t i = 0; i < places->count; i++)
        if (places->items[i] != place)
            places->items[kept++] = places->items[i];
    places->count = kept;
}

void hub_places_clear(struct hub_places *places)
{
    free(places->items);
    *places = (struct hub_places){0};
}
