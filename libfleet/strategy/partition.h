/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PARTITION_H
#define LIBFLEET_STRATEGY_PARTITION_H

/*
 * Which rank of a sharding group owns which parameter. Whole parameters are handed out, in program
 * order; a rank may end up with none.
 *
 *   ordered  Paddle's rule: on to the next rank once what was handed out exceeds its share of the
 *            total, at most one rank further a parameter
 *   greedy   always the lightest rank, ties to the lower one
 */

#include <stddef.h>
#include <stdint.h>

/* owners[i] in [0, ranks) for sizes[i] > 0, i < count. ranks >= 1. */
void partition_ordered(const int64_t *sizes, size_t count, int ranks, int *owners);
void partition_greedy(const int64_t *sizes, size_t count, int ranks, int *owners);

#endif
