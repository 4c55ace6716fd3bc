/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_ADDERS_H
#define LIBFLEET_PLAN_ADDERS_H

/*
 * Divided gradients: which rank adds up which elements of the gradient, and what that costs.
 *
 * Ranks take micro-batches in turn: rank r of N runs leaves r, N + r, 2N + r, … of the summation
 * tree (tree.h). After round j, leaves 0 … (j+1)·N - 1 are complete. So an adder, which gets its
 * elements of N consecutive leaves in each round, always holds the sums of at most log2(leaves)
 * subtrees that ascend without a gap, and nothing else. No rank holds a sum over its own leaves.
 *
 * The owners of a line of the ownership map are its adders, and divide it among themselves. The
 * complete sum then goes to the other holders: to owners of other groups, and to the buddy.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ownership;
struct program;

/* Elements [first, first + count) of the gradient space that one rank adds up. */
struct adder_piece {
    int64_t first, count;
    int line;   /* of the map */
    int rank;   /* replica */
    int64_t at; /* elements that the rank adds up before these */
};

/* The program sums gradients inside the micro-batch section, so that no rank keeps all of them. */
bool adders_are_used(const struct program *program);

/* The pieces of a space of `count` elements, ascending, without gaps; heap list into *out. Returns
 * its length. */
int adders_list(const struct ownership *map, int64_t count, struct adder_piece **out);

/* The elements of [first, end) that `rank` adds up; and a limit of the same for any rank, which is
 * less than 16 elements a line above the most. The space has `count` elements. */
int64_t adders_elements(const struct ownership *map, int64_t count, int rank, int64_t first,
                        int64_t end);
int64_t adders_limit(const struct ownership *map, int64_t count, int64_t first, int64_t end);

/* Sums that an adder holds at most between two rounds, at least 1: the first one gets the sum. */
int adders_slots(int64_t leaves, int world);

/* Kernels add up at most so many sums at a time, and keep so many under way (tree_sum.cu). */
#define ADDERS_DEVICE_NODES 128
#define ADDERS_DEVICE_DEPTH 16

/* Can devices add up a round of `world` ranks? Else the host does. */
bool adders_fit_device(int world, int64_t leaves);

/* Device memory for what a rank gets of all ranks, if it adds up at most `limit` elements of a
 * bucket. */
size_t adders_device_bytes(int world, int64_t limit);

#endif
