/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/leaf_range.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

static struct leaf_range range_of(int64_t leaves, int world, int rank, bool in_turn)
{
    struct tree_share share = tree_share_of(leaves, world, rank, in_turn);

    return (struct leaf_range){
        .leaves = leaves, .first = share.first, .end = share.end, .step = share.step, .slots = 1};
}

int64_t leaf_range_own(const struct leaf_range *range)
{
    return (range->end - range->first + range->step - 1) / range->step;
}

/* The own leaves one behind the other, without additions. */
static void list_runs(struct leaf_range *range)
{
    range->count = range->folds_first = leaf_range_own(range);
    range->instructions = calloc((size_t)range->count + 1, sizeof(*range->instructions));
    fleet_assert(range->instructions != NULL);
    for (int64_t i = 0; i < range->count; i++)
        range->instructions[i] =
            (struct tree_instruction){.kind = TREE_RUN, .leaf = range->first + i * range->step};
}

void leaf_range_init(struct leaf_range *range, int64_t leaves, int world, int rank)
{
    *range = range_of(leaves, world, rank, false);
    range->count =
        tree_schedule(leaves, range->first, range->end, &range->instructions, &range->slots);
    if (range->slots < 1)
        range->slots = 1;
    range->folds_first = range->count;
    while (range->folds_first > 0 && range->instructions[range->folds_first - 1].kind == TREE_ADD)
        range->folds_first--;
}

void leaf_range_init_in_turn(struct leaf_range *range, int64_t leaves, int world, int rank)
{
    *range = range_of(leaves, world, rank, true);
    list_runs(range);
}

void leaf_range_init_unsummed(struct leaf_range *range, int64_t leaves, int world, int rank,
                              bool in_turn)
{
    *range = range_of(leaves, world, rank, in_turn);
    list_runs(range);
}

void leaf_range_release(struct leaf_range *range)
{
    free(range->instructions);
    *range = (struct leaf_range){0};
}
