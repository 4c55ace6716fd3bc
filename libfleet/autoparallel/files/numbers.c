/* SPDX-License-Identifier: Apache-2.0 */

#include "libfleet/autoparallel/files/numbers.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"

void *numbers_grow(void *items, size_t count, size_t size)
{
    return count & (count - 1) ? items : fleet_grow(items, count ? 2 * count - 1 : 0, size);
}

int numbers_add(struct numbers *list, int64_t value, size_t max, struct fleet_error *err)
{
    if (list->count == max)
        return fleet_error(err, -E2BIG, "more than %zu numbers", max);
    list->items = numbers_grow(list->items, list->count, sizeof(*list->items));
    list->items[list->count++] = value;
    return 0;
}

void numbers_release(struct numbers *list)
{
    free(list->items);
    *list = (struct numbers){.items = NULL};
}
