/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_HIERARCHY_H
#define AGENT_RUNTIME_EXECUTOR_HIERARCHY_H

/*
 * The sum over ranks in two levels (use_hierarchical_allreduce). Blocks of ranks that follow each
 * other have a leader, their first rank. For each piece of a range:
 *
 *   1. the ranks of a block send their partial sums to the leader, which adds them as far as the
 *      tree lies in the block;
 *   2. the leaders complete the tree among themselves (comm_tree_sum);
 *   3. the leader sends the result to its block.
 *
 * A block holds neighbouring leaves, so its partial sums are nodes of the same tree as those of its
 * ranks: the bits are those of the sum in one level. If a block is one machine, each machine sends
 * what one rank sends.
 *
 * A sum of halves (fp16_allreduce) adds in the order of the ranks and rounds once, so the leaders
 * pass it on from block to block in fp32, each with its block's halves added. The last leader
 * rounds it and sends it to the others. Pieces follow each other along the leaders.
 */

#include <stddef.h>
#include <stdint.h>

struct comm;
struct fleet_error;

struct hierarchy {
    struct comm *block;   /* this rank's; its first rank leads */
    struct comm *leaders; /* NULL: this rank leads no block */
    int ranks, place;     /* of the whole group, whose size is a multiple of a block's */
};

/* A sum of slots[…][0 … count), as comm_tree_sum(). The partial sums may change. */
struct hierarchy_sum {
    const struct hierarchy *hierarchy;
    int64_t leaves;
    float *const *slots;
    int nodes; /* of this rank */
    int64_t count;
    void *workspace; /* hierarchy_workspace() bytes */
    double deadline_ms;
};

/* Make the communicators for blocks of `block` ranks of `parent`. A collective of `parent`; errors
 * as comm_group(). -EINVAL: `block` does not divide its ranks. */
int hierarchy_open(struct comm *parent, int block, double deadline_ms, struct hierarchy *out,
                   struct fleet_error *err);
void hierarchy_close(struct hierarchy *hierarchy);

int hierarchy_tree_sum(const struct hierarchy_sum *sum, struct fleet_error *err);

size_t hierarchy_workspace(const struct hierarchy *hierarchy, int64_t leaves, int64_t count);

/* The sum of all ranks' halves[0 … count), in place: the bits of a comm_all_reduce() over COMM_FP16
 * of the whole group. The memory has runtime_hierarchy_halves_bytes() bytes and begins with the
 * halves. */
struct hierarchy_halves {
    const struct hierarchy *hierarchy;
    void *memory; /* 8-byte aligned */
    int64_t count;
    double deadline_ms;
};

int hierarchy_sum_halves(const struct hierarchy_halves *sum, struct fleet_error *err);

#endif
