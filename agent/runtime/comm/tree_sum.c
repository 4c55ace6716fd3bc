/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The upper part of the summation tree, over ranks.
 *
 * Every rank knows the nodes of all ranks. So the tree above them is a short list of "take node i"
 * and "add the last two". It is run block by block, with intermediate sums that stay in the cache.
 * The additions and their order are the same whichever rank makes them; so the result has the same
 * bits everywhere.
 *
 * Small counts: every rank sends its nodes to all ranks in one round, and every rank adds all.
 * Large counts, one chunk at a time: all ranks send part p of the chunk to rank p, which adds it;
 * then every rank sends its part to all ranks. With a board (board.h) the chunk is summed a piece
 * at a time: as much of each part as the slots hold.
 */
#include <string.h>

#include "agent/runtime/comm/add.h"
#include "agent/runtime/comm/board.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/runtime_connections.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/runtime_traffic.h"
#include "libfleet/plan/tree.h"

#define BLOCK_ELEMENTS RUNTIME_EXCHANGE_BLOCK /* added at a time */
/* of the tree above: 63 levels and the two operands */
#define DEPTH_MAX RUNTIME_EXCHANGE_DEPTH
#define TAKE_SUM  (-1)

/* ---- the tree above the nodes ---------------------------------------------------------------- */

/* Walks over the nodes of all ranks in order, one rank's at a time. */
struct cursor {
    int64_t leaves;
    int world, rank; /* whose nodes these are */
    int each;        /* ranks of the tree that a rank stands for */
    struct tree_node nodes[TREE_NODES_MAX];
    int count, at;
    int taken; /* nodes gone past, of all ranks */
};

static int nodes_of_rank(int64_t leaves, int world, int each, int rank, struct tree_node *nodes)
{
    return tree_nodes(leaves, tree_first_leaf(leaves, world * each, rank * each),
                      tree_first_leaf(leaves, world * each, (rank + 1) * each), nodes);
}

