/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Communication inside graphs. The messages that ranks exchange beside each operation cannot be
 * part of a graph, so they exchange them once for a whole graph.
 */
#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "agent/runtime/executor/communication_internal.h"
#include "agent/runtime/executor/divided_sum.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/gathers.h"

/* gather.h */
static unsigned int axes_of(const struct program_op *op)
{
    return gathers_is(op) ? OP_GROUP_REPLICAS : op->attributes.group;
}

communication_groups communication_groups_of(const struct program_op *op)
{
    return UINT64_C(1) << axes_of(op);
}

int64_t communication_round(const struct communication *c)
{
    return c->divided ? c->divided->done : 0;
}

/* A replica without a micro-batch runs other sections. */
static bool have_all_replicas_one(const struct communication *c)
{
    return c->is_even || (c->divided && divided_sum_is_full(c->divided));
}

/* What is divided has sums that differ from round to round, each with a graph of its own. */
static bool can_capture_divided(const struct communication *c, const struct comm *comm,
                                const struct program_op *op)
{
    if (c->captures < COMM_DEVICE_CAPTURES_ALL || !comm_has_device(comm))
        return false;
    if (gathers_is(op))
        return c->gather != NULL;
    return c->divided && divided_sum_is_full(c->divided) &&
           divided_sum_is_on_device(c->divided, comm);
}

/* Other operators use the host's memory, or messages of another length each time. A group of this
 * rank alone leaves nothing to do, or a copy by way of the host. */
bool communication_can_capture(const struct communication *c, const struct program_op *op)
{
    const struct comm *comm = c->groups[axes_of(op)];
    bool is_divided = (op->kind == OP_TREE_SUM && op->attributes.owned) || gathers_is(op);
    bool is_tried = c->captures == COMM_DEVICE_CAPTURES_ALL || !communication_is_sum_of_halves(op);
    bool is_one_message = op->kind == OP_SEND || op->kind == OP_RECEIVE;

    if (!c->captures || !is_tried || is_one_message || c->messages.all)
        return false;
    if (op->section == PROGRAM_SECTION_MICRO_BATCH && axes_of(op) & OP_GROUP_REPLICAS &&
        !have_all_replicas_one(c))
        return false;
    if (!comm || comm->world == 1)
        return false;
    return is_divided ? can_capture_divided(c, comm, op) : communication_uses_device(comm, op);
}

/* The communicators of the groups, each once. Returns their number. */
static int list_groups(const struct communication *c, communication_groups groups,
                       struct comm *out[OP_GROUP_WORLD + 1])
{
    int count = 0;

    for (unsigned int axes = 0; axes <= OP_GROUP_WORLD; axes++) {
        bool is_new = groups & UINT64_C(1) << axes && c->groups[axes];
        for (int i = 0; i < count; i++)
            is_new = is_new && out[i] != c->groups[axes];
        if (is_new)
            out[count++] = c->groups[axes];
    }
    return count;
}

/* Groups cross each other: what one of them has found goes into the next one. */
int communication_agree(const struct communication *c, communication_groups groups, bool is_ready,
                        bool *out, struct fleet_error *err)
{
    struct comm *comms[OP_GROUP_WORLD + 1];
    int count = list_groups(c, groups, comms), rc = 0;
    uint8_t all = is_ready;

    for (int i = 0; i < count && rc == 0; i++)
        rc = comm_all_reduce(comms[i], &all, 1, COMM_UINT8, COMM_MIN, c->deadline_ms(c->context),
                             err);
    if (rc == 0)
        *out = all;
    return rc;
}

/* All barriers go on at once, so a rank that is lost is noticed in each group. */
int communication_await(const struct communication *c, communication_groups groups,
                        struct backend *backend, struct fleet_error *err)
{
    const struct comm_call call = {.operation = COMM_BARRIER, .queue = backend};
    struct comm_request *runs[OP_GROUP_WORLD + 1];
    struct comm *comms[OP_GROUP_WORLD + 1];
    int count = list_groups(c, groups, comms), rc = 0;

    for (int i = 0; i < count && rc == 0; i++)
        rc = comm_start(comms[i], &call, c->deadline_ms(c->context), &runs[i], err);
    for (int i = 0; i < count && rc == 0; i++)
        rc = comm_wait(runs[i], err);
    return rc;
}
