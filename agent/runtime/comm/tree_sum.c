/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The upper part of the summation tree, over ranks.
 *
 * Everybody knows everybody's nodes, so the tree above them is a short list of "take node i" and
 * "add the last two", walked block by block with intermediate sums that stay in the cache. Which
 * rank adds never changes what is added to what: that is the whole of determinism here.
 *
 * Small counts: all nodes to all ranks in one round, everybody adds everything. Large counts, a
 * chunk at a time: part p of the chunk from all to rank p, which adds it; then all parts from all
 * to all.
 */
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/tree.h"

#define BLOCK_ELEMENTS RUNTIME_EXCHANGE_BLOCK /* added at a time */
#define ALIGNMENT      RUNTIME_EXCHANGE_ALIGN /* elements; parts start at multiples */
/* of the tree above: 63 levels and the two operands */
#define DEPTH_MAX RUNTIME_EXCHANGE_DEPTH
#define TAKE_SUM  (-1)

struct upper_tree {
    int *first_node; /* [world + 1]: nodes of rank r are [first_node[r], first_node[r + 1]) */
    int *walk;       /* [walk_count]: a node to take, or TAKE_SUM: add the last two */
    int walk_count, node_count, node_max; /* node_max: of a rank */
};

/* ---- the tree above the nodes ---------------------------------------------------------------- */

/* Walks over the nodes of all ranks in order, one rank's at a time. */
struct cursor {
    int64_t leaves;
    int world, rank; /* whose nodes these are */
    struct tree_node nodes[TREE_NODES_MAX];
    int count, at;
    int taken; /* nodes gone past, of all ranks */
};

/* Go to the next rank's nodes if this one's are used up. */
static void next_node(struct cursor *c)
{
    while (c->at == c->count && c->rank < c->world - 1) {
        c->rank++;
        c->at = 0;
        c->count = tree_nodes(c->leaves, tree_first_leaf(c->leaves, c->world, c->rank),
                              tree_first_leaf(c->leaves, c->world, c->rank + 1), c->nodes);
    }
}

/* Append the walk of [a, b). The nodes from the cursor on are its lower ends. */
static void walk_range(struct upper_tree *tree, struct cursor *cursor, int64_t a, int64_t b)
{
    const struct tree_node *node = &cursor->nodes[cursor->at];
    int64_t middle;

    if (node->first == a && node->end == b) {
        tree->walk[tree->walk_count++] = cursor->taken++;
        cursor->at++;
        next_node(cursor);
        return;
    }
    fleet_assert(b - a >= 2);
    middle = tree_split(a, b);
    walk_range(tree, cursor, a, middle);
    walk_range(tree, cursor, middle, b);
    tree->walk[tree->walk_count++] = TAKE_SUM;
}

/* Nodes of all ranks: those of rank r begin at first_node[r] (NULL: only counted). */
static int count_nodes(int64_t leaves, int world, int *first_node, int *out_max)
{
    struct tree_node nodes[TREE_NODES_MAX];
    int total = 0;

    *out_max = 0;
    for (int r = 0; r < world; r++) {
        int count = tree_nodes(leaves, tree_first_leaf(leaves, world, r),
                               tree_first_leaf(leaves, world, r + 1), nodes);
        if (first_node)
            first_node[r] = total;
        total += count;
        if (count > *out_max)
            *out_max = count;
    }
    if (first_node)
        first_node[world] = total;
    return total;
}

/* first_node and walk have room for world + 1 and for 2 · nodes. */
static void upper_tree_init(struct upper_tree *tree, int64_t leaves, int world)
{
    struct cursor cursor = {.leaves = leaves, .world = world, .rank = -1};

    fleet_assert(leaves >= 1);
    tree->node_count = count_nodes(leaves, world, tree->first_node, &tree->node_max);
    tree->walk = tree->first_node + world + 1;
    tree->walk_count = 0;
    next_node(&cursor);
    walk_range(tree, &cursor, 0, leaves);
    fleet_assert(cursor.taken == tree->node_count);
}

static int nodes_of(const struct upper_tree *tree, int rank)
{
    return tree->first_node[rank + 1] - tree->first_node[rank];
}

/* Eight at a time, at any address: the compiler may not assume that `to` overlaps neither
 * operand. */
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));

