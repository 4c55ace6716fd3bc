/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_FILES_NUMBERS_H
#define LIBFLEET_AUTOPARALLEL_FILES_NUMBERS_H

/* A list of integers on the heap, as the files have many; empty when all zero. */

#include <stddef.h>
#include <stdint.h>

struct fleet_error;

struct numbers {
    int64_t *items;
    size_t count;
};

/* Append one. -E2BIG: `max` of them are there. */
int numbers_add(struct numbers *list, int64_t value, size_t max, struct fleet_error *err);

void numbers_release(struct numbers *list);

/* `items` with room for one more than `count`; lists grow by powers of two, so that a long one is
 * not copied for each entry. */
void *numbers_grow(void *items, size_t count, size_t size);

#endif
