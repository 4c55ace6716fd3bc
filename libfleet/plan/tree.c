/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The shape of the summation tree: the leaves of each rank, the complete subtrees that they
 * make, and the order in which a rank folds them (spec/training.md 2).
 *
 * A node [a, b) splits at a + the greatest power of two below b - a, so left parts are complete
 * binary trees and never smaller than right ones. Recursion below is as deep as the tree: at most
 * 64.
 */
#include "libfleet/plan/tree.h"

#include <stdbool.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"

int64_t tree_first_leaf(int64_t leaves, int world, int rank)
{
    int64_t share = leaves / world, larger = leaves % world;

    fleet_assert(leaves >= 0 && world >= 1 && rank >= 0 && rank <= world);
    return rank * share + (rank < larger ? rank : larger);
}

/* Where node [a, b) of two or more leaves splits. */
static int64_t middle_of(int64_t a, int64_t b)
{
    int bits = 63 - __builtin_clzll((unsigned long long)(b - a - 1));

    return a + (INT64_C(1) << bits);
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
    middle = middle_of(a, b); /* a leaf is inside or outside, so here b - a >= 2 */
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

/* ---- the order of work ----------------------------------------------------------------------- */

struct scheduler {
    struct tree_instruction *list;
    int64_t count;
    bool live[2 * TREE_NODES_MAX]; /* slots that hold something */
    int slots;                     /* used so far */
};

/* Slots that folding [a, b) takes, its result included: left first, so right needs one more. */
static int slots_needed(int64_t a, int64_t b)
{
    int64_t middle;
    int left, right;

    if (b - a == 1)
        return 1;
    middle = middle_of(a, b);
    left = 64 - __builtin_clzll((unsigned long long)(middle - a)); /* complete: log2 + 1 */
    right = 1 + slots_needed(middle, b);
    return left > right ? left : right;
}

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
    fold(s, a, middle_of(a, b), slot);
    while (s->live[other])
        other++;
    hold(s, other);
    fold(s, middle_of(a, b), b, other);
    s->list[s->count++] = (struct tree_instruction){.kind = TREE_ADD, .slot = other, .into = slot};
    s->live[other] = false;
}

/*
 * Nodes are folded by falling need of slots, because each finished one keeps a slot; node i's slot
 * i serves the others as a temporary one before.
 */
int64_t tree_schedule(int64_t leaves, int64_t first, int64_t end, struct tree_instruction **out,
                      int *out_slots)
{
    struct tree_node nodes[TREE_NODES_MAX];
    bool done[TREE_NODES_MAX] = {false};
    int count = tree_nodes(leaves, first, end, nodes);
    struct scheduler s = {0};

    s.list = malloc(((size_t)(end - first) * 2 + 1) * sizeof(*s.list));
    fleet_assert(s.list != NULL);
    for (int round = 0; round < count; round++) {
        int best = -1, need = 0;
        for (int i = 0; i < count; i++)
            if (!done[i] && slots_needed(nodes[i].first, nodes[i].end) > need) {
                best = i;
                need = slots_needed(nodes[i].first, nodes[i].end);
            }
        done[best] = true;
        hold(&s, best);
        fold(&s, nodes[best].first, nodes[best].end, best);
    }
    *out = s.list;
    *out_slots = s.slots;
    return s.count;
}