/* to = x + y; `to` may be one of them, but not overlap them otherwise. */
static void add(const float *x, const float *y, int64_t count, float *to)
{
    int64_t i = 0;

    for (; i + 8 <= count; i += 8)
        *(eight *)(to + i) = *(const eight *)(x + i) + *(const eight *)(y + i);
    for (; i < count; i++)
        to[i] = x[i] + y[i];
}

/* to[0 … count) = the sum over nodes[…][0 … count); `to` may be one of them. `temporary` holds
 * DEPTH_MAX blocks. */
static void sum(const struct upper_tree *tree, const float *const *nodes, int64_t count,
                float *temporary, float *to)
{
    for (int64_t at = 0; at < count; at += BLOCK_ELEMENTS) {
        int64_t n = count - at < BLOCK_ELEMENTS ? count - at : BLOCK_ELEMENTS;
        const float *stack[DEPTH_MAX];
        int depth = 0;
        for (int i = 0; i < tree->walk_count; i++) {
            float *place;
            if (tree->walk[i] != TAKE_SUM) {
                fleet_assert(depth < DEPTH_MAX);
                stack[depth++] = nodes[tree->walk[i]] + at;
                continue;
            }
            depth--;
            place = i == tree->walk_count - 1 ? to + at : temporary + (depth - 1) * BLOCK_ELEMENTS;
            add(stack[depth - 1], stack[depth], n, place);
            stack[depth - 1] = place;
        }
        if (stack[0] != to + at)
            memcpy(to + at, stack[0], (size_t)n * sizeof(float));
    }
}

/* ---- who sends what -------------------------------------------------------------------------- */

/* First element of part p of `count` elements. */
static int64_t part_first(int64_t count, int world, int part)
{
    int64_t first = (count + ALIGNMENT - 1) / ALIGNMENT * part / world * ALIGNMENT;

    return first < count ? first : count;
}

static bool is_one_round(int64_t count)
{
    return count <= RUNTIME_EXCHANGE_WHOLE;
}

static int64_t chunk_elements(int64_t count, int world)
{
    int64_t chunk = RUNTIME_EXCHANGE_PART * world;

    return count < chunk ? count : chunk;
}

size_t tree_sum_workspace(int64_t leaves, int world, int64_t count)
{
    int node_max;

    return runtime_exchange_bytes(count_nodes(leaves, world, NULL, &node_max), world, count);
}

struct reduction {
    struct comm *comm;
    const struct upper_tree *tree;
    float *const *slots;
    float *held;      /* [node_count][held_elements] */
    int64_t stride;   /* held_elements */
    float *temporary; /* DEPTH_MAX blocks */
    const float **nodes;
    /* the lists of an exchange, [world] each */
    const void **send;
    void **receive;
    size_t *send_bytes, *receive_bytes;
    double deadline_ms;
};

static int exchange(const struct reduction *r, struct fleet_error *err)
{
    return comm_exchange(r->comm, r->send, r->send_bytes, r->receive, r->receive_bytes,
                         r->deadline_ms, err);
}

static int reduce_in_one_round(const struct reduction *r, int64_t count, struct fleet_error *err)
{
    const struct upper_tree *tree = r->tree;
    int own = r->comm->rank, rc;
    float *mine = r->held + tree->first_node[own] * count;
    size_t bytes = (size_t)count * sizeof(float);

    for (int i = 0; i < nodes_of(tree, own); i++)
        memcpy(mine + i * count, r->slots[i], bytes);
    for (int p = 0; p < r->comm->world; p++) {
        r->send[p] = mine;
        r->send_bytes[p] = (size_t)nodes_of(tree, own) * bytes;
        r->receive[p] = r->held + tree->first_node[p] * count;
        r->receive_bytes[p] = (size_t)nodes_of(tree, p) * bytes;
    }
    rc = exchange(r, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < tree->node_count; i++)
        r->nodes[i] = r->held + i * count;
    sum(tree, r->nodes, count, r->temporary, r->slots[0]);
    return 0;
}

/* Part p of [first, first + count) of everybody's k-th node goes to rank p. */
static int scatter_node(const struct reduction *r, int k, int64_t first, int64_t count,
                        struct fleet_error *err)
{
    int own = r->comm->rank, world = r->comm->world;
    int64_t own_count = part_first(count, world, own + 1) - part_first(count, world, own);

