/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/share.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

void share_init(struct share *share, int64_t leaves, int world, int rank)
{
    *share = (struct share){.leaves = leaves,
                            .first = tree_first_leaf(leaves, world, rank),
                            .end = tree_first_leaf(leaves, world, rank + 1)};
    share->count =
        tree_schedule(leaves, share->first, share->end, &share->instructions, &share->slots);
    if (share->slots < 1)
        share->slots = 1;
}

void share_init_unsummed(struct share *share, int64_t leaves, int world, int rank)
{
    *share = (struct share){.leaves = leaves,
                            .first = tree_first_leaf(leaves, world, rank),
                            .end = tree_first_leaf(leaves, world, rank + 1),
                            .slots = 1};
    share->count = share->end - share->first;
    share->instructions = calloc((size_t)share->count + 1, sizeof(*share->instructions));
    fleet_assert(share->instructions != NULL);
    for (int64_t i = 0; i < share->count; i++)
        share->instructions[i] =
            (struct tree_instruction){.kind = TREE_RUN, .leaf = share->first + i};
}

void share_release(struct share *share)
{
    free(share->instructions);
    *share = (struct share){0};
}
