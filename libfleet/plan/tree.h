/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_TREE_H
#define LIBFLEET_PLAN_TREE_H

/*
 * The summation tree over micro-batches: its shape, the part of it that a rank
 * holds, the order in which a rank folds its part, and what that costs. Pure arithmetic;
 * agent/runtime/comm does the sum.
 *
 * S(a, b) = S(a, c) + S(c, b), c = tree_split(a, b). So left parts are complete binary trees and
 * never smaller than right ones.
 */

#include <stdbool.h>
#include <stdint.h>

/* Where node [a, b) of at least two leaves splits: a + the greatest power of two below b - a. */
static inline int64_t tree_split(int64_t a, int64_t b)
{
    return a + (INT64_C(1) << (63 - __builtin_clzll((unsigned long long)(b - a - 1))));
}

/* Rank `rank` of `world` holds leaves [tree_first_leaf(rank), tree_first_leaf(rank + 1)): sizes
 * differ by at most one, the larger ones come first. */
int64_t tree_first_leaf(int64_t leaves, int world, int rank);

/* The leaves that a rank runs: first, first + step, … below `end`. */
struct tree_share {
    int64_t first, end, step;
};

/* The share of a rank: the run of tree_first_leaf(), or every world-th leaf if ranks take them in
 * turn (adders.h). Both have the same number of leaves. */
struct tree_share tree_share_of(int64_t leaves, int world, int rank, bool in_turn);

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

/* ---- what it costs --------------------------------------------------------------------------- */

struct tree_slots {
    int nodes; /* partial sums the rank sends: complete subtrees inside its range */
    int slots; /* gradient buffers live at once while it folds them, >= nodes */
};

/* Of one rank. leaves >= world >= 1. */
struct tree_slots tree_slots_of(int64_t leaves, int world, int rank);

/* The greatest of both over all ranks, and the sum of the nodes of all ranks. */
struct tree_slots tree_slots_max(int64_t leaves, int world, int64_t *out_nodes_total);

#endif
