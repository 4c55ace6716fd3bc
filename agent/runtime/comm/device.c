/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Calls over the memory of devices. A reduction sends each range to one rank, which adds the ranks'
 * parts in their order, and then to all: so the bits are those of the host's algorithms. A library
 * that adds in an order of its own is asked only if the call allows any order.
 */
#include "agent/runtime/comm/device.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "agent/runtime/comm/engine.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/tree.h"

int comm_device_check(const struct comm *comm, const struct comm_call *call,
                      struct fleet_error *err)
{
    if (!comm->device)
        return fleet_error(err, -EINVAL, "%s: this communicator has no device",
                           comm_operation_name(call->operation));
    if (call->operation == COMM_EXCHANGE)
        return fleet_error(err, -EINVAL, "exchange: not between the memories of devices");
    return 0;
}

/* ---- what the ranks say ---------------------------------------------------------------------- */

/* A rank learns of messages only: others may not take part. Else round 0 says what each rank
 * starts, round 1 that its part has ended. To wait for that shows at once if a rank is lost. */
bool comm_device_next(struct comm_request *run)
{
    const struct comm *comm = run->comm;

    if (run->call.operation == COMM_MESSAGES) {
        if (run->round == 0)
            comm_messages_start(run, false);
        return run->round == 0;
    }
    if (run->round == 0)
        return comm_barrier_next(run);
    for (int r = 0; r < comm->world && run->round == 1; r++)
        if (r != comm->rank)
            comm_post_receive(run, r, NULL, 0);
    return run->round == 1;
}

