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
