/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_DDP_H
#define FLEET_FLEET_DDP_H

/*
 * Data parallelism for trainers in C and C++: what paddle.DataParallel does. Every rank has all
 * parameters and a part of the batch; gradients are averaged over the ranks while the backward pass
 * goes on.
 *
 * One step:
 *
 *     fleet_ddp_forward(ddp, NULL, &err);          forward pass
 *     for each parameter, when its gradient is complete:
 *         fleet_ddp_ready(ddp, parameter, &err);
 *     fleet_ddp_backward_end(ddp, &err);           all gradients are averages now
 *     … the optimizer's step …
 *     fleet_ddp_clear(ddp);                        gradients are 0 and absent
 *
 * Rules
 *  (1) Gradients are exchanged in buckets: fewer, larger messages. A bucket is sent when its last
 *      gradient is complete and all buckets before it were sent, so every rank sends them in the
 *      same order. The bucket of the last parameters is the first one.
 *  (2) Each gradient is multiplied by 1/ranks and then summed in the order of the ranks: the result
 *      has the same bits on all ranks.
 *  (3) Messages make progress while these functions run, not between them. From
 *      fleet_ddp_ready() to fleet_ddp_backward_end() the caller leaves the gradient's memory alone.
 *  (4) Between fleet_ddp_forward() and fleet_ddp_backward_end() the group runs no other operation
 *      (-EBUSY). A trainer that needs some makes a group of its own for them.
 *  (5) A gradient is "absent" until its parameter is ready. The optimizer skips absent ones.
 *
 * Errors are those of fleet.h, and the ones at the functions. After an error in the middle of a
 * step the other ranks wait for this one: end the process, or call fleet_env_release().
 *
 * Warnings are lines on the standard error.
 */

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

enum fleet_ddp_kind {
    FLEET_DDP_DENSE,  /* a parameter with a gradient of its shape: fp16, bf16, fp32 or fp64 */
    FLEET_DDP_SPARSE, /* a table whose gradient is some of its rows (fleet_ddp_ready_rows()) */
    FLEET_DDP_FIXED,  /* a buffer, a frozen parameter, or one whose gradient stays on its rank */
};

/* One tensor of the model. Two entries with the same `value.data` are one shared parameter: the
 * second one is ignored. */
struct fleet_ddp_tensor {
    const char *name;          /* not empty */
    struct fleet_tensor value; /* contiguous; at least one element, except of FLEET_DDP_FIXED */
    void *gradient;            /* FLEET_DDP_DENSE: as large as the value; else NULL */
    enum fleet_ddp_kind kind;
};

/* 0 means the default: what the strategy of the FleetJob says (fuse_grad_size_in_MB,
 * last_comm_group_size_MB in FLEET_STRATEGY_FILE), without a FleetJob 25 and 1. */
struct fleet_ddp_options {
    double buffer_mb;            /* size that closes a bucket, in MiB */
    double last_buffer_mb;       /* the same for the bucket of the first parameters */
    bool find_unused_parameters; /* the parameters that take part change, or differ between ranks */
};

struct fleet_ddp;

/*
 * Wrap a model of `count` tensors, in the order in which the model defines them, for the ranks of
 * `group` (NULL: the world). It makes all values equal to those of the group's first rank. The list
 * and the names are copied; the tensors' memory stays the caller's, where it is, until
 * fleet_ddp_free(). options NULL: the defaults. A group of one rank: a warning, and no exchange.
 *
 * -EINVAL: no parameter with a gradient; a wrong type, name, option or number of elements; a
 * gradient that another living fleet_ddp has. -EPROTO: another rank has another model.
 */
int fleet_ddp_new(const struct fleet_ddp_tensor *tensors, int count, struct fleet_group *group,
                  const struct fleet_ddp_options *options, struct fleet_ddp **out,
                  struct fleet_error *err);

/* Waits for buckets in flight. NULL is fine. */
void fleet_ddp_free(struct fleet_ddp *ddp);

/* The number of buckets, and the bucket of a tensor in the order of sending (-1: it has none). */
int fleet_ddp_bucket_count(const struct fleet_ddp *ddp);
int fleet_ddp_bucket_of(const struct fleet_ddp *ddp, int tensor);

