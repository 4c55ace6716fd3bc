/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_COMMUNICATION_H
#define AGENT_RUNTIME_EXECUTOR_COMMUNICATION_H

/*
 * Communication operators (libfleet/program/op.h) as calls of comm.h: groups, types on the wire,
 * ranges of flat spaces, the partial sums of the gradient.
 *
 * A group of one rank needs no communicator: operators over operands copy then, those over a range
 * leave it as it is.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/backend/backend.h"
#include "libfleet/plan/tree.h"

struct comm;
struct fleet_error;

/* What a rank brings along. All is borrowed; the caller changes it only while nothing runs. */
struct communication {
    struct comm *world;                      /* aborted when a run fails halfway; may be NULL */
    struct comm *groups[OP_GROUP_WORLD + 1]; /* by the set of axes; NULL: this rank alone */
    struct backend *memory;                  /* whose memory the operands are */
    void *workspace;                         /* of the host: communication_workspace() bytes */
    bool in_compute_queue;                   /* there is no second queue */

    double (*deadline_ms)(void *context); /* of an operation that starts now */
    void *context;

    /* What the rank at `place` of the operator's group owns of its range: elements
     * [*out_first, + *out_count) of the space. NULL: no operator asks. */
    void (*owned)(void *context, const struct program_op *op, int place, int64_t *out_first,
                  int64_t *out_count);

    /* The gradient: slots[0 … nodes) hold this rank's partial sums once the additions `folds` have
     * been made, which are left to the operators that read the gradient; slots[0] gets the sum. */
    float *const *slots;
    int nodes; /* 0: the rank has no leaves */
    int64_t leaves;
    const struct tree_instruction *folds; /* [fold_count], all TREE_ADD */
    int64_t fold_count;
    double averaged; /* what a rank divides by before it rounds to fp16 */

    struct run_messages messages; /* of dgc, as the kernels have them */
};

/* Bytes of host memory that one operator of `program` takes in this rank's groups. */
size_t communication_workspace(const struct communication *c, const struct program *program);

/* Run `op`. `in`, `out`: its operands, device memory; of a range: both its first element in the
 * segment of its space. Kernels are those of `backend`. Errors as comm.h says, with the operator's
 * name in front; -EINVAL: the group has no rank at the root or shift. */
int communication_run(const struct communication *c, struct backend *backend,
                      const struct program *program, const struct program_op *op, const void *in,
                      void *out, struct fleet_error *err);

#endif
