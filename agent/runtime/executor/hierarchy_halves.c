/* SPDX-License-Identifier: Apache-2.0 */

/* The sum of halves in two levels. */
#include <stdbool.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/fold.h"
#include "agent/runtime/executor/hierarchy.h"
#include "libfleet/plan/runtime_hierarchy.h"

/* A piece of a leader. */
struct piece {
    const struct hierarchy_halves *x;
    uint16_t *own; /* [count] */
    int64_t count;
    struct comm_message *messages; /* [ranks of the block - 1] */
    const void **inputs;           /* [ranks of the block] */
    float *sum;                    /* [count] */
    uint16_t *copies;              /* [ranks of the block - 1][count] */
};

/* The halves of a piece come to the leader of the block. */
static int gather(const struct piece *p, struct fleet_error *err)
{
    struct comm *block = p->x->hierarchy->block;

    p->inputs[0] = p->own;
    for (int member = 1; member < block->world; member++) {
        uint16_t *copy = p->copies + (member - 1) * p->count;
        p->inputs[member] = copy;
        p->messages[member - 1] = (struct comm_message){
            .peer = member, .is_receive = true, .data = copy, .count = p->count, .type = COMM_FP16};
    }
    return comm_messages(block, p->messages, block->world - 1, p->x->deadline_ms, err);
}

/* The sum so far comes from the leader before, or goes to the next one. */
static int pass(const struct piece *p, bool is_receive, struct fleet_error *err)
{
    struct comm *leaders = p->x->hierarchy->leaders;
    const struct comm_message message = {.peer = leaders->rank + (is_receive ? -1 : 1),
                                         .is_receive = is_receive,
                                         .data = p->sum,
                                         .count = p->count,
                                         .type = COMM_FP32};

    return comm_messages(leaders, &message, 1, p->x->deadline_ms, err);
}

static int lead(const struct piece *p, struct fleet_error *err)
{
    const struct hierarchy *h = p->x->hierarchy;
    bool is_first = h->leaders->rank == 0, is_last = h->leaders->rank == h->leaders->world - 1;
    int rc = gather(p, err);

    if (rc == 0 && !is_first)
        rc = pass(p, true, err);
    if (rc < 0)
        return rc;
    comm_fold_halves(p->inputs, h->block->world, p->count, is_first, p->sum);
    if (!is_last)
        return pass(p, false, err);
    comm_fold_halves_end(p->sum, p->count, p->own);
    return 0;
}

static int follow(const struct piece *p, struct fleet_error *err)
{
    const struct comm_message message = {
        .peer = 0, .data = p->own, .count = p->count, .type = COMM_FP16};

    return comm_messages(p->x->hierarchy->block, &message, 1, p->x->deadline_ms, err);
}

/* From the last leader to all leaders, from each to its block. */
static int share(const struct hierarchy_halves *x, struct fleet_error *err)
{
    struct comm *leaders = x->hierarchy->leaders;
    size_t bytes = (size_t)x->count * sizeof(uint16_t);
    int rc = 0;

    if (leaders)
        rc = comm_broadcast(leaders, x->memory, bytes, leaders->world - 1, x->deadline_ms, err);
    return rc == 0 ? comm_broadcast(x->hierarchy->block, x->memory, bytes, 0, x->deadline_ms, err)
                   : rc;
}

_Static_assert(sizeof(struct comm_message) + sizeof(void *) <= RUNTIME_HIERARCHY_MEMBER,
               "the plan counts them");

int hierarchy_sum_halves(const struct hierarchy_halves *sum, struct fleet_error *err)
{
    int64_t most = sum->count < RUNTIME_HIERARCHY_PIECE ? sum->count : RUNTIME_HIERARCHY_PIECE;
    int members = sum->hierarchy->block->world, rc = 0;
    char *lists = (char *)sum->memory + RUNTIME_HIERARCHY_HALVES(sum->count);
    struct piece p = {.x = sum, .messages = (struct comm_message *)(void *)lists};

    p.inputs = (const void **)(void *)(p.messages + members);
    p.sum = (float *)(void *)(lists + (size_t)members * RUNTIME_HIERARCHY_MEMBER);
    p.copies = (uint16_t *)(void *)(p.sum + most);
    for (int64_t first = 0; first < sum->count && rc == 0; first += RUNTIME_HIERARCHY_PIECE) {
        p.own = (uint16_t *)sum->memory + first;
        p.count = sum->count - first < most ? sum->count - first : most;
        rc = sum->hierarchy->leaders ? lead(&p, err) : follow(&p, err);
    }
    return rc == 0 ? share(sum, err) : rc;
}
