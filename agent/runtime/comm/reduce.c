/* SPDX-License-Identifier: Apache-2.0 */

/*
 * all_reduce, reduce, reduce_scatter. Small: everything to all (or to the root), which reduce it.
 * Large, a chunk at a time: part p of the chunk from all to rank p, which reduces it; then the
 * parts to all (or to the root). Each element is reduced by one rank, or by all in the same order:
 * the bits are the same everywhere.
 */
#include <string.h>

#include "agent/runtime/comm/engine.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/runtime_traffic.h"

struct layout {
    size_t size;         /* of an element */
    int64_t held;        /* elements that are held of each rank */
    char *parts;         /* [world][held], of the others; the own one is room for a result */
    const void **inputs; /* [world] */
};

static struct layout lay_out(struct comm_request *run, int64_t held)
{
    struct layout l = {.size = comm_type_size(run->call.type), .held = held};
    size_t world = (size_t)run->comm->world;
    size_t bytes = world * (size_t)held * l.size;

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
    int world = run->comm->world;

    for (int r = 0; r < world; r++)
        l->inputs[r] = r == run->comm->rank ? own : part_of(l, r);
    comm_fold(run->call.type, run->call.reduction, l->inputs, world, count, to);
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
    struct layout l = lay_out(run, call->count);
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

    for (int p = 0; p < world; p++) {
        int64_t first = runtime_part_first(c->count, world, p);
        int64_t count = runtime_part_first(c->count, world, p + 1) - first;
        if (p == run->comm->rank)
            continue;
        comm_post_send(run, p, (const char *)run->call.send + (size_t)(c->first + first) * l->size,
                       (size_t)count * l->size);
        comm_post_receive(run, p, part_of(l, p), (size_t)c->own_count * l->size);
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
    struct layout l = lay_out(run, part + 2 * RUNTIME_EXCHANGE_ALIGN);
    struct chunk c;
    char *mine;

    if (run->round / 2 * part * world >= call->count)
        return false;
    c = chunk_of(run, run->round / 2, part * world);
    if (run->round % 2 == 0) {
        scatter_parts(run, &l, &c);
        return true;
    }
    mine = gets_result(run, own) ? (char *)call->receive + (size_t)c.own_first * l.size
                                 : part_of(&l, own);
    fold(run, &l, (const char *)call->send + (size_t)c.own_first * l.size, c.own_count, mine);
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
bool comm_reduce_scatter_next(struct comm_request *run)
{
    const struct comm_call *call = &run->call;
    int64_t largest = RUNTIME_REDUCE_PART / (int64_t)comm_type_size(call->type);
    int64_t first = run->round * largest, count;
    int own = run->comm->rank;
    struct layout l;

    if (run->comm->world == 1)
        return alone(run, call->send);
    l = lay_out(run, call->count < largest ? call->count : largest);
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
        if (p != own) {
            comm_post_send(run, p,
                           (const char *)call->send + (size_t)(p * call->count + first) * l.size,
                           (size_t)count * l.size);
            comm_post_receive(run, p, part_of(&l, p), (size_t)count * l.size);
        }
    return true;
}
