/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_RUNTIME_HIERARCHY_H
#define LIBFLEET_PLAN_RUNTIME_HIERARCHY_H

/*
 * Memory and traffic of the sum in two levels (agent/runtime/executor/hierarchy.h), for the plan
 * and for the runtime.
 */

#include <stddef.h>
#include <stdint.h>

#define RUNTIME_HIERARCHY_PIECE ((int64_t)128 << 10) /* elements that are summed at a time */
#define RUNTIME_HIERARCHY_ENTRY ((size_t)48)         /* bytes of a message, of a held node */

/* Sums of halves: bytes for a rank of a block beside those of its elements. */
#define RUNTIME_HIERARCHY_MEMBER ((size_t)56)

struct runtime_hierarchy {
    int64_t leaves;
    int ranks, block, place; /* of a block of `block` ranks; `block` divides `ranks` */
};

/* The block that takes effect with so many ranks: 0: the sum has one level. */
int runtime_hierarchy_block(int block, int ranks);

/* Parts of the workspace for ranges of up to `count` elements, in bytes. The first part is the
 * largest over all ranks. The rest is for the sum among leaders. */
struct runtime_hierarchy_layout {
    size_t copies, messages, held, rest;
};
void runtime_hierarchy_lay_out(const struct runtime_hierarchy *h, int64_t count,
                               struct runtime_hierarchy_layout *out);

/* The whole workspace. */
size_t runtime_hierarchy_bytes(const struct runtime_hierarchy *h, int64_t count);

/* Bytes that the rank at `place` sends in the sum of `count` elements. */
double runtime_hierarchy_sent(const struct runtime_hierarchy *h, int64_t count);

/* The same for the sum of `count` halves (fp16_allreduce). The workspace has the halves, a piece of
 * the sum in fp32, and a piece of the halves of each other rank of the block. */
#define RUNTIME_HIERARCHY_HALVES(count) (((size_t)(count) * sizeof(uint16_t) + 7) / 8 * 8)
size_t runtime_hierarchy_halves_bytes(int block, int64_t count);
double runtime_hierarchy_halves_sent(const struct runtime_hierarchy *h, int64_t count);

#endif
