/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_COMMUNICATION_H
#define AGENT_RUNTIME_EXECUTOR_COMMUNICATION_H

/*
 * Runs communication operators (libfleet/program/op.h) as calls of comm.h. It chooses groups, types
 * on the wire, ranges of flat spaces, and the partial sums of the gradient.
 *
 * A group of one rank needs no communicator. Then an operator with operands copies them, and an
 * operator over a range leaves the range unchanged. A gather (gather.h) always fills its range.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/comm/device.h"
#include "agent/runtime/executor/hierarchy.h"
#include "libfleet/plan/tree.h"

struct comm;
struct comm_message;
struct divided_sum;
struct fleet_error;
struct gather;

/* The data of a rank for its communication. All of it is borrowed; the caller changes it only while
 * nothing runs. */
struct communication {
    struct comm *world;                      /* aborted when a run fails halfway; may be NULL */
    struct comm *groups[OP_GROUP_WORLD + 1]; /* by the set of axes; NULL: only this rank */
    struct hierarchy hierarchy;              /* of sums over OP_GROUP_REPLICAS; block NULL: none */
    void *workspace;                         /* host memory: communication_workspace() bytes */
    bool in_compute_queue;                   /* there is no second queue */
    bool any_order;                     /* reductions may add in an order of the device's library */
    enum comm_device_captures captures; /* on all ranks; all replicas have a micro-batch */
    bool is_even;                       /* all replicas have equally many micro-batches */

    double (*deadline_ms)(void *context); /* for an operation that starts now */
    void *context;

    /* The part of the operator's range that the rank at `place` of its group owns: elements
     * [*out_first, + *out_count) of the space. NULL: no operator needs it. */
    void (*owned)(void *context, const struct program_op *op, int place, int64_t *out_first,
                  int64_t *out_count);

    /* The gradient. slots[0 … nodes) hold this rank's partial sums after the additions `folds`. The
     * operators that read the gradient make these additions. slots[0] gets the sum. */
    float *const *slots;
    int nodes; /* 0: the rank has no leaves */
    int64_t leaves;
    const struct tree_instruction *folds; /* [fold_count], all TREE_ADD */
    int64_t fold_count;
    double averaged;             /* a rank divides by this before it rounds to fp16 */
    struct divided_sum *divided; /* of programs that sum gradients inside the micro-batch section */
    struct gather *gather;       /* of programs that gather parameters there; NULL: it has all */

    struct run_messages messages; /* of dgc, as the kernels have them */
};

/* Bytes of host memory that any one operator of `program` needs in this rank's groups. */
size_t communication_workspace(const struct communication *c, const struct program *program);

/*
 * Communication inside a graph (backend.h). communication_can_capture(): `op` communicates in the
 * queue of the device alone, and has work there. communication_capture() is communication_run()
 * while the queue of `backend` is captured; the operator has run before.
 */
bool communication_can_capture(const struct communication *c, const struct program_op *op);
/* What else a graph of communication depends on: the round of divided sums. */
int64_t communication_round(const struct communication *c);

int communication_capture(const struct communication *c, struct backend *backend,
                          const struct program *program, const struct program_op *op,
                          const void *in, void *out, struct fleet_error *err);

/* The groups of some operators: bit g is the group of the axes g. */
typedef uint64_t communication_groups;

/* Those whose ranks run `op` together. */
communication_groups communication_groups_of(const struct program_op *op);

/* Has each rank of the groups called this with `is_ready`? Then *out is true. */
int communication_agree(const struct communication *c, communication_groups groups, bool is_ready,
                        bool *out, struct fleet_error *err);

/* Wait until all that is in the queue of `backend` has ended, on all ranks of the groups: they have
 * put the same graph. Errors of comm_wait(). */
int communication_await(const struct communication *c, communication_groups groups,
                        struct backend *backend, struct fleet_error *err);

/* Post all messages between stages of a pipeline at once, and wait until all have arrived. `posts`
 * is memory for as many comm_messages. Errors of comm_messages(). */
struct communication_message {
    const struct program_op *op; /* SEND or RECEIVE of operands */
    void *data;                  /* its operand, in device memory */
};
int communication_pass(const struct communication *c, struct backend *backend,
                       const struct program *program, const struct communication_message *messages,
                       struct comm_message *posts, int count, struct fleet_error *err);

/* Run `op`; what it does on the device goes into the queue of `backend`. `in` and `out` are its
 * operands in device memory; for a range both point to its first element in the segment of its
 * space. `in` of a gather is the memory of the parameters that the rank holds. Errors as in comm.h,
 * with the operator's name in front; -EINVAL: the group has no rank at the root or shift. */
int communication_run(const struct communication *c, struct backend *backend,
                      const struct program *program, const struct program_op *op, const void *in,
                      void *out, struct fleet_error *err);

#endif
