/* SPDX-License-Identifier: Apache-2.0 */

/*
 * all_reduce, reduce, reduce_scatter. Small: everything to all (or to the root), which reduce it.
 * Large, a chunk at a time: part p of the chunk from all to rank p, which reduces it; then the
 * parts to all (or to the root). Each element is reduced by one rank, or by all in the same order:
 * the bits are the same everywhere. With a board, parts and their reductions lie there.
 */
#include <string.h>

#include "agent/runtime/comm/board.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/runtime_traffic.h"

struct layout {
    size_t size;         /* of an element */
    int64_t held;        /* elements that are held of each rank */
    bool on_board;       /* none are held: they lie in boards */
    char *parts;         /* [world][held], of the others; the own one is room for a result */
    const void **inputs; /* [world]: what is reduced; kept from round to round */
};

static struct layout lay_out(struct comm_request *run, int64_t held, bool on_board)
{
    struct layout l = {
        .size = comm_type_size(run->call.type), .held = on_board ? 0 : held, .on_board = on_board};
    size_t world = (size_t)run->comm->world;
    size_t bytes = world * (size_t)l.held * l.size;

    bytes = (bytes + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
    l.parts = run->round == 0 ? comm_scratch(run, bytes + world * sizeof(void *)) : run->scratch;
    l.inputs = (const void **)(void *)(l.parts + bytes);
    return l;
}

static char *part_of(const struct layout *l, int rank)
{
    return l->parts + (size_t)(rank * l->held) * l->size;
}

/* Reduce what the others have sent with our own elements. */
static void fold(struct comm_request *run, const struct layout *l, const void *own, int64_t count,
                 void *to)
{
    l->inputs[run->comm->rank] = own;
    comm_fold(run->call.type, run->call.reduction, l->inputs, run->comm->world, count, to);
}

/* `bytes`: those of all ranks' parts. */
static bool on_board(const struct comm_request *run, size_t bytes)
{
    return run->comm->has_board && bytes > (size_t)RUNTIME_REDUCE_WHOLE;
}

/* Send rank p its part, and receive our part of its elements. */
static void exchange_part(struct comm_request *run, const struct layout *l, int p, const char *data,
                          int64_t count, int64_t own_count)
{
    size_t bytes = (size_t)count * l->size, own_bytes = (size_t)own_count * l->size;

    if (l->on_board) {
        memcpy(board_slot(run->comm, p), data, bytes);
        board_send(run, p, bytes);
        l->inputs[p] = board_receive(run, p, own_bytes);
    } else {
        comm_post_send(run, p, data, bytes);
        comm_post_receive(run, p, part_of(l, p), own_bytes);
        l->inputs[p] = part_of(l, p);
    }
}

static bool is_for_root(const struct comm_request *run)
{
    return run->call.operation == COMM_REDUCE;
}

/* Of reduce: to the root; else to all. */
static bool gets_result(const struct comm_request *run, int rank)
{
    return !is_for_root(run) || rank == run->call.root;
}

/* ---- everything to all ----------------------------------------------------------------------- */

static bool whole(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    struct layout l = lay_out(run, call->count, false);
    size_t bytes = (size_t)call->count * l.size;
    int own = run->comm->rank;

    if (run->round == 1 && gets_result(run, own))
        fold(run, &l, call->send, call->count, call->receive);
    if (run->round == 1)
        return false;
    for (int r = 0; r < run->comm->world; r++) {
        if (r != own && gets_result(run, r))
            comm_post_send(run, r, call->send, bytes);
        if (r != own && gets_result(run, own))
            comm_post_receive(run, r, part_of(&l, r), bytes);
        l.inputs[r] = part_of(&l, r);
    }
    return true;
}

/* ---- in parts -------------------------------------------------------------------------------- */

/* A chunk: elements [first, first + count), and our part of it. */
struct chunk {
    int64_t first, count, own_first, own_count;
};

static struct chunk chunk_of(const struct comm_request *run, int64_t number, int64_t largest)
{
    struct chunk c = {.first = number * largest};
    int world = run->comm->world, own = run->comm->rank;