/*
 * Begin a step, before or after the forward pass. reached[tensor], [count]: whether the tensor
 * takes part in the loss; NULL: all do. Unreached parameters count as ready with the gradient that
 * they have, or with zeros. The list is read in the first step, with find_unused_parameters in
 * every one. Without find_unused_parameters it must be the same on all ranks: in the first step
 * they compare it (-EPROTO names a tensor on which they differ).
 *
 * Without synchronization (fleet_ddp_set_sync()) it does nothing.
 * -EPROTO: the step before is not complete; the text names what is missing.
 */
int fleet_ddp_forward(struct fleet_ddp *ddp, const bool *reached, struct fleet_error *err);

/*
 * The gradient of a FLEET_DDP_DENSE tensor is complete. Outside a synchronized step it only becomes
 * present. -EINVAL: no such tensor, or one of another kind. -EPROTO: it was ready before in this
 * step, or was not reached.
 */
int fleet_ddp_ready(struct fleet_ddp *ddp, int tensor, struct fleet_error *err);

/*
 * The same for a FLEET_DDP_SPARSE tensor: `count` >= 0 rows of the table with their numbers, which
 * may repeat. rows: [count], values: [count × width], where width is the elements of a row. Both
 * are copied, behind the rows that the gradient has.
 */
int fleet_ddp_ready_rows(struct fleet_ddp *ddp, int tensor, const int64_t *rows, const void *values,
                         int64_t count, struct fleet_error *err);

/* The gradient's rows, those of all ranks after a step, in the order of the ranks. The memory is
 * ddp's, until the next call for that tensor or fleet_ddp_clear(). Their number, or -EINVAL. */
int64_t fleet_ddp_rows(const struct fleet_ddp *ddp, int tensor, const int64_t **rows,
                       const void **values);

/*
 * Complete the step: wait for all buckets, after which the gradients are averages. With
 * find_unused_parameters a gradient that any rank has is present on all of them afterwards. Without
 * a synchronized step it does nothing.
 * -EPROTO: gradients of reached parameters are missing; the text names the first of them.
 */
int fleet_ddp_backward_end(struct fleet_ddp *ddp, struct fleet_error *err);

/* Has the tensor a gradient? */
bool fleet_ddp_has_gradient(const struct fleet_ddp *ddp, int tensor);

/* Make all gradients absent, and dense ones 0. */
void fleet_ddp_clear(struct fleet_ddp *ddp);

/* Switch synchronization on or off (Paddle's no_sync): steps that begin while it is off only add to
 * the gradients of this rank. Returns the old value, with which the caller restores it. */
bool fleet_ddp_set_sync(struct fleet_ddp *ddp, bool on);

/* Have all ranks the same bits in all values? -EPROTO names a tensor that differs. Collective. */
int fleet_ddp_check_equal(struct fleet_ddp *ddp, struct fleet_error *err);

/*
 * Average the gradients of `count` dense tensors, in buffers of at most 128 MiB of one type, as
 * Paddle's fused_allreduce_gradients(). Entries without gradient and FLEET_DDP_FIXED ones are
 * skipped, the same ones on all ranks. -EINVAL: a FLEET_DDP_SPARSE entry, or a wrong one.
 */
int fleet_all_reduce_gradients(const struct fleet_ddp_tensor *tensors, int count,
                               struct fleet_group *group, struct fleet_error *err);

/* ---- state ----------------------------------------------------------------------------------- */

/* A named tensor of a saved state. */
struct fleet_state_entry {
    const char *name;
    struct fleet_tensor tensor;
};

/*
 * Copy a state into a model by names: Paddle's set_state_dict(). A tensor of the model that the
 * state lacks, or has with another shape or type, is left as it is, with a warning. Entries that
 * the model lacks are ignored. Returns how many tensors were left as they are, or -EINVAL.
 */
int fleet_state_set(const struct fleet_ddp_tensor *tensors, int count,
                    const struct fleet_state_entry *state, int state_count,
                    struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
