/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_MERGE_H
#define DISTRIBUTED_PS_MERGE_H

/*
 * The sums of pushed gradients by key. The gradients of one key are added in the order in which
 * they came. The memory is kept for the next use.
 */

#include "distributed/ps/table.h"

struct ps_merge {
    size_t width;     /* floats of a gradient */
    size_t count;     /* keys */
    size_t room;      /* keys that fit into the lists */
    uint64_t *keys;   /* [count], each once, in the order in which they first came */
    float *gradients; /* [count × width] */
    float *stats;     /* [count × 2]: show, click */
    uint32_t *slots;  /* [capacity]: a hash table of entry + 1; 0: free */
    size_t capacity;
};

struct ps_merge *ps_merge_new(size_t width); /* NULL: memory is out */
void ps_merge_free(struct ps_merge *merge);  /* NULL is fine */

/* Drop all sums, then add `push`. -ENOMEM */
int ps_merge_push(struct ps_merge *merge, const struct ps_push *push, struct fleet_error *err);

/* Add `push` to the sums. -ENOMEM */
int ps_merge_add(struct ps_merge *merge, const struct ps_push *push, struct fleet_error *err);

#endif