    for (int p = 0; p < world; p++) {
        int64_t at = part_first(count, world, p), n = part_first(count, world, p + 1) - at;
        int node = r->tree->first_node[p] + k;
        bool sends = p != own && k < nodes_of(r->tree, own);
        bool receives = p != own && k < nodes_of(r->tree, p);
        r->send[p] = sends ? r->slots[k] + first + at : NULL;
        r->send_bytes[p] = sends ? (size_t)n * sizeof(float) : 0;
        r->receive[p] = receives ? r->held + node * r->stride : NULL;
        r->receive_bytes[p] = receives ? (size_t)own_count * sizeof(float) : 0;
    }
    return exchange(r, err);
}

static int gather_parts(const struct reduction *r, int64_t first, int64_t count,
                        struct fleet_error *err)
{
    int own = r->comm->rank, world = r->comm->world;
    int64_t own_at = part_first(count, world, own);

    for (int p = 0; p < world; p++) {
        int64_t at = part_first(count, world, p), n = part_first(count, world, p + 1) - at;
        r->send[p] = r->slots[0] + first + own_at;
        r->send_bytes[p] = (size_t)(part_first(count, world, own + 1) - own_at) * sizeof(float);
        r->receive[p] = r->slots[0] + first + at;
        r->receive_bytes[p] = (size_t)n * sizeof(float);
    }
    return exchange(r, err);
}

static int reduce_chunk(const struct reduction *r, int64_t first, int64_t count,
                        struct fleet_error *err)
{
    int own = r->comm->rank, world = r->comm->world;
    int64_t at = part_first(count, world, own), n = part_first(count, world, own + 1) - at;

    for (int k = 0; k < r->tree->node_max; k++) {
        int rc = scatter_node(r, k, first, count, err);
        if (rc < 0)
            return rc;
    }
    for (int i = 0; i < r->tree->node_count; i++)
        r->nodes[i] = r->held + i * r->stride;
    for (int k = 0; k < nodes_of(r->tree, own); k++)
        r->nodes[r->tree->first_node[own] + k] = r->slots[k] + first + at;
    sum(r->tree, r->nodes, n, r->temporary, r->slots[0] + first + at);
    return gather_parts(r, first, count, err);
}

static int reduce_all(const struct reduction *r, int64_t count, struct fleet_error *err)
{
    int64_t chunk = chunk_elements(count, r->comm->world);

    if (is_one_round(count))
        return reduce_in_one_round(r, count, err);
    for (int64_t first = 0; first < count; first += chunk) {
        int rc = reduce_chunk(r, first, count - first < chunk ? count - first : chunk, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Cut the workspace: what is held, intermediate sums, the lists, the tree. */
static void lay_out(struct reduction *r, struct upper_tree *tree, int64_t leaves, int64_t count,
                    void *workspace)
{
    int world = r->comm->world, node_max;
    int64_t nodes = count_nodes(leaves, world, NULL, &node_max), floats;
    char *at = workspace;

    r->stride = runtime_exchange_held(count, world);
    r->held = workspace;
    r->temporary = r->held + nodes * r->stride;
    floats = nodes * r->stride + DEPTH_MAX * BLOCK_ELEMENTS;
    at += ((size_t)floats * sizeof(float) + 7) / 8 * 8;
    r->send = (const void **)(void *)at;
    r->receive = (void **)(void *)at + world;
    r->send_bytes = (size_t *)(void *)(r->receive + world);
    r->receive_bytes = r->send_bytes + world;
    r->nodes = (const float **)(void *)(r->receive_bytes + world);
    tree->first_node = (int *)(void *)(r->nodes + nodes);
    upper_tree_init(tree, leaves, world);
}

int comm_tree_sum(struct comm *comm, int64_t leaves, float *const *slots, int64_t count,
                  void *workspace, double deadline_ms, struct fleet_error *err)
{
    struct upper_tree tree;
    struct reduction r = {.comm = comm, .tree = &tree, .slots = slots, .deadline_ms = deadline_ms};

    if (comm->world == 1 || count == 0)
        return 0;
    lay_out(&r, &tree, leaves, count, workspace);
    return reduce_all(&r, count, err);
}