/* Go to the next rank's nodes if this one's are used up. */
static void next_node(struct cursor *c)
{
    while (c->at == c->count && c->rank < c->world - 1) {
        c->rank++;
        c->at = 0;
        c->count = nodes_of_rank(c->leaves, c->world, c->each, c->rank, c->nodes);
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
static int count_nodes(int64_t leaves, int world, int each, int *first_node, int *out_max)
{
    struct tree_node nodes[TREE_NODES_MAX];
    int total = 0;

    *out_max = 0;
    for (int r = 0; r < world; r++) {
        int count = nodes_of_rank(leaves, world, each, r, nodes);
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
static void upper_tree_init(struct upper_tree *tree, int64_t leaves, int world, int each)
{
    struct cursor cursor = {.leaves = leaves, .world = world, .each = each, .rank = -1};

    fleet_assert(leaves >= 1);
    tree->node_count = count_nodes(leaves, world, each, tree->first_node, &tree->node_max);
    tree->walk = tree->first_node + world + 1;
    tree->walk_count = 0;
    next_node(&cursor);
    walk_range(tree, &cursor, 0, leaves);
    fleet_assert(cursor.taken == tree->node_count);
}

size_t upper_tree_bytes(int64_t leaves, int world)
{
    int node_max, nodes = count_nodes(leaves, world, 1, NULL, &node_max);

    return ((size_t)world + 1 + 2 * (size_t)nodes) * sizeof(int);
}

void upper_tree_build(struct upper_tree *tree, int64_t leaves, int world, void *memory)
{
    tree->first_node = memory;
    upper_tree_init(tree, leaves, world, 1);
}

static int nodes_of(const struct upper_tree *tree, int rank)
{
    return tree->first_node[rank + 1] - tree->first_node[rank];
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
            comm_add(stack[depth - 1], stack[depth], n, place);
            stack[depth - 1] = place;
        }
        if (stack[0] != to + at)
            memcpy(to + at, stack[0], (size_t)n * sizeof(float));
    }
}

/* ---- which rank sends what ------------------------------------------------------------------- */

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

    return runtime_exchange_bytes(count_nodes(leaves, world, 1, NULL, &node_max), world, count);
}

/* All nodes to all ranks. */
static void send_whole(struct comm_request *run)
{
    const struct tree_state *s = &run->tree;
    int own = run->comm->rank;
    int64_t count = run->call.count;
    size_t bytes = (size_t)count * sizeof(float);
    float *mine = s->held + s->tree.first_node[own] * count;

    for (int i = 0; i < nodes_of(&s->tree, own); i++)
        memcpy(mine + i * count, run->call.slots[i], bytes);
    for (int p = 0; p < run->comm->world; p++) {
        size_t sent = (size_t)nodes_of(&s->tree, own) * bytes;
        size_t received = (size_t)nodes_of(&s->tree, p) * bytes;
        if (p != own && sent > 0)
            comm_post_send(run, p, mine, sent);
        if (p != own && received > 0)
            comm_post_receive(run, p, s->held + s->tree.first_node[p] * count, received);
    }
}

static void sum_whole(struct comm_request *run)
{
    const struct tree_state *s = &run->tree;

    for (int i = 0; i < s->tree.node_count; i++)
        s->nodes[i] = s->held + i * run->call.count;
    sum(&s->tree, s->nodes, run->call.count, s->temporary, run->call.slots[0]);
}

/* What is at work of part p of the chunk: elements [*out_first, + *out_count) of the chunk. */
static void part_of(const struct comm_request *run, int part, int64_t *out_first,
                    int64_t *out_count)
{
    const struct tree_state *s = &run->tree;
    int64_t first = runtime_part_first(s->count, run->comm->world, part) + s->piece_first;
    int64_t left = runtime_part_first(s->count, run->comm->world, part + 1) - first;

    *out_first = first;
    *out_count = left < 0 ? 0 : left < s->piece ? left : s->piece;
}

/* Part p of the chunk of every rank's k-th node goes to rank p. */
static void scatter_node(struct comm_request *run, int k)
{
    const struct tree_state *s = &run->tree;
    int own = run->comm->rank;
    int64_t own_first, own_count;

    part_of(run, own, &own_first, &own_count);
    for (int p = 0; p < run->comm->world; p++) {
        int64_t first, count;
        part_of(run, p, &first, &count);
        if (p != own && k < nodes_of(&s->tree, own) && count > 0)
            comm_post_send(run, p, run->call.slots[k] + s->first + first,
                           (size_t)count * sizeof(float));
        if (p != own && k < nodes_of(&s->tree, p) && own_count > 0)
            comm_post_receive(run, p, s->held + (s->tree.first_node[p] + k) * s->stride,
                              (size_t)own_count * sizeof(float));
    }
}

static void sum_part(struct comm_request *run)
{
    const struct tree_state *s = &run->tree;
    int own = run->comm->rank;
    int64_t first, count;

    part_of(run, own, &first, &count);
    for (int i = 0; i < s->tree.node_count; i++)
        s->nodes[i] = s->held + i * s->stride;
    for (int k = 0; k < nodes_of(&s->tree, own); k++)
        s->nodes[s->tree.first_node[own] + k] = run->call.slots[k] + s->first + first;
    sum(&s->tree, s->nodes, count, s->temporary, run->call.slots[0] + s->first + first);
}

static void gather_parts(struct comm_request *run)
{
    float *to = run->call.slots[0] + run->tree.first;
    int own = run->comm->rank;
    int64_t own_first, own_count;

    part_of(run, own, &own_first, &own_count);
    for (int p = 0; p < run->comm->world; p++) {
        int64_t first, count;
        part_of(run, p, &first, &count);
        if (p != own && own_count > 0)
            comm_post_send(run, p, to + own_first, (size_t)own_count * sizeof(float));
        if (p != own && count > 0)
            comm_post_receive(run, p, to + first, (size_t)count * sizeof(float));
    }
}

/* ---- the same through the board -------------------------------------------------------------- */

/* What is at work of all our nodes, one after the other, to the slots of the ranks that add it. */
static void scatter_on_board(struct comm_request *run)
{
    const struct tree_state *s = &run->tree;
    int own = run->comm->rank, world = run->comm->world, mine = nodes_of(&s->tree, own);
    int64_t own_first, own_count;

    part_of(run, own, &own_first, &own_count);
    for (int i = 1; i < world; i++) {
        int p = (own + i) % world, theirs = nodes_of(&s->tree, p);
        float *slot = (float *)(void *)board_slot(run->comm, p);
        const float *received;
        int64_t first, count;
        part_of(run, p, &first, &count);
        for (int k = 0; k < mine && count > 0; k++)
            memcpy(slot + k * count, run->call.slots[k] + s->first + first,
                   (size_t)count * sizeof(float));
        board_send(run, p, (size_t)(mine * count) * sizeof(float));
        received = board_receive(run, p, (size_t)(theirs * own_count) * sizeof(float));
        for (int k = 0; k < theirs; k++)
            s->nodes[s->tree.first_node[p] + k] = received + k * own_count;
    }
}

static void sum_on_board(struct comm_request *run)
{
    const struct tree_state *s = &run->tree;
    int own = run->comm->rank;
    float *to = (float *)(void *)board_slot(run->comm, own);
    int64_t first, count;

    part_of(run, own, &first, &count);
    for (int k = 0; k < nodes_of(&s->tree, own); k++)
        s->nodes[s->tree.first_node[own] + k] = run->call.slots[k] + s->first + first;
    if (count == 0)
        return;
    sum(&s->tree, s->nodes, count, s->temporary, to);
    memcpy(run->call.slots[0] + s->first + first, to, (size_t)count * sizeof(float));
}

static void gather_on_board(struct comm_request *run)
{
    int own = run->comm->rank, world = run->comm->world;
    int64_t own_first, own_count;

    part_of(run, own, &own_first, &own_count);
    for (int i = 1; i < world; i++) {
        int p = (own + i) % world;
        int64_t first, count;
        part_of(run, p, &first, &count);
        board_send(run, p, (size_t)own_count * sizeof(float));
        board_receive_copy(run, p, run->call.slots[0] + run->tree.first + first,
                           (size_t)count * sizeof(float));
    }
}

/* Elements of a part at a time: the nodes of a rank lie in one slot. */
static int64_t piece_elements(const struct upper_tree *tree)
{
    int64_t elements = (int64_t)(RUNTIME_BOARD_SLOT / sizeof(float)) / tree->node_max;

    return elements / RUNTIME_EXCHANGE_ALIGN * RUNTIME_EXCHANGE_ALIGN;
}

/* Elements of the largest part of a chunk. */
static int64_t largest_part(int64_t count, int world)
{
    int64_t each = (int64_t)world * RUNTIME_EXCHANGE_ALIGN;

    return (count + each - 1) / each * RUNTIME_EXCHANGE_ALIGN;
}

/* Two rounds a piece. */
static bool in_pieces(struct comm_request *run)
{
    struct tree_state *s = &run->tree;
    int world = run->comm->world;
    int64_t largest = chunk_elements(run->call.count, world), number = run->round / 2, pieces, left;

    s->piece = piece_elements(&s->tree);
    pieces = (largest_part(largest, world) + s->piece - 1) / s->piece;
    s->first = number / pieces * largest;
    s->piece_first = number % pieces * s->piece;
    left = run->call.count - s->first;
    s->count = left < largest ? left : largest;
    if (left <= 0 || s->piece_first >= largest_part(s->count, world))
        return false;
    if (run->round % 2 == 0) {
        scatter_on_board(run);
    } else {
        sum_on_board(run);
        gather_on_board(run);
    }
    return true;
}

/* ---- the operation --------------------------------------------------------------------------- */

/* Cut the workspace: what is held, intermediate sums, the list of nodes, the tree. */
static void lay_out(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    struct tree_state *s = &run->tree;
    int world = run->comm->world, each = call->stands_for > 0 ? call->stands_for : 1, node_max;
    int64_t nodes = count_nodes(call->leaves, world, each, NULL, &node_max), floats;
    char *at = call->workspace;

    *s = (struct tree_state){.stride = runtime_exchange_held(call->count, world),
                             .piece = INT64_MAX};
    s->held = call->workspace;
    s->temporary = s->held + nodes * s->stride;
    floats = nodes * s->stride + DEPTH_MAX * BLOCK_ELEMENTS;
    at += ((size_t)floats * sizeof(float) + 7) / 8 * 8;
    s->nodes = (const float **)(void *)at;
    s->tree.first_node = (int *)(void *)(s->nodes + nodes);
    upper_tree_init(&s->tree, call->leaves, world, each);
}

static bool whole(struct comm_request *run)
{
    if (run->round == 0)
        send_whole(run);
    else
        sum_whole(run);
    return run->round == 0;
}

/* Chunk by chunk: a round for each node of a rank, one to gather. */
static bool in_chunks(struct comm_request *run)
{
    struct tree_state *s = &run->tree;
    int64_t largest = chunk_elements(run->call.count, run->comm->world);
    int64_t rounds = s->tree.node_max + 1, at = run->round % rounds;

    s->first = run->round / rounds * largest;
    if (s->first >= run->call.count)
        return false;
    s->count = run->call.count - s->first < largest ? run->call.count - s->first : largest;
    if (at < s->tree.node_max) {
        scatter_node(run, (int)at);
    } else {
        sum_part(run);
        gather_parts(run);
    }
    return true;
}

bool comm_tree_sum_next(struct comm_request *run)
{
    if (run->comm->world == 1 || run->call.count == 0)
        return false;
    if (run->round == 0)
        lay_out(run);
    if (is_one_round(run->call.count))
        return whole(run);
    return run->comm->has_board ? in_pieces(run) : in_chunks(run);
}
