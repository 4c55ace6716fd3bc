/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/leaf_range.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

void leaf_range_init(struct leaf_range *range, int64_t leaves, int world, int rank)
{
    *range = (struct leaf_range){.leaves = leaves,
                                 .first = tree_first_leaf(leaves, world, rank),
                                 .end = tree_first_leaf(leaves, world, rank + 1)};
    range->count =
        tree_schedule(leaves, range->first, range->end, &range->instructions, &range->slots);
    if (range->slots < 1)
        range->slots = 1;
    range->folds_first = range->count;
    while (range->folds_first > 0 && range->instructions[range->folds_first - 1].kind == TREE_ADD)
        range->folds_first--;
}

void leaf_range_init_unsummed(struct leaf_range *range, int64_t leaves, int world, int rank)
{
    *range = (struct leaf_range){.leaves = leaves,
                                 .first = tree_first_leaf(leaves, world, rank),
                                 .end = tree_first_leaf(leaves, world, rank + 1),
                                 .slots = 1};
    range->count = range->folds_first = range->end - range->first;
    range->instructions = calloc((size_t)range->count + 1, sizeof(*range->instructions));
    fleet_assert(range->instructions != NULL);
    for (int64_t i = 0; i < range->count; i++)
        range->instructions[i] =
            (struct tree_instruction){.kind = TREE_RUN, .leaf = range->first + i};
}

void leaf_range_release(struct leaf_range *range)
{
    free(range->instructions);
    *range = (struct leaf_range){0};
}
