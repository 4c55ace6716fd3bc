/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_COMMUNICATION_FIXTURE_H
#define TESTS_UNIT_COMMUNICATION_FIXTURE_H

/*
 * One rank of a program with communication: it reads the program from a text, runs its sections
 * with an executor, and compares its variables.
 */

#include <errno.h>
#include <stdatomic.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/executor/communication.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/state.h"
#include "agent/runtime/step/leaf_range.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/plan/runtime_traffic.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/passes_fixture.h"

static const atomic_bool never;
static const struct run_scalars scalars = {.update_1based = 1};

/* A rank with its program, memory and executor. */
struct worker {
    struct comm_rank *self;
    struct program program;
    struct memory_plan memory;
    struct backend *backend;
    struct state state;
    struct executor *executor;
    struct communication communication;
    struct leaf_range range;
    struct tree_node nodes[TREE_NODES_MAX];
    void *workspace;
};

static inline double deadline(void *context)
{
    (void)context;
    return comm_ranks_patience();
}

/* With w->program. */
static inline int worker_prepare(struct worker *w, struct comm_rank *self, int64_t leaves,
                                 bool in_compute_queue, struct fleet_error *err)
{
    struct comm *comm = self->comm;
    int rc;

    w->self = self;
    if ((rc = memory_plan_build(&w->program, NULL, 0, &w->memory, err)) < 0 ||
        (rc = backend_cpu_new(FLEET_ISA_PLAIN, 1, &w->backend, err)) < 0 ||
        (rc = state_init(&w->state, &w->program, &w->memory, w->backend, err)) < 0 ||
        (rc = executor_new(&w->program, &w->memory, w->backend, &w->executor, err)) < 0)
        return rc;
    leaf_range_init(&w->range, leaves, comm->world, comm->rank);
    if ((rc = state_reserve_slots(&w->state, w->range.slots, err)) < 0)
        return rc;
    w->communication =
        (struct communication){.world = comm,
                               .in_compute_queue = in_compute_queue,
                               .deadline_ms = deadline,
                               .slots = w->state.slots,
                               .nodes = tree_nodes(leaves, w->range.first, w->range.end, w->nodes),
                               .leaves = leaves,
                               .folds = w->range.instructions + w->range.folds_first,
                               .fold_count = w->range.count - w->range.folds_first,
                               .averaged = (double)leaves};
    w->communication.groups[OP_GROUP_DATA] = w->communication.groups[OP_GROUP_REPLICAS] = comm;
    w->workspace = malloc(communication_workspace(&w->communication, &w->program) + 1);
    w->communication.workspace = w->workspace;
    w->state.bases.segment[MEMORY_GRADIENTS] = w->state.slots[0];
    return executor_bind(w->executor, &w->communication, err);
}

static inline int worker_open(struct worker *w, struct comm_rank *self, const char *text,
                              int64_t leaves, bool in_compute_queue, struct fleet_error *err)
{
    int rc;

    memset(w, 0, sizeof(*w));
    if ((rc = print_parse(text, strlen(text), &w->program, err)) < 0 ||
        (rc = verify_program(&w->program, VERIFY_FORWARD, err)) < 0)
        return rc;
    return worker_prepare(w, self, leaves, in_compute_queue, err);
}

static inline void worker_close(struct worker *w)
{
    executor_free(w->executor);
    state_release(&w->state);
    backend_free(w->backend);
    leaf_range_release(&w->range);
    memory_plan_release(&w->memory);
    program_release(&w->program);
    free(w->workspace);
}

static inline float *values_of(struct worker *w, const char *name)
{
    return state_address(&w->state, program_find_var(&w->program, name));
}

/* Run a section; the communicator sends what the operators say. */
static inline int run(struct worker *w, enum program_section section, struct fleet_error *err)
{
    struct runtime_place place = {
        .ranks = w->self->all->world, .place = w->self->rank, .leaves = w->range.leaves};
    uint64_t before = w->self->comm->bytes_sent;
    int rc = executor_run(w->executor, section, &w->state.bases, &scalars, &never, err);
    double planned = 0, sent = (double)(w->self->comm->bytes_sent - before);

    for (int i = 0; i < w->program.op_count; i++)
        if (w->program.ops[i].section == section &&
            op_definition(w->program.ops[i].kind)->is_communication)
            planned += runtime_sent(&w->program, &w->program.ops[i], &place);
    if (rc == 0 && sent != planned)
        rc = fleet_error(err, -EBADMSG, "sent %.0f bytes, planned %.0f", sent, planned);
    return rc;
}

static inline void run_on(int world, int (*body)(struct comm_rank *, struct fleet_error *),
                          const void *argument)
{
    struct comm_ranks c;

    comm_ranks_init(&c, world);
    c.argument = argument;
    comm_ranks_run(&c, body);
    comm_ranks_release(&c);
}

#endif
