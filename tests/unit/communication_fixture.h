/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_COMMUNICATION_FIXTURE_H
#define TESTS_UNIT_COMMUNICATION_FIXTURE_H

/*
 * One rank of a program with communication: it reads the program from a text, runs its sections
 * with an executor, and compares its variables.
 */

#include <errno.h>

#include "agent/runtime/step/leaf_range.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/plan/runtime_traffic.h"
#include "libfleet/program/print.h"
#include "libfleet/program/verify.h"
#include "tests/unit/executor_rank.h"
#include "tests/unit/passes_fixture.h"

static const struct run_scalars scalars = {.update_1based = 1};

/* A rank with its program, memory and executor. */
struct worker {
    struct comm_rank *self;
    struct executor_rank rank;
    struct leaf_range range;
    int block; /* > 0, before worker_prepare(): sums in two levels, with blocks of so many ranks */
};

/* With w->rank.program. `replicas` and `sequence` are the rank's groups along these axes; NULL: it
 * is alone. */
static inline int worker_prepare_in(struct worker *w, struct comm_rank *self, int64_t leaves,
                                    struct comm *replicas, struct comm *sequence,
                                    bool in_compute_queue, struct fleet_error *err)
{
    int rc;

    w->self = self;
    leaf_range_init(&w->range, leaves, replicas ? replicas->world : 1,
                    replicas ? replicas->rank : 0);
    if ((rc = executor_rank_open(&w->rank, FLEET_ISA_PLAIN, w->range.slots, err)) < 0)
        return rc;
    w->rank.communication =
        (struct communication){.world = self->comm,
                               .in_compute_queue = in_compute_queue,
                               .folds = w->range.instructions + w->range.folds_first,
                               .fold_count = w->range.count - w->range.folds_first};
    w->rank.communication.groups[OP_GROUP_SEQUENCE] = sequence;
    w->rank.communication.groups[OP_GROUP_DATA] = replicas;
    w->rank.communication.groups[OP_GROUP_REPLICAS] = replicas;
    w->rank.state.bases.segment[MEMORY_GRADIENTS] = w->rank.state.slots[0];
    if (w->block > 0 && (rc = hierarchy_open(replicas, w->block, comm_ranks_patience(),
                                             &w->rank.communication.hierarchy, err)) < 0)
        return rc;
    return executor_rank_bind(&w->rank, leaves, w->range.first, w->range.end, err);
}

/* The same where each rank is a replica. */
static inline int worker_prepare(struct worker *w, struct comm_rank *self, int64_t leaves,
                                 bool in_compute_queue, struct fleet_error *err)
{
    return worker_prepare_in(w, self, leaves, self->comm, NULL, in_compute_queue, err);
}

static inline int worker_open(struct worker *w, struct comm_rank *self, const char *text,
                              int64_t leaves, bool in_compute_queue, struct fleet_error *err)
{
    int rc;

    memset(w, 0, sizeof(*w));
    if ((rc = print_parse(text, strlen(text), &w->rank.program, err)) < 0 ||
        (rc = verify_program(&w->rank.program, VERIFY_FORWARD, err)) < 0)
        return rc;
    return worker_prepare(w, self, leaves, in_compute_queue, err);
}

static inline void worker_close(struct worker *w)
{
    hierarchy_close(&w->rank.communication.hierarchy);
    executor_rank_close(&w->rank);
    leaf_range_release(&w->range);
}

static inline float *values_of(struct worker *w, const char *name)
{
    return state_address(&w->rank.state, program_find_var(&w->rank.program, name));
}

/* Run a section; the communicator sends what the operators say. */
static inline int run(struct worker *w, enum program_section section, struct fleet_error *err)
{
    struct runtime_place place = {
        .ranks = w->self->all->world, .place = w->self->rank, .leaves = w->range.leaves};
    uint64_t before = w->self->comm->bytes_sent;
    int rc = executor_run(w->rank.executor, section, &w->rank.state.bases, &scalars, &never, err);
    double planned = 0, sent = (double)(w->self->comm->bytes_sent - before);

    for (int i = 0; i < w->rank.program.op_count; i++)
        if (w->rank.program.ops[i].section == section &&
            op_definition(w->rank.program.ops[i].kind)->is_communication)
            planned += runtime_sent(&w->rank.program, &w->rank.program.ops[i], &place);
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
