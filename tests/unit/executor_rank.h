/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_EXECUTOR_RANK_H
#define TESTS_UNIT_EXECUTOR_RANK_H

/*
 * A rank of a job in a thread of a test: a program, its state on the CPU back end, and an executor
 * that is bound to the rank's communicators.
 *
 *   program ▶ executor_rank_open ▶ communication ▶ executor_rank_bind ▶ … ▶ executor_rank_close
 *
 * The functions return 0, or the error of the call that failed.
 */

#include <stdatomic.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"
#include "tests/unit/comm_ranks.h"

static const atomic_bool never;

struct executor_rank {
    struct program program; /* the caller's, before executor_rank_open() */
    struct memory_plan memory;
    struct backend *backend;
    struct state state;
    struct executor *executor;
    struct communication communication;
    struct tree_node nodes[TREE_NODES_MAX];
    void *workspace;
};

static inline double executor_rank_deadline(void *context)
{
    (void)context;
    return comm_ranks_patience();
}

/* State and executor of r->program, with `slots` partial sums of its gradient. */
static inline int executor_rank_open(struct executor_rank *r, enum fleet_isa level, int slots,
                                     struct fleet_error *err)
{
    int rc;

    if ((rc = memory_plan_build(&r->program, NULL, 0, &r->memory, err)) < 0 ||
        (rc = backend_cpu_new(level, 1, &r->backend, err)) < 0 ||
        (rc = state_init(&r->state, &r->program, &r->memory, r->backend, err)) < 0 ||
        (rc = state_reserve_slots(&r->state, slots, err)) < 0)
        return rc;
    return executor_new(&r->program, &r->memory, r->backend, &r->executor, err);
}

/* The rank has micro-batches `first` … `end` - 1 of `leaves` of an update. The caller has set the
 * communicators in r->communication. */
static inline int executor_rank_bind(struct executor_rank *r, int64_t leaves, int64_t first,
                                     int64_t end, struct fleet_error *err)
{
    struct communication *c = &r->communication;

    c->deadline_ms = executor_rank_deadline;
    c->slots = r->state.slots;
    c->nodes = tree_nodes(leaves, first, end, r->nodes);
    c->leaves = leaves;
    c->averaged = (double)leaves;
    r->workspace = malloc(communication_workspace(c, &r->program) + 1);
    c->workspace = r->workspace;
    return executor_bind(r->executor, c, err);
}

/* If the program scales its loss. */
static inline void executor_rank_scale_loss(struct executor_rank *r, float scale)
{
    if (r->program.loss_scaling != PROGRAM_NONE)
        state_write(&r->state, r->program.loss_scaling, &scale);
}

static inline void executor_rank_close(struct executor_rank *r)
{
    executor_free(r->executor);
    state_release(&r->state);
    backend_free(r->backend);
    memory_plan_release(&r->memory);
    program_release(&r->program);
    free(r->workspace);
}

#endif