static void tell(struct comm_request *run)
{
    const struct comm *comm = run->comm;

    if (run->call.operation == COMM_MESSAGES)
        comm_messages_start(run, true);
    for (int r = 0; r < comm->world && run->call.operation != COMM_MESSAGES; r++)
        if (r != comm->rank)
            comm_post_send(run, r, NULL, 0);
    run->device.has_told = true;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* The parts of one round. */
struct round {
    struct comm_request *run;
    struct fleet_error *err;
    struct comm_device_part *parts;
    const float **nodes; /* of a tree */
    int count;
    size_t size; /* of an element */
};

static struct round round_of(struct comm_request *run, struct fleet_error *err)
{
    const struct comm *comm = run->comm;
    struct device_rounds *d = &run->device;
    bool is_tree = run->call.operation == COMM_TREE_SUM;
    size_t world = (size_t)comm->world, parts, nodes = is_tree ? TREE_NODES_MAX * world : 0;
    size_t tree = is_tree ? upper_tree_bytes(run->call.leaves, comm->world) : 0, bytes;
    struct round x = {.run = run, .err = err, .size = comm_type_size(run->call.type)};

    parts = run->call.operation == COMM_MESSAGES ? (size_t)run->call.message_count
                                                 : 2 * world + TREE_NODES_MAX * world;
    bytes = parts * sizeof(*x.parts) + nodes * sizeof(*x.nodes) + tree;
    if (bytes > d->lists_bytes) {
        free(d->lists);
        d->lists = malloc(bytes);
        fleet_assert(d->lists != NULL);
        d->lists_bytes = bytes;
    }
    x.parts = d->lists;
    x.nodes = (const float **)(void *)(x.parts + parts);
    if (is_tree)
        upper_tree_build(&d->tree, run->call.leaves, comm->world, (void *)(x.nodes + nodes));
    return x;
}

static void add(struct round *x, int peer, bool is_receive, const void *data, size_t bytes)
{
    if (bytes > 0 && peer != x->run->comm->rank)
        x->parts[x->count++] = (struct comm_device_part){peer, is_receive, (void *)data, bytes};
}

static int exchange(struct round *x)
{
    struct comm *comm = x->run->comm;

    if (x->count == 0)
        return 0;
    return comm->library->exchange(comm->device, x->run->call.queue, x->parts, x->count, x->err);
}

static int copy(const struct round *x, void *to, const void *from, size_t bytes)
{
    struct comm *comm = x->run->comm;

    if (to == from || bytes == 0)
        return 0;
    return comm->library->copy(comm->device, x->run->call.queue, to, from, bytes, x->err);
}

static void *scratch(const struct round *x, size_t bytes)
{
    return x->run->comm->library->scratch(x->run->comm->device, bytes, x->err);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static int64_t range_elements(const struct comm_request *run)
{
    return (run->call.count + run->comm->world - 1) / run->comm->world;
}

/* The part of [0, count) that rank `rank` adds. */
static int64_t range_of(const struct comm_request *run, int rank, int64_t *out_first)
{
    int64_t whole = range_elements(run), left = run->call.count - rank * whole;

    *out_first = left > 0 ? rank * whole : 0;
    return left <= 0 ? 0 : left < whole ? left : whole;
}

/* Every rank sends its range of `data` to all ranks. */
static int share_ranges(struct round *x, char *data)
{
    const struct comm *comm = x->run->comm;
    int64_t own_first, own = range_of(x->run, comm->rank, &own_first);

    for (int p = 0; p < comm->world; p++) {
        int64_t first, count = range_of(x->run, p, &first);
        add(x, p, false, data + (size_t)own_first * x->size, (size_t)own * x->size);
        add(x, p, true, data + (size_t)first * x->size, (size_t)count * x->size);
    }
    return exchange(x);
}

/* Fold what all ranks have sent of `count` elements; our own are at `own`. */
static int fold(const struct round *x, int64_t stride, const void *own, int64_t count, void *to)
{
    struct comm *comm = x->run->comm;
    const struct comm_device_fold folding = {
        .type = x->run->call.type,
        .reduction = x->run->call.reduction,
        .inputs = count > 0 ? scratch(x, 0) : NULL,
        .own_input = own,
        .stride = (size_t)stride * x->size,
        .own = comm->rank,
        .input_count = comm->world,
        .count = count,
        .to = to,
    };

    if (count == 0)
        return 0;
    return comm->library->fold(comm->device, x->run->call.queue, &folding, x->err);
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Parts of `stride` elements from all ranks into the scratch memory, each of `count` elements. */
static int receive_all(struct round *x, int64_t stride, int64_t count)
{
    int world = x->run->comm->world;
    char *to = scratch(x, (size_t)(stride * world) * x->size);

    if (!to)
        return -ENOMEM;
    for (int p = 0; p < world; p++)
        add(x, p, true, to + (size_t)(p * stride) * x->size, (size_t)count * x->size);
    return 0;
}

static int all_reduce(struct round *x)
{
    struct comm_request *run = x->run;
    const char *send = run->call.send;
    int64_t own_first, own = range_of(run, run->comm->rank, &own_first), first;
    size_t offset = (size_t)own_first * x->size;
    char *to = run->call.receive;
    int rc;

    if (run->device.round == 0) {
        for (int p = 0; p < run->comm->world; p++) {
            int64_t count = range_of(run, p, &first);
            add(x, p, false, send + (size_t)first * x->size, (size_t)count * x->size);
        }
        rc = receive_all(x, range_elements(run), own);
        return rc < 0 ? rc : exchange(x);
    }
    rc = fold(x, range_elements(run), send + offset, own, to + offset);
    return rc < 0 ? rc : share_ranges(x, to);
}

static int reduce(struct round *x)
{
    const struct comm_call *call = &x->run->call;
    bool is_root = x->run->comm->rank == call->root;
    int rc = 0;

    if (x->run->device.round > 0)
        return is_root ? fold(x, call->count, call->send, call->count, call->receive) : 0;
    if (is_root)
        rc = receive_all(x, call->count, call->count);
    else
        add(x, call->root, false, call->send, (size_t)call->count * x->size);
    return rc < 0 ? rc : exchange(x);
}

static int reduce_scatter(struct round *x)
{
    const struct comm_call *call = &x->run->call;
    size_t bytes = (size_t)call->count * x->size;
    const char *send = call->send;
    int rc;

    if (x->run->device.round > 0)
        return fold(x, call->count, send + (size_t)x->run->comm->rank * bytes, call->count,
                    call->receive);
    for (int p = 0; p < x->run->comm->world; p++)
        add(x, p, false, send + (size_t)p * bytes, bytes);
    rc = receive_all(x, call->count, call->count);
    return rc < 0 ? rc : exchange(x);
}

/* ---- the tree -------------------------------------------------------------------------------- */

static int send_nodes(struct round *x)
{
    const struct comm_request *run = x->run;
    const struct upper_tree *tree = &run->device.tree;
    int rank = run->comm->rank;
    int64_t stride = range_elements(run), first, own = range_of(run, rank, &first);
    float *to = scratch(x, (size_t)(stride * tree->node_count) * sizeof(*to));

    if (!to)
        return -ENOMEM;
    for (int p = 0; p < run->comm->world; p++) {
        int64_t at, count = range_of(run, p, &at);
        for (int k = 0; k < tree->first_node[rank + 1] - tree->first_node[rank]; k++)
            add(x, p, false, run->call.slots[k] + at, (size_t)count * sizeof(*to));
        for (int n = tree->first_node[p]; n < tree->first_node[p + 1]; n++)
            add(x, p, true, to + n * stride, (size_t)own * sizeof(*to));
    }
    return exchange(x);
}

static int add_nodes(const struct round *x)
{
    const struct comm_request *run = x->run;
    struct comm *comm = run->comm;
    const struct upper_tree *tree = &run->device.tree;
    int64_t first, own = range_of(run, comm->rank, &first);
    const float *received = own > 0 ? scratch(x, 0) : NULL;
    const struct comm_device_walk walk = {.nodes = x->nodes,
                                          .walk = tree->walk,
                                          .node_count = tree->node_count,
                                          .walk_count = tree->walk_count,
                                          .to = run->call.slots[0] + first,
                                          .count = own};

    if (own == 0)
        return 0;
    for (int n = 0; n < tree->node_count; n++) {
        int k = n - tree->first_node[comm->rank];
        bool is_ours = k >= 0 && n < tree->first_node[comm->rank + 1];
        x->nodes[n] = is_ours ? run->call.slots[k] + first : received + n * range_elements(run);
    }
    return comm->library->walk(comm->device, run->call.queue, &walk, x->err);
}

static int tree_sum(struct round *x)
{
    int rc;

    if (x->run->comm->world == 1)
        return 0;
    if (x->run->device.round == 0)
        return send_nodes(x);
    rc = add_nodes(x);
    return rc < 0 ? rc : share_ranges(x, (char *)x->run->call.slots[0]);
}

/* ---- operations that only move --------------------------------------------------------------- */

static size_t bytes_of(const struct round *x, const int64_t *counts, int rank)
{
    return (size_t)(counts ? counts[rank] : x->run->call.count) * x->size;
}

static int all_gather(struct round *x)
{
    const struct comm_call *call = &x->run->call;
    int own = x->run->comm->rank, rc = 0;
    char *to = call->receive;

    for (int p = 0; p < x->run->comm->world && rc == 0; p++) {
        size_t bytes = bytes_of(x, call->receive_counts, p);
        add(x, p, false, call->send, bytes_of(x, call->receive_counts, own));
        add(x, p, true, to, bytes);
        if (p == own)
            rc = copy(x, to, call->send, bytes);
        to += bytes;
    }
    return rc < 0 ? rc : exchange(x);
}

static int all_to_all(struct round *x)
{
    const struct comm_call *call = &x->run->call;
    const char *from = call->send;
    char *to = call->receive;
    int rc = 0;

    for (int p = 0; p < x->run->comm->world && rc == 0; p++) {
        size_t sent = bytes_of(x, call->send_counts, p),
               received = bytes_of(x, call->receive_counts, p);
        add(x, p, false, from, sent);
        add(x, p, true, to, received);
        if (p == x->run->comm->rank)
            rc = copy(x, to, from, sent);
        from += sent;
        to += received;
    }
    return rc < 0 ? rc : exchange(x);
}

/* The root's memory to all others: all of it (broadcast), or a part each (scatter). */
static int from_root(struct round *x)
{
    const struct comm_call *call = &x->run->call;
    bool is_cut = call->operation == COMM_SCATTER;
    const char *from = is_cut ? call->send : call->receive;
    size_t bytes = (size_t)call->count * x->size;
    int rc = 0;

    if (x->run->comm->rank != call->root)
        add(x, call->root, true, call->receive, bytes);
    for (int p = 0; p < x->run->comm->world && x->run->comm->rank == call->root; p++)
        add(x, p, false, from + (is_cut ? (size_t)p * bytes : 0), bytes);
    if (is_cut && x->run->comm->rank == call->root)
        rc = copy(x, call->receive, from + (size_t)call->root * bytes, bytes);
    return rc < 0 ? rc : exchange(x);
}

static int messages(struct round *x)
{
    for (int i = 0; i < x->run->call.message_count; i++) {
        const struct comm_message *m = &x->run->call.messages[i];
        add(x, m->peer, m->is_receive, m->data, (size_t)m->count * comm_type_size(m->type));
    }
    return exchange(x);
}

/* ---- moving on ------------------------------------------------------------------------------- */

static const struct {
    int (*put)(struct round *x);
    int rounds;
    bool adds;
    bool has_collective; /* libraries have algorithms for it */
} operations[COMM_OPERATIONS] = {
    [COMM_ALL_REDUCE] = {all_reduce, 2, true, true},
    [COMM_REDUCE] = {reduce, 2, true, false},
    [COMM_REDUCE_SCATTER] = {reduce_scatter, 2, true, true},
    [COMM_ALL_GATHER] = {all_gather, 1, false, true},
    [COMM_BROADCAST] = {from_root, 1, false, true},
    [COMM_SCATTER] = {from_root, 1, false, false},
    [COMM_ALL_TO_ALL] = {all_to_all, 1, false, false},
    [COMM_MESSAGES] = {messages, 1, false, false},
    [COMM_TREE_SUM] = {tree_sum, 2, true, false},
};

static bool may_be_whole(const struct comm_request *run)
{
    return run->device.round == 0 && operations[run->call.operation].has_collective &&
           !run->call.receive_counts &&
           (run->call.any_order || !operations[run->call.operation].adds);
}

/* Put the next round. */
static int put_round(struct comm_request *run, struct fleet_error *err)
{
    struct comm *comm = run->comm;
    struct device_rounds *d = &run->device;
    struct round x;
    int rc = -ENOTSUP;

    if (may_be_whole(run)) {
        rc = comm->library->collective(comm->device, run->call.queue, &run->call, err);
        d->is_all_put = rc == 0;
    }
    if (rc == -ENOTSUP) {
        x = round_of(run, err);
        rc = operations[run->call.operation].put(&x);
        d->is_all_put = ++d->round == operations[run->call.operation].rounds;
    }
    return rc;
}

/* 1: the call's part of this rank has ended. */
static int move_on(struct comm_request *run, struct fleet_error *err)
{
    struct comm *comm = run->comm;
    struct device_rounds *d = &run->device;
    int rc = 1;

    if (run->call.operation == COMM_BARRIER && !d->is_all_put)
        comm->library->follow(comm->device, run->call.queue);
    d->is_all_put |=
        run->call.operation == COMM_BARRIER ||
        (run->call.operation != COMM_MESSAGES && run->call.count == 0 && !run->call.receive_counts);
    while (!d->is_all_put) {
        rc = comm->library->test(comm->device, COMM_DEVICE_BEGUN, err);
        if (rc > 0)
            rc = put_round(run, err);
        else if (rc == 0)
            return 0;
        if (rc < 0)
            return rc;
    }
    return comm->library->test(comm->device, COMM_DEVICE_ENDED, err);
}

int comm_device_progress(struct comm_request *run, struct fleet_error *err)
{
    struct device_rounds *d = &run->device;

    if (!d->has_ended) {
        int rc = move_on(run, err);
        if (rc < 0)
            return rc;
        d->has_ended = rc > 0;
    }
    /* the other direction of each pair is free once the first message of the call has left */
    if (d->has_ended && !d->has_told && (run->round > 0 || run->call.operation == COMM_MESSAGES))
        tell(run);
    return d->has_told || (run->round == 0 && run->call.operation != COMM_MESSAGES);
}

/* ---- in a graph ------------------------------------------------------------------------------ */
#define LOOK_NS 20000 /* between two looks at the library */

/* 1: what was put is in the graph. */
static int wait_for_put(struct comm *comm, double deadline_ms, struct fleet_error *err)
{
    int rc;

    while ((rc = comm->library->test(comm->device, COMM_DEVICE_BEGUN, err)) == 0) {
        if (atomic_load(&comm->net->aborted))
            return fleet_error(err, -ECANCELED, "the communicator was aborted");
        if (fleet_monotonic_ms() > deadline_ms)
            return fleet_error(err, -ETIMEDOUT, "%s: the library has not put it into a graph",
                               comm_operation_name(comm->run->call.operation));
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return rc;
}

int comm_device_capture(struct comm *comm, const struct comm_call *call, double deadline_ms,
                        struct fleet_error *err)
{
    struct device_rounds *d = &comm->run->device;
    int rc = comm_check(comm, call, err);

    if (rc < 0)
        return rc;
    comm->run->call = *call;
    *d = (struct device_rounds){.lists = d->lists, .lists_bytes = d->lists_bytes};
    while (rc >= 0 && !d->is_all_put) {
        rc = wait_for_put(comm, deadline_ms, err);
        if (rc > 0)
            rc = put_round(comm->run, err);
    }
    rc = rc < 0 ? rc : wait_for_put(comm, deadline_ms, err);
    return rc < 0 ? rc : 0;
}
