/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/runtime_hierarchy.h"

#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/runtime_traffic.h"
#include "libfleet/plan/tree.h"

int runtime_hierarchy_block(int block, int ranks)
{
    return block > 1 && block < ranks && ranks % block == 0 ? block : 0;
}

/* Nodes of the ranks [first, end) together. */
static int nodes_of(const struct runtime_hierarchy *h, int first, int end)
{
    struct tree_node nodes[TREE_NODES_MAX];

    return tree_nodes(h->leaves, tree_first_leaf(h->leaves, h->ranks, first),
                      tree_first_leaf(h->leaves, h->ranks, end), nodes);
}

void runtime_hierarchy_lay_out(const struct runtime_hierarchy *h, int64_t count,
                               struct runtime_hierarchy_layout *out)
{
    int64_t piece = count < RUNTIME_HIERARCHY_PIECE ? count : RUNTIME_HIERARCHY_PIECE;
    int most = 0, copies = 0, total = 0;

    for (int first = 0; first < h->ranks; first += h->block) {
        int held = 0, received = 0;
        for (int r = first; r < first + h->block; r++) {
            int nodes = nodes_of(h, r, r + 1);
            held += nodes;
            received += r > first ? nodes : 0;
        }
        most = held > most ? held : most;
        copies = received > copies ? received : copies;
        total += nodes_of(h, first, first + h->block);
    }
    *out = (struct runtime_hierarchy_layout){
        .copies = ((size_t)(copies * piece) * sizeof(float) + 7) / 8 * 8,
        .messages = (size_t)most * RUNTIME_HIERARCHY_ENTRY,
        .held = (size_t)most * RUNTIME_HIERARCHY_ENTRY,
        .rest = runtime_exchange_bytes(total, h->ranks / h->block, piece)};
}

size_t runtime_hierarchy_bytes(const struct runtime_hierarchy *h, int64_t count)
{
    struct runtime_hierarchy_layout l;

    runtime_hierarchy_lay_out(h, count, &l);
    return l.copies + l.messages + l.held + l.rest;
}

static double piece_sent(const struct runtime_hierarchy *h, int64_t count)
{
    int member = h->place % h->block;
    struct runtime_place leader = {.ranks = h->ranks / h->block, .place = h->place / h->block};
    double sent = 0;

    if (member == 0)
        sent += runtime_tree_sum_sent(count, nodes_of(h, h->place, h->place + h->block), &leader);
    else
        sent += (double)(nodes_of(h, h->place, h->place + 1) * count) * sizeof(float);
    return sent + runtime_broadcast_sent((double)count * sizeof(float), h->block, member);
}

size_t runtime_hierarchy_halves_bytes(int block, int64_t count)
{
    int64_t piece = count < RUNTIME_HIERARCHY_PIECE ? count : RUNTIME_HIERARCHY_PIECE;

    return RUNTIME_HIERARCHY_HALVES(count) + (size_t)block * RUNTIME_HIERARCHY_MEMBER +
           (size_t)piece * (sizeof(float) + (size_t)(block - 1) * sizeof(uint16_t));
}

double runtime_hierarchy_halves_sent(const struct runtime_hierarchy *h, int64_t count)
{
    int member = h->place % h->block, leaders = h->ranks / h->block, leader = h->place / h->block;
    double halves = (double)count * sizeof(uint16_t);
    double sent = runtime_broadcast_sent(halves, h->block, member);

    if (member > 0)
        return sent + halves;
    if (leader < leaders - 1)
        sent += (double)count * sizeof(float);
    return sent + runtime_broadcast_sent(halves, leaders, (leader + 1) % leaders);
}

double runtime_hierarchy_sent(const struct runtime_hierarchy *h, int64_t count)
{
    int64_t whole = count / RUNTIME_HIERARCHY_PIECE, rest = count % RUNTIME_HIERARCHY_PIECE;
    double sent = (double)whole * piece_sent(h, RUNTIME_HIERARCHY_PIECE);

    return rest > 0 ? sent + piece_sent(h, rest) : sent;
}
