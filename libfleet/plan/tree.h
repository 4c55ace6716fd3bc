/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_TREE_H
#define LIBFLEET_PLAN_TREE_H

/*
 * The summation tree over micro-batches (spec/training.md 2): its shape, the part of it that a rank
 * holds, and the order in which a rank folds its part. Pure arithmetic; agent/runtime/comm does the
 * sum.
 */

#include <stdint.h>

/*
 * The summation tree over `leaves` micro-batches: S(a, b) = S(a, c) + S(c, b), c = a + greatest
 * power of two below b - a. Rank r of w holds leaves [tree_first(r), tree_first(r + 1)), sizes
 * differing by at most one, the larger ones first.
 */
int64_t tree_first_leaf(int64_t leaves, int world, int rank);

struct tree_node {
    int64_t first, end; /* leaves [first, end): a complete subtree of the whole tree */
};

#define TREE_NODES_MAX 128 /* 2 · ⌈log2 leaves⌉ for any number of leaves that fits 63 bits */

/* The largest complete subtrees inside [first, end), left to right: the partial sums a rank holds.
 * Returns their number. */
int tree_nodes(int64_t leaves, int64_t first, int64_t end, struct tree_node out[TREE_NODES_MAX]);

/*
 * How a rank folds its leaves into its nodes with the fewest live buffers: a list of instructions.
 * RUN: compute leaf `leaf` into slot `slot`. ADD: slot `into` += slot `slot` (then free).
 * After the last one, node i of tree_nodes() lies in slot i.
 */
struct tree_instruction {
    enum {
        TREE_RUN,
        TREE_ADD
    } kind;
    int64_t leaf;
    int slot, into;
};

/* Heap list into *out (caller frees); returns its length. *out_slots = slots needed. */
int64_t tree_schedule(int64_t leaves, int64_t first, int64_t end, struct tree_instruction **out,
                      int *out_slots);

#endif
