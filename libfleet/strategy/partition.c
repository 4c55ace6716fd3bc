/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Paddle's two ways to assign parameters to the ranks of a sharding group, as recorded. `ordered`
 * fills one rank after another with its share of the total. `greedy` gives each parameter to the
 * rank that is lightest so far.
 */
#include "libfleet/strategy/partition.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

void partition_ordered(const int64_t *sizes, size_t count, int ranks, int *owners)
{
    double total = 0, handed_out = 0;
    int rank = 0;

    fleet_assert(ranks >= 1);
    for (size_t i = 0; i < count; i++)
        total += (double)sizes[i];
    for (size_t i = 0; i < count; i++) {
        if (handed_out > total * (rank + 1) / ranks && rank + 1 < ranks)
            rank++;
        owners[i] = rank;
        handed_out += (double)sizes[i];
    }
}

void partition_greedy(const int64_t *sizes, size_t count, int ranks, int *owners)
{
    int64_t *weights = calloc((size_t)ranks, sizeof(*weights));

    fleet_assert(ranks >= 1 && weights);
    for (size_t i = 0; i < count; i++) {
        int lightest = 0;

        for (int rank = 1; rank < ranks; rank++)
            if (weights[rank] < weights[lightest])
                lightest = rank;
        owners[i] = lightest;
        weights[lightest] += sizes[i];
    }
    free(weights);
}
