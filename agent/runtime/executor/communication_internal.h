/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_COMMUNICATION_INTERNAL_H
#define AGENT_RUNTIME_EXECUTOR_COMMUNICATION_INTERNAL_H

/*
 * What the files of communication.h share, for them alone: communication.c (which operator is which
 * call), communication_call.c (one call of comm.h), communication_ranges.c (operators over a range
 * of a flat space), communication_graph.c (inside graphs).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/executor/communication.h"

struct divided_range;

/* One operator at work. */
struct communication_work {
    const struct communication *c;
    struct backend *backend;
    const struct program *program;
    const struct program_op *op;
    struct comm *comm;
    bool is_captured; /* into a graph: nothing runs */
    bool on_device;   /* collectives use the device's memory, in the queue of `backend` */
    struct fleet_error *err;
};

/* ---- communication.c ------------------------------------------------------------------------- */

/* Does the operator communicate in the memory of the devices, by their library? */
bool communication_uses_device(const struct comm *comm, const struct program_op *op);

/* ---- communication_call.c -------------------------------------------------------------------- */

/* For a call that starts now, in monotonic ms. */
double communication_deadline(const struct communication_work *x);

/* Make a call of comm.h for the operator. */
int communication_make(const struct communication_work *x, const struct comm_call *call);

/* The device's queue for the call; NULL: the host makes it. */
struct backend *communication_queue(const struct communication_work *x);

enum comm_reduction communication_reduction(const struct program_op *op);
enum comm_type communication_type(enum program_type type);

/* The memory for a collective: the device's own, or the host's view of it, which
 * communication_end_view() ends. */
void *communication_view(const struct communication_work *x, const void *memory, size_t bytes,
                         enum backend_access access);
void communication_end_view(const struct communication_work *x, const void *memory, size_t bytes,
                            enum backend_access access, void *seen);

/* The operator's call, over `count` elements of `send`; RECEIVE: of `receive`. The two may be the
 * same memory where comm.h allows it. Errors of comm.h; -EINVAL: the group has no rank at the root
 * or shift. */
int communication_call(const struct communication_work *x, const void *send, void *receive,
                       int64_t count, enum comm_type type);

/* ---- communication_ranges.c ------------------------------------------------------------------ */

/* The elements of the flat space that the operator covers. */
struct divided_range communication_range(const struct program_op *op);

/* Is the operator the sum of a gradient in fp16 (fp16_allreduce)? */
bool communication_is_sum_of_halves(const struct program_op *op);

/* Is the operator a sum that is made first in each block of ranks, then between blocks? */
bool communication_has_two_levels(const struct communication *c, const struct program_op *op);

/* Complete the partial sums of this rank in the operator's range. */
void communication_fold(const struct communication_work *x);

/* Add all partial sums of this rank in slot 0, which is returned. */
float *communication_add_nodes(const struct communication_work *x);

/* The sum of a gradient: each rank gets the sums of some elements only; each gets all of them. */
int communication_run_divided(const struct communication_work *x, float *bucket);
int communication_run_gradients(const struct communication_work *x);

/* An operator over a range of any other space. */
int communication_run_range(const struct communication_work *x, float *range);

#endif
