/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_GATHER_H
#define AGENT_RUNTIME_EXECUTOR_GATHER_H

/*
 * Gathers of divided parameters (libfleet/plan/gathers.h): a rank copies the parts that it holds
 * into the arena, sends those that it answers for, and receives the others. All messages of one
 * gather go at once. What travels in 16 bits is rounded on all ranks, also on those that hold it.
 * If the communicator has a device's library (device.h), messages go between the devices, and the
 * numbers in 16 bits lie in memory of the library; else all goes by way of the host's memory.
 *
 * One thread calls; gather_run() allocates nothing, but in its first run the library does.
 */

#include "agent/runtime/backend/backend.h"
#include "libfleet/plan/gathers.h"

struct comm;
struct comm_message;
struct fleet_error;
struct ownership;

/* A piece of memory that is mapped while a gather runs. */
struct gather_piece {
    void *device, *host;
    size_t bytes;
    enum backend_access access;
    enum program_type type; /* that travels */
};

struct gather {
    const struct ownership *map;   /* borrowed */
    const struct program *program; /* borrowed */
    struct gathers_parts parts;
    int replica;
    struct comm_message *messages; /* [message_count], of the call at work */
    struct gather_piece *pieces;   /* [piece_count], the same */
    int message_count, piece_count;
    bool is_captured; /* the call at work becomes part of a graph; nothing runs */
};

/* For the gathers of `program` as rank `replica` of the map's replicas runs them. Both are
 * borrowed. Release *out; fine on a zeroed struct. */
void gather_init(struct gather *out, const struct program *program, const struct ownership *map,
                 int replica);
void gather_release(struct gather *gather);

/* Run gather `op`. `held` is the memory of the parameters that this rank holds, `out` that of the
 * range: both of the device. `comm` has the map's replicas; NULL: this rank is alone. Errors as
 * comm_messages(). */
int gather_run(struct gather *gather, struct comm *comm, struct backend *backend,
               const struct program_op *op, const float *held, float *out, double deadline_ms,
               struct fleet_error *err);

/* The same for a rank that holds all parameters and is alone. */
void gather_copy(struct backend *backend, const struct program_op *op, const float *held,
                 float *out);

#endif
