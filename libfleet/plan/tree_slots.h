/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_TREE_SLOTS_H
#define LIBFLEET_PLAN_TREE_SLOTS_H

/*
 * What the summation tree of spec/training.md 2 costs a rank: S(a, b) = S(a, c) + S(c, b), c = a +
 * the greatest power of two below b - a; rank r of w holds leaves of a contiguous range, sizes
 * differing by at most one, the larger ones first. The runtime's tree does the work, this tells
 * its price beforehand.
 */

#include <stdint.h>

struct tree_slots {
    int nodes; /* partial sums the rank sends: complete subtrees inside its range */
    int slots; /* gradient buffers live at once while it folds them, >= nodes */
};

/* Of one rank. leaves >= world >= 1. */
struct tree_slots tree_slots_of(int64_t leaves, int world, int rank);

/* The greatest of both over all ranks, and the sum of the nodes of all ranks. */
struct tree_slots tree_slots_max(int64_t leaves, int world, int64_t *out_nodes_total);

#endif
