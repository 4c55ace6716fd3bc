/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Folding a complete subtree of 2^k leaves from left to right keeps k + 1 buffers (the Strahler
 * number of the tree). Finished nodes keep one each, so those that need most are folded first.
 */
#include "libfleet/plan/tree_slots.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"

#define NODES_MAX 128

struct range {
    int64_t first, end;
};

struct nodes {
    int needs[NODES_MAX]; /* buffers to fold each */
    int count;
};

static int64_t middle_of(struct range node)
{
    int bits = 63 - __builtin_clzll((unsigned long long)(node.end - node.first - 1));

    return node.first + (INT64_C(1) << bits);
}

/* The left part is complete: log2 + 1. The right one is folded while the left one's sum waits. */
static int need_of(struct range node)
{
    int need = 1, waiting = 0;

    while (node.end - node.first > 1) {
        int64_t middle = middle_of(node);
        int left = 64 - __builtin_clzll((unsigned long long)(middle - node.first));

        need = waiting + left > need ? waiting + left : need;
        waiting++;
        node.first = middle;
    }
    return need > waiting + 1 ? need : waiting + 1;
}

/* What of `node` lies inside `inside`, as the largest subtrees. As deep as the tree: at most 64. */
static void collect(struct range node, struct range inside, struct nodes *out)
{
    int64_t middle;

    if (node.end <= inside.first || node.first >= inside.end)
        return;
    if (node.first >= inside.first && node.end <= inside.end) {
        fleet_assert(out->count < NODES_MAX);
        out->needs[out->count++] = need_of(node);
        return;
    }
    middle = middle_of(node);
    collect((struct range){node.first, middle}, inside, out);
    collect((struct range){middle, node.end}, inside, out);
}

static int64_t first_leaf(int64_t leaves, int world, int rank)
{
    int64_t larger = leaves % world;

    return rank * (leaves / world) + (rank < larger ? rank : larger);
}

static int descending(const void *a, const void *b)
{
    return *(const int *)b - *(const int *)a;
}

struct tree_slots tree_slots_of(int64_t leaves, int world, int rank)
{
    struct range inside = {first_leaf(leaves, world, rank), first_leaf(leaves, world, rank + 1)};
    struct nodes nodes = {.count = 0};
    struct tree_slots result = {0};

    fleet_assert(world >= 1 && leaves >= world);
    collect((struct range){0, leaves}, inside, &nodes);
    qsort(nodes.needs, (size_t)nodes.count, sizeof(nodes.needs[0]), descending);
    result.nodes = nodes.count;
    for (int i = 0; i < nodes.count; i++)
        if (i + nodes.needs[i] > result.slots)
            result.slots = i + nodes.needs[i];
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