    c.count = run->call.count - c.first < largest ? run->call.count - c.first : largest;
    c.own_first = c.first + runtime_part_first(c.count, world, own);
    c.own_count = c.first + runtime_part_first(c.count, world, own + 1) - c.own_first;
    return c;
}

static void scatter_parts(struct comm_request *run, const struct layout *l, const struct chunk *c)
{
    int world = run->comm->world;

    for (int i = 1; i < world; i++) {
        int p = (run->comm->rank + i) % world;
        int64_t first = runtime_part_first(c->count, world, p);
        int64_t count = runtime_part_first(c->count, world, p + 1) - first;
        exchange_part(run, l, p,
                      (const char *)run->call.send + (size_t)(c->first + first) * l->size, count,
                      c->own_count);
    }
}

/* The same through the board. A rank that gets no result gets an empty message: we have read its
 * slot for us. */
static void gather_on_board(struct comm_request *run, const struct layout *l, const struct chunk *c)
{
    int world = run->comm->world, own = run->comm->rank;
    size_t mine = (size_t)c->own_count * l->size;

    if (gets_result(run, own) && mine > 0)
        memcpy((char *)run->call.receive + (size_t)c->own_first * l->size,
               board_slot(run->comm, own), mine);
    for (int i = 1; i < world; i++) {
        int p = (own + i) % world;
        int64_t first = runtime_part_first(c->count, world, p);
        int64_t count = runtime_part_first(c->count, world, p + 1) - first;
        board_send(run, p, gets_result(run, p) ? mine : 0);
        if (gets_result(run, own))
            board_receive_copy(run, p,
                               (char *)run->call.receive + (size_t)(c->first + first) * l->size,
                               (size_t)count * l->size);
        else
            board_receive_copy(run, p, NULL, 0);
    }
}

/* `mine` is our part's result. */
static void gather_parts(struct comm_request *run, const struct layout *l, const struct chunk *c,
                         const char *mine)
{
    int world = run->comm->world, own = run->comm->rank;

    for (int p = 0; p < world; p++) {
        int64_t first = runtime_part_first(c->count, world, p);
        int64_t count = runtime_part_first(c->count, world, p + 1) - first;
        if (p != own && gets_result(run, p))
            comm_post_send(run, p, mine, (size_t)c->own_count * l->size);
        if (p != own && gets_result(run, own))
            comm_post_receive(run, p,
                              (char *)run->call.receive + (size_t)(c->first + first) * l->size,
                              (size_t)count * l->size);
    }
}

/* Two rounds a chunk: scatter, gather. */
static bool in_parts(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    int world = run->comm->world, own = run->comm->rank;
    int64_t part = RUNTIME_REDUCE_PART / (int64_t)comm_type_size(call->type);
    struct layout l = lay_out(run, part + 2 * RUNTIME_EXCHANGE_ALIGN, run->comm->has_board);
    struct chunk c;
    char *mine;

    if (run->round / 2 * part * world >= call->count)
        return false;
    c = chunk_of(run, run->round / 2, part * world);
    if (run->round % 2 == 0) {
        scatter_parts(run, &l, &c);
        return true;
    }
    mine = l.on_board              ? board_slot(run->comm, own)
           : gets_result(run, own) ? (char *)call->receive + (size_t)c.own_first * l.size
                                   : part_of(&l, own);
    fold(run, &l, (const char *)call->send + (size_t)c.own_first * l.size, c.own_count, mine);
    if (l.on_board)
        gather_on_board(run, &l, &c);
    else
        gather_parts(run, &l, &c, mine);
    return true;
}

static bool alone(struct comm_request *run, const void *own)
{
    size_t bytes = (size_t)run->call.count * comm_type_size(run->call.type);

    if (run->call.receive != own && bytes > 0)
        memmove(run->call.receive, own, bytes);
    return false;
}

bool comm_all_reduce_next(struct comm_request *run)
{
    size_t bytes = (size_t)run->call.count * comm_type_size(run->call.type);

    if (run->comm->world == 1)
        return alone(run, run->call.send);
    return bytes <= (size_t)RUNTIME_REDUCE_WHOLE ? whole(run) : in_parts(run);
}

/* ---- reduce_scatter -------------------------------------------------------------------------- */

/* Round t brings chunk t of our part from all. */
static bool scatter(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    int64_t largest = RUNTIME_REDUCE_PART / (int64_t)comm_type_size(call->type);
    int64_t first = run->round * largest, count;
    int own = run->comm->rank;
    struct layout l = lay_out(run, call->count < largest ? call->count : largest, false);

    if (run->round > 0) {
        int64_t done = first - largest;
        count = call->count - done < largest ? call->count - done : largest;
        fold(run, &l, (const char *)call->send + (size_t)(own * call->count + done) * l.size, count,
             (char *)call->receive + (size_t)done * l.size);
        if (first >= call->count)
            return false;
    }
    count = call->count - first < largest ? call->count - first : largest;
    for (int p = 0; p < run->comm->world; p++)
        if (p != own)
            exchange_part(run, &l, p,
                          (const char *)call->send + (size_t)(p * call->count + first) * l.size,
                          count, count);
    return true;
}

/* Two rounds a chunk: our part comes from all; empty messages say that we have added it. */
static bool scatter_on_board(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    int64_t largest = RUNTIME_REDUCE_PART / (int64_t)comm_type_size(call->type);
    int64_t first = run->round / 2 * largest, left = call->count - first;
    int64_t count = left < largest ? left : largest;
    int own = run->comm->rank, world = run->comm->world;
    struct layout l = lay_out(run, 0, true);

    if (left <= 0)
        return false;
    if (run->round % 2 != 0)
        fold(run, &l, (const char *)call->send + (size_t)(own * call->count + first) * l.size,
             count, (char *)call->receive + (size_t)first * l.size);
    for (int i = 1; i < world; i++) {
        int p = (own + i) % world;
        if (run->round % 2 == 0) {
            exchange_part(run, &l, p,
                          (const char *)call->send + (size_t)(p * call->count + first) * l.size,
                          count, count);
        } else {
            board_send(run, p, 0);
            board_receive_copy(run, p, NULL, 0);
        }
    }
    return true;
}

bool comm_reduce_scatter_next(struct comm_request *run)
{
    int world = run->comm->world;
    size_t bytes = (size_t)run->call.count * comm_type_size(run->call.type);

    if (world == 1)
        return alone(run, run->call.send);
    return on_board(run, bytes * (size_t)world) ? scatter_on_board(run) : scatter(run);
}
