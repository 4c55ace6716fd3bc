/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_RUNTIME_TRAFFIC_H
#define LIBFLEET_PLAN_RUNTIME_TRAFFIC_H

/*
 * How many bytes a rank sends in a communication operator. agent/runtime/comm cuts what it sends by
 * the sizes here, and a test compares these numbers with the bytes that it counts.
 */

#include <stdint.h>

#include "libfleet/program/program.h"

/* Reductions: bytes up to which all go to all; bytes of a part, one a rank. */
#define RUNTIME_REDUCE_WHOLE ((int64_t)16 << 10)
#define RUNTIME_REDUCE_PART  ((int64_t)256 << 10)

/* Broadcasts: bytes up to which the root sends to all; more go along a chain of ranks. */
#define RUNTIME_BROADCAST_DIRECT ((int64_t)64 << 10)

/* The first element of part `part` of `count` elements, one part a rank. */
int64_t runtime_part_first(int64_t count, int world, int part);

/* A rank's place in the group of an operator. */
struct runtime_place {
    int ranks, place;
    int64_t leaves; /* micro-batches of an update, over all ranks of the group */
    int block;      /* of the sum in two levels; 0: it has one (runtime_hierarchy.h) */
};

/* Bytes that the rank sends in one execution. Parts of a range are taken as equal. */
double runtime_sent(const struct program *program, const struct program_op *op,
                    const struct runtime_place *place);

/* The same of one comm_tree_sum() of a rank with so many partial sums, and of one comm_broadcast()
 * from the first of `ranks`. */
double runtime_tree_sum_sent(int64_t count, int64_t nodes, const struct runtime_place *place);
double runtime_broadcast_sent(double bytes, int ranks, int place);

/* Rounds of one execution over `ranks` ranks. In each, every rank waits for all others: a large sum
 * takes two a chunk. 1 for everything but sums. */
double runtime_rounds(const struct program *program, const struct program_op *op, int ranks);

#endif
