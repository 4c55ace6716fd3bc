/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_MERGE_H
#define DISTRIBUTED_PS_MERGE_H

/* Sums of gradients that have the same key, in the order of the list. */

#include "distributed/ps/table.h"

struct ps_merge {
    size_t width, count, room;
    uint64_t *keys;   /* [count], each once, in the order in which they first come */
    float *gradients; /* [count × width] */
    float *stats;     /* [count × 2]: show, click */
    uint32_t *slots;  /* [capacity] of entry + 1 */
    size_t capacity;
};

struct ps_merge *ps_merge_new(size_t width); /* NULL: memory is out */
void ps_merge_free(struct ps_merge *merge);  /* NULL is fine */

/* Begin again, with the sums of `push`. -ENOMEM */
int ps_merge_push(struct ps_merge *merge, const struct ps_push *push, struct fleet_error *err);

/* Add to what is there. -ENOMEM */
int ps_merge_add(struct ps_merge *merge, const struct ps_push *push, struct fleet_error *err);

#endif
