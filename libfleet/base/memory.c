/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

char *fleet_dup_text(const char *text)
{
    char *copy = text ? strdup(text) : NULL;

    fleet_assert(copy || !text);
    return copy;
}

char *fleet_dup_or_empty(const char *text)
{
    return fleet_dup_text(text ? text : "");
}

void fleet_set_text(char **field, const char *text)
{
    char *copy = fleet_dup_text(text);

    free(*field);
    *field = copy;
}

void *fleet_grow(void *items, size_t count, size_t size)
{
    void *more;

    fleet_assert(count < SIZE_MAX / size);
    more = realloc(items, (count + 1) * size);
    fleet_assert(more);
    return more;
}

void *fleet_reserve(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return items;
    *capacity = *capacity ? 2 * *capacity : 8;
    fleet_assert(*capacity < SIZE_MAX / size);
    items = realloc(items, *capacity * size);
    fleet_assert(items);
    return items;
}
