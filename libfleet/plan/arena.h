/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_ARENA_H
#define LIBFLEET_PLAN_ARENA_H

/* The holes of an arena while places in it are taken and given back. Part of memory_plan.c. */

#include <stddef.h>

struct hole {
    size_t offset, bytes;
};

struct arena {
    struct hole *holes; /* heap, the user frees it; ascending, never touching each other */
    int count, capacity;
    size_t end; /* bytes of the arena so far */
};

/* Offset of the smallest hole that holds `bytes` (the lowest of equals); else the arena grows at
 * its end. */
size_t arena_take(struct arena *arena, size_t bytes);

/* What arena_take() gave, of the same size. */
void arena_give_back(struct arena *arena, size_t offset, size_t bytes);

#endif
