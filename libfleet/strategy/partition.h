/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PARTITION_H
#define LIBFLEET_STRATEGY_PARTITION_H

/*
 * Decides which rank of a sharding group owns which parameter. Each parameter goes to one rank as a
 * whole, in program order. A rank may get none.
 *
 *   ordered  Paddle's rule: when the sum of the assigned sizes exceeds the equal shares of all
 *            ranks up to the current one, the next parameter goes to the next rank
 *   greedy   each parameter goes to the rank with the smallest sum so far; if several are equal, to
 *            the lowest of them
 */

#include <stddef.h>
#include <stdint.h>

/* owners[i] in [0, ranks) for sizes[i] > 0, i < count. ranks >= 1. */
void partition_ordered(const int64_t *sizes, size_t count, int ranks, int *owners);
void partition_greedy(const int64_t *sizes, size_t count, int ranks, int *owners);

#endif
