/* SPDX-License-Identifier: Apache-2.0 */

/* Recursion below is as deep as the tree: at most 64. */
#include "libfleet/plan/tree.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

int64_t tree_first_leaf(int64_t leaves, int world, int rank)
{
    int64_t share = leaves / world, larger = leaves % world;

    fleet_assert(leaves >= 0 && world >= 1 && rank >= 0 && rank <= world);
    return rank * share + (rank < larger ? rank : larger);
}

struct tree_share tree_share_of(int64_t leaves, int world, int rank, bool in_turn)
{
    if (in_turn)
        return (struct tree_share){rank < leaves ? rank : leaves, leaves, world};
    return (struct tree_share){tree_first_leaf(leaves, world, rank),
                               tree_first_leaf(leaves, world, rank + 1), 1};
}

/* Collect what of node [a, b) lies inside [first, end). */
static void collect(int64_t a, int64_t b, int64_t first, int64_t end, struct tree_node *out,
                    int *count)
{
    int64_t middle;

    if (b <= first || a >= end)
        return;
    if (a >= first && b <= end) {
        fleet_assert(*count < TREE_NODES_MAX);
        out[(*count)++] = (struct tree_node){a, b};
        return;
    }
    middle = tree_split(a, b); /* a leaf is inside or outside, so here b - a >= 2 */
    collect(a, middle, first, end, out, count);
    collect(middle, b, first, end, out, count);
}

int tree_nodes(int64_t leaves, int64_t first, int64_t end, struct tree_node out[TREE_NODES_MAX])
{
    int count = 0;

    fleet_assert(0 <= first && first <= end && end <= leaves);
    if (first < end)
        collect(0, leaves, first, end, out, &count);
    return count;
}

/* ---- what it costs --------------------------------------------------------------------------- */

/*
 * Slots that folding a node takes, its result included. Folding a complete subtree of 2^k leaves
 * from left to right keeps k + 1 (the Strahler number of the tree); the right part is folded while
 * the left one's sum waits.
 */
static int slots_needed(struct tree_node node)
{
    int need = 1, waiting = 0;

    while (node.end - node.first > 1) {
        int64_t middle = tree_split(node.first, node.end);
        int left = waiting + 64 - __builtin_clzll((unsigned long long)(middle - node.first));
        need = left > need ? left : need;
        waiting++;
        node.first = middle;
    }
    return need > waiting + 1 ? need : waiting + 1;
}

/* The nodes by falling need of slots: the order in which they are folded, because each finished one
 * keeps a slot. Of two equal ones the left one comes first. */
static void folding_order(const struct tree_node *nodes, int count, int *order)
{
    int needs[TREE_NODES_MAX];

    for (int i = 0; i < count; i++) {
        int need = slots_needed(nodes[i]), at = i;
        for (; at > 0 && needs[at - 1] < need; at--) {
            needs[at] = needs[at - 1];
            order[at] = order[at - 1];
        }
        needs[at] = need;
        order[at] = i;
    }
}

struct tree_slots tree_slots_of(int64_t leaves, int world, int rank)
{
    struct tree_node nodes[TREE_NODES_MAX];
    int order[TREE_NODES_MAX];
    struct tree_slots result = {0};

    fleet_assert(world >= 1 && leaves >= world);
    result.nodes = tree_nodes(leaves, tree_first_leaf(leaves, world, rank),
                              tree_first_leaf(leaves, world, rank + 1), nodes);
    folding_order(nodes, result.nodes, order);
    for (int i = 0; i < result.nodes; i++) {
        int slots = i + slots_needed(nodes[order[i]]);
        result.slots = slots > result.slots ? slots : result.slots;
    }
    return result;
}

struct tree_slots tree_slots_max(int64_t leaves, int world, int64_t *out_nodes_total)
{
    struct tree_slots max = {0};

    *out_nodes_total = 0;
    for (int rank = 0; rank < world; rank++) {
        struct tree_slots one = tree_slots_of(leaves, world, rank);
        *out_nodes_total += one.nodes;
        max.nodes = one.nodes > max.nodes ? one.nodes : max.nodes;
        max.slots = one.slots > max.slots ? one.slots : max.slots;
    }
    return max;
}

/* ---- the order of work ----------------------------------------------------------------------- */

struct scheduler {
    struct tree_instruction *list;
    int64_t count;
    bool live[2 * TREE_NODES_MAX]; /* slots that hold something */
    int slots;                     /* used so far */
};

static void hold(struct scheduler *s, int slot)
{
    fleet_assert(slot < 2 * TREE_NODES_MAX && !s->live[slot]);
    s->live[slot] = true;
    if (slot >= s->slots)
        s->slots = slot + 1;
}

static void fold(struct scheduler *s, int64_t a, int64_t b, int slot)
{
    int other = 0;

    if (b - a == 1) {
        s->list[s->count++] = (struct tree_instruction){.kind = TREE_RUN, .leaf = a, .slot = slot};
        return;
    }
    fold(s, a, tree_split(a, b), slot);
    while (s->live[other])
        other++;
    hold(s, other);
    fold(s, tree_split(a, b), b, other);
    s->list[s->count++] = (struct tree_instruction){.kind = TREE_ADD, .slot = other, .into = slot};
    s->live[other] = false;
}

/* Node i's slot i serves the others as a temporary one before. */
int64_t tree_schedule(int64_t leaves, int64_t first, int64_t end, struct tree_instruction **out,
                      int *out_slots)
{
    struct tree_node nodes[TREE_NODES_MAX];
    int order[TREE_NODES_MAX], count = tree_nodes(leaves, first, end, nodes);
    struct scheduler s = {0};

    s.list = malloc(((size_t)(end - first) * 2 + 1) * sizeof(*s.list));
    fleet_assert(s.list != NULL);
    folding_order(nodes, count, order);
    for (int i = 0; i < count; i++) {
        hold(&s, order[i]);
        fold(&s, nodes[order[i]].first, nodes[order[i]].end, order[i]);
    }
    *out = s.list;
    *out_slots = s.slots;
    return s.count;
}
