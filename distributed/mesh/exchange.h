/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_MESH_EXCHANGE_H
#define DISTRIBUTED_MESH_EXCHANGE_H

/*
 * Slices on their way between the processes of a line: each one holds a slice and wants another.
 * The messages go over the world, so a mesh needs no groups, and processes outside the line are not
 * concerned.
 */

#include "agent/runtime/comm/comm.h"
#include "distributed/distributed.h"
#include "distributed/mesh/rect.h"

/* A line of `count` processes; this one is number `own`. */
struct exchange {
    const char *what; /* the caller, for errors */
    enum comm_type type;
    int dims;
    int count, own;
    const int *ranks;                 /* [count] of the world */
    const struct rect *held, *wanted; /* [count] */
    bool reduces;                     /* every process holds a term */
    enum comm_reduction reduction;
};

/*
 * *out becomes a new array with what this process wants of `data`, the caller's. Without `reduces`
 * every wanted element is held by one process at least: this one, or else the first that has it.
 * Reductions go in the order of the line. -ENOMEM, and the errors of fleet_batch_p2p().
 */
int exchange_run(const struct exchange *exchange, const void *data, void **out,
                 struct fleet_error *err);

/* The same as two exchanges of equal parts: *out becomes the reduction of all that is held, which
 * has one shape. `held` and `wanted` of *exchange are not read. */
int exchange_all_reduce(const struct exchange *exchange, const void *data, int64_t elements,
                        void **out, struct fleet_error *err);

#endif
