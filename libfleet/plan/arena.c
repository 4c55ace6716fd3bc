/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/arena.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"

static void remove_hole(struct arena *arena, int at)
{
    memmove(&arena->holes[at], &arena->holes[at + 1],
            (size_t)(arena->count - at - 1) * sizeof(*arena->holes));
    arena->count--;
}

static void insert_hole(struct arena *arena, int at, struct hole hole)
{
    if (arena->count == arena->capacity) {
        arena->capacity = arena->capacity ? 2 * arena->capacity : 64;
        arena->holes = realloc(arena->holes, (size_t)arena->capacity * sizeof(*arena->holes));
        fleet_assert(arena->holes);
    }
    memmove(&arena->holes[at + 1], &arena->holes[at],
            (size_t)(arena->count - at) * sizeof(*arena->holes));
    arena->holes[at] = hole;
    arena->count++;
}

size_t arena_take(struct arena *arena, size_t bytes)
{
    int best = -1;
    size_t offset;

    for (int i = 0; i < arena->count; i++)
        if (arena->holes[i].bytes >= bytes &&
            (best < 0 || arena->holes[i].bytes < arena->holes[best].bytes))
            best = i;
    if (best >= 0) {
        offset = arena->holes[best].offset;
        arena->holes[best].offset += bytes;
        arena->holes[best].bytes -= bytes;
        if (arena->holes[best].bytes == 0)
            remove_hole(arena, best);
        return offset;
    }
    offset = arena->end;
    if (arena->count) {
        struct hole *last = &arena->holes[arena->count - 1];
        if (last->offset + last->bytes == arena->end) { /* begin in the hole at the end */
            offset = last->offset;
            remove_hole(arena, arena->count - 1);
        }
    }
    arena->end = offset + bytes;
    return offset;
}

void arena_give_back(struct arena *arena, size_t offset, size_t bytes)
{
    int at = 0;

    while (at < arena->count && arena->holes[at].offset < offset)
        at++;
    insert_hole(arena, at, (struct hole){offset, bytes});
    if (at + 1 < arena->count &&
        arena->holes[at].offset + arena->holes[at].bytes == arena->holes[at + 1].offset) {
        arena->holes[at].bytes += arena->holes[at + 1].bytes;
        remove_hole(arena, at + 1);
    }
    if (at > 0 &&
        arena->holes[at - 1].offset + arena->holes[at - 1].bytes == arena->holes[at].offset) {
        arena->holes[at - 1].bytes += arena->holes[at].bytes;
        remove_hole(arena, at);
    }
}
