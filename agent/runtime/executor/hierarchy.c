/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/hierarchy.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/runtime_hierarchy.h"
#include "libfleet/plan/tree.h"

/* ---- communicators --------------------------------------------------------------------------- */

/* Ranks first, first + step, … of the parent. */
static int make_group(struct comm *parent, int first, int step, int count, double deadline_ms,
                      struct comm **out, struct fleet_error *err)
{
    FLEET_AUTO_FREE int *ranks = calloc((size_t)count, sizeof(*ranks));
    struct comm *made = NULL;
    int rc;

    fleet_assert(ranks != NULL);
    for (int i = 0; i < count; i++)
        ranks[i] = first + i * step;
    rc = comm_group(parent, ranks, count, deadline_ms, &made, err);
    if (made)
        *out = made;
    return rc;
}

int hierarchy_open(struct comm *parent, int block, double deadline_ms, struct hierarchy *out,
                   struct fleet_error *err)
{
    int rc;

    *out = (struct hierarchy){.ranks = parent->world, .place = parent->rank};
    if (block < 1 || parent->world % block != 0)
        return fleet_error(err, -EINVAL, "blocks of %d do not divide %d ranks", block,
                           parent->world);
    rc = make_group(parent, 0, block, parent->world / block, deadline_ms, &out->leaders, err);
    for (int first = 0; first < parent->world && rc == 0; first += block)
        rc = make_group(parent, first, 1, block, deadline_ms, &out->block, err);
    return rc;
}

void hierarchy_close(struct hierarchy *hierarchy)
{
    comm_free(hierarchy->leaders);
    comm_free(hierarchy->block);
    *hierarchy = (struct hierarchy){0};
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct runtime_hierarchy shape_of(const struct hierarchy *h, int64_t leaves)
{
    return (struct runtime_hierarchy){
        .leaves = leaves, .ranks = h->ranks, .block = h->block->world, .place = h->place};
}

size_t hierarchy_workspace(const struct hierarchy *h, int64_t leaves, int64_t count)
{
    const struct runtime_hierarchy shape = shape_of(h, leaves);

    return runtime_hierarchy_bytes(&shape, count);
}

/* ---- one piece ------------------------------------------------------------------------------- */

/* A node of the tree whose sum lies at `sum`. */
struct held {
    struct tree_node node;
    float *sum;
};

struct piece {
    const struct hierarchy_sum *x;
    int64_t first, count;
    struct comm_message *messages;
    struct held *held; /* [held_count], left to right */
    int held_count, at;
    float *copies;
    void *rest;
};

static int nodes_of(const struct piece *p, int member, struct tree_node *nodes)
{
    const struct hierarchy *h = p->x->hierarchy;
    int rank = h->place - h->block->rank + member;

    return tree_nodes(p->x->leaves, tree_first_leaf(p->x->leaves, h->ranks, rank),
                      tree_first_leaf(p->x->leaves, h->ranks, rank + 1), nodes);
}

/* All partial sums of the block lie with the leader: its own where they are, those of others in
 * copies. */
static int gather(struct piece *p, struct fleet_error *err)
{
    const struct hierarchy *h = p->x->hierarchy;
    int count = 0;

    if (!h->leaders) {
        for (int i = 0; i < p->x->nodes; i++)
            p->messages[count++] = (struct comm_message){
                .peer = 0, .data = p->x->slots[i] + p->first, .count = p->count, .type = COMM_FP32};
        return comm_messages(h->block, p->messages, count, p->x->deadline_ms, err);
    }
    for (int member = 0; member < h->block->world; member++) {
        struct tree_node nodes[TREE_NODES_MAX];
        int n = nodes_of(p, member, nodes);
        for (int i = 0; i < n; i++) {
            float *sum = member == 0 ? p->x->slots[i] + p->first : p->copies + count * p->count;
            p->held[p->held_count++] = (struct held){nodes[i], sum};
            if (member > 0)
                p->messages[count++] = (struct comm_message){.peer = member,
                                                             .is_receive = true,
                                                             .data = sum,
                                                             .count = p->count,
                                                             .type = COMM_FP32};
        }
    }
    return comm_messages(h->block, p->messages, count, p->x->deadline_ms, err);
}

/* The sum of leaves [a, b), at the place of its first part. */
static float *fold(struct piece *p, int64_t a, int64_t b)
{
    int64_t middle;
    float *left, *right;

    fleet_assert(p->at < p->held_count);
    if (p->held[p->at].node.first == a && p->held[p->at].node.end == b)
        return p->held[p->at++].sum;
    middle = tree_split(a, b);
    left = fold(p, a, middle);
    right = fold(p, middle, b);
    for (int64_t i = 0; i < p->count; i++)
        left[i] += right[i];
    return left;
}

/* Among leaders: the whole tree, from the nodes of the blocks. */
static int complete(struct piece *p, struct fleet_error *err)
{
    const struct hierarchy *h = p->x->hierarchy;
    int64_t leaves = p->x->leaves;
    struct tree_node nodes[TREE_NODES_MAX];
    float *sums[TREE_NODES_MAX], *result = p->x->slots[0] + p->first;
    int count = tree_nodes(leaves, tree_first_leaf(leaves, h->ranks, h->place),
                           tree_first_leaf(leaves, h->ranks, h->place + h->block->world), nodes);
    struct comm_call call = {.operation = COMM_TREE_SUM,
                             .type = COMM_FP32,
                             .count = p->count,
                             .leaves = leaves,
                             .stands_for = h->block->world,
                             .slots = sums,
                             .workspace = p->rest};
    int rc;

    sums[0] = result;
    for (int i = 0; i < count; i++)
        sums[i] = fold(p, nodes[i].first, nodes[i].end);
    rc = comm_run(h->leaders, &call, p->x->deadline_ms, err);
    if (rc == 0 && sums[0] != result)
        memcpy(result, sums[0], (size_t)p->count * sizeof(*result));
    return rc;
}

static void lay_out(struct piece *p, struct runtime_hierarchy_layout *l)
{
    char *at = p->x->workspace;

    p->copies = (float *)(void *)at;
    p->messages = (struct comm_message *)(void *)(at + l->copies);
    p->held = (struct held *)(void *)(at + l->copies + l->messages);
    p->rest = at + l->copies + l->messages + l->held;
}

_Static_assert(sizeof(struct comm_message) <= RUNTIME_HIERARCHY_ENTRY &&
                   sizeof(struct held) <= RUNTIME_HIERARCHY_ENTRY,
               "the plan counts them");

int hierarchy_tree_sum(const struct hierarchy_sum *sum, struct fleet_error *err)
{
    const struct runtime_hierarchy shape = shape_of(sum->hierarchy, sum->leaves);
    struct runtime_hierarchy_layout layout;
    int rc = 0;

    runtime_hierarchy_lay_out(&shape, sum->count, &layout);
    for (int64_t first = 0; first < sum->count && rc == 0; first += RUNTIME_HIERARCHY_PIECE) {
        struct piece p = {.x = sum, .first = first, .count = sum->count - first};
        if (p.count > RUNTIME_HIERARCHY_PIECE)
            p.count = RUNTIME_HIERARCHY_PIECE;
        lay_out(&p, &layout);
        rc = gather(&p, err);
        if (rc == 0 && sum->hierarchy->leaders)
            rc = complete(&p, err);
        if (rc == 0)
            rc = comm_broadcast(sum->hierarchy->block, sum->slots[0] + first,
                                (size_t)p.count * sizeof(float), 0, sum->deadline_ms, err);
    }
    return rc;
}
