/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_DIVIDED_SUM_H
#define AGENT_RUNTIME_EXECUTOR_DIVIDED_SUM_H

/*
 * Sums of divided gradients (libfleet/plan/adders.h): in each round, a rank sends its micro-batch's
 * gradient of a bucket to the ranks that add it up, piece by piece, and adds up what it gets.
 *
 * Memory: the first slot has what the rank holds of the gradient, as the ownership map says; it
 * gets the complete sum. Each further slot has the elements that the rank adds up. After a round,
 * slot i holds the i-th of the subtrees that cover all leaves so far, from left to right.
 *
 * On the host, messages have at most RUNTIME_EXCHANGE_PART elements of one adder at a time, and
 * additions run in blocks whose intermediate sums stay in the cache. If the communicator has the
 * library of the devices (comm/device.h), the devices send whole parts and add: the bits are the
 * same. One thread calls; nothing is allocated after the first update.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/backend/backend.h"

struct comm;
struct comm_message;
struct fleet_error;
struct ownership;

/* Elements of the gradient space. */
struct divided_range {
    int64_t first, count;
};

struct divided_sum {
    const struct ownership *map; /* borrowed */
    int64_t space;               /* elements of the gradient space */
    int64_t stride;              /* elements that are received of a rank at a time, at most */
    int rank, world;
    struct adder_piece *pieces; /* [piece_count] of all ranks */
    int64_t *held; /* [piece_count] a piece's first element in the first slot, or -1: not held */
    bool *holders; /* [piece_count × world] ranks that hold it */
    float **hosts; /* [piece_count] while a piece is mapped */
    int piece_count;
    struct divided_range *gaps; /* [gap_count] elements without a gradient: their sum is 0 */
    int gap_count;
    float *const *slots; /* device memory */
    int64_t leaves;      /* of the update at work; 0: nothing is summed */
    int64_t done;        /* in earlier rounds */
    bool is_captured;    /* the call at work becomes part of a graph; nothing runs */

    struct comm_message *messages; /* [message_capacity], of the call at work */
    int message_count, message_capacity;
};

/* For the gradients of `program` as rank `rank` of the map's replicas holds them. Map
 * and slots are borrowed. Release *out. */
void divided_sum_init(struct divided_sum *out, const struct program *program,
                      const struct ownership *map, int rank, float *const *slots);
void divided_sum_release(struct divided_sum *sum);

/* Before the first round, and behind each. An update that is not summed has 0 leaves. */
void divided_sum_begin(struct divided_sum *sum, int64_t leaves);
void divided_sum_next_round(struct divided_sum *sum);

/* The round that runs next, from 0 on. The parts of a stage of a pipeline do not run round by
 * round. */
void divided_sum_set_round(struct divided_sum *sum, int64_t round);

/* Do the devices of `comm` add? Only then a call can be part of a graph (comm/device.h). The answer
 * is the same on all ranks. */
bool divided_sum_is_on_device(const struct divided_sum *sum, const struct comm *comm);

/* Each rank has a micro-batch in the round that runs next, and it is summed. The answer is the same
 * on all ranks. */
bool divided_sum_is_full(const struct divided_sum *sum);

/* Bytes of workspace on the host for a range. It is called for each range before the first
 * update. */
size_t divided_sum_workspace(struct divided_sum *sum, struct divided_range range);

/* Add the round's micro-batches in `range`. `bucket`, device memory, has the own one, if this rank
 * has one in this round; zeros are written into its gaps. Errors as comm_messages(). */
int divided_sum_add(struct divided_sum *sum, struct comm *comm, struct backend *backend,
                    struct divided_range range, float *bucket, void *workspace, double deadline_ms,
                    struct fleet_error *err);

/* Behind the last round: bring complete sums to the other ranks that hold them. */
int divided_sum_share(struct divided_sum *sum, struct comm *comm, struct backend *backend,
                      double deadline_ms, struct fleet_error *err);

#endif
