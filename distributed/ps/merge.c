/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/ps/merge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ps_merge *ps_merge_new(size_t width)
{
    struct ps_merge *merge = calloc(1, sizeof(*merge));

    if (merge)
        merge->width = width;
    return merge;
}

void ps_merge_free(struct ps_merge *merge)
{
    if (!merge)
        return;
    free(merge->keys);
    free(merge->gradients);
    free(merge->stats);
    free(merge->slots);
    free(merge);
}

static void put(struct ps_merge *m, uint32_t entry)
{
    size_t at = ps_key_mix(m->keys[entry]) & (m->capacity - 1);

    while (m->slots[at])
        at = (at + 1) & (m->capacity - 1);
    m->slots[at] = entry + 1;
}

/* Room for `count` entries in all. */
static bool reserve(struct ps_merge *m, size_t count)
{
    size_t room = m->room ? m->room : 64;
    uint64_t *keys;
    float *gradients, *stats;
    uint32_t *slots;

    if (count <= m->room)
        return true;
    while (room < count)
        room *= 2;
    if ((keys = realloc(m->keys, room * sizeof(*keys))) != NULL)
        m->keys = keys;
    if ((gradients = realloc(m->gradients, room * m->width * sizeof(float))) != NULL)
        m->gradients = gradients;
    if ((stats = realloc(m->stats, room * 2 * sizeof(float))) != NULL)
        m->stats = stats;
    slots = calloc(room * 2, sizeof(*slots));
    if (!keys || !gradients || !stats || !slots) {
        free(slots);
        return false;
    }
    free(m->slots);
    m->slots = slots;
    m->capacity = room * 2;
    m->room = room;
    for (size_t i = 0; i < m->count; i++)
        put(m, (uint32_t)i);
    return true;
}

/* The entry of a key, a new one with zeros if there is none. */
static size_t entry_of(struct ps_merge *m, uint64_t key)
{
    size_t at = ps_key_mix(key) & (m->capacity - 1);

    for (; m->slots[at]; at = (at + 1) & (m->capacity - 1))
        if (m->keys[m->slots[at] - 1] == key)
            return m->slots[at] - 1;
    m->keys[m->count] = key;
    m->stats[2 * m->count] = m->stats[2 * m->count + 1] = 0;
    m->slots[at] = (uint32_t)(m->count + 1);
    return m->count++;
}

int ps_merge_add(struct ps_merge *merge, const struct ps_push *push, struct fleet_error *err)
{
    size_t width = merge->width;

    if (!reserve(merge, merge->count + push->count))
        return fleet_error(err, -ENOMEM, "no memory to sum the gradients of %zu keys",
                           merge->count + push->count);
    for (size_t i = 0; i < push->count; i++) {
        size_t before = merge->count, entry = entry_of(merge, push->keys[i]);
        float *sum = merge->gradients + entry * width;
        const float *gradient = push->gradients + i * width;
        if (entry == before)
            memcpy(sum, gradient, width * sizeof(float));
        else
            for (size_t d = 0; d < width; d++)
                sum[d] += gradient[d];
        if (push->shows) {
            merge->stats[2 * entry] += push->shows[i];
            merge->stats[2 * entry + 1] += push->clicks[i];
        }
    }
    return 0;
}

int ps_merge_push(struct ps_merge *merge, const struct ps_push *push, struct fleet_error *err)
{
    /* A long list leaves many slots: clear only those that are in use. */
    for (size_t i = 0; i < merge->count; i++) {
        size_t at = ps_key_mix(merge->keys[i]) & (merge->capacity - 1);
        while (merge->slots[at]) {
            merge->slots[at] = 0;
            at = (at + 1) & (merge->capacity - 1);
        }
    }
    merge->count = 0;
    return ps_merge_add(merge, push, err);
}
