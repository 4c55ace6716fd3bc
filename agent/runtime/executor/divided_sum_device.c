/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sums of divided gradients between devices. Ranks send their parts of a bucket from device memory
 * to device memory. A kernel adds them in the order of the summation tree, so the bits are those of
 * the host's additions.
 */
#include <errno.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "agent/runtime/executor/divided_sum_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/plan/adders.h"

_Static_assert(ADDERS_DEVICE_NODES <= COMM_DEVICE_WALK_NODES &&
                   ADDERS_DEVICE_DEPTH <= COMM_DEVICE_WALK_DEPTH,
               "each library adds up a round");

/* A bucket at work. */
struct round {
    struct divided_sum *sum;
    struct comm *comm;
    struct backend *queue;
    struct divided_range range;
    float *bucket;
    int ranks;       /* 0 … ranks - 1 have a micro-batch in this round */
    float *received; /* [ranks][stride] the parts that this rank adds up */
    int64_t stride;
    struct fleet_error *err;
};

bool divided_sum_is_on_device(const struct divided_sum *sum, const struct comm *comm)
{
    return comm && comm->world > 1 && comm_has_device(comm) &&
           adders_fit_device(sum->world, sum->leaves);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* What piece `number` and the bucket have in common; false: nothing. */
static bool cut(const struct round *r, int number, struct divided_range *out)
{
    const struct adder_piece *piece = &r->sum->pieces[number];
    int64_t first = piece->first > r->range.first ? piece->first : r->range.first;
    int64_t end = piece->first + piece->count, last = r->range.first + r->range.count;

    end = end < last ? end : last;
    *out = (struct divided_range){first, end - first};
    return first < end;
}

static float *own_part(const struct round *r, struct divided_range range)
{
    return r->bucket + (range.first - r->range.first);
}

/* Parts of other adders go to them; those of this rank come from all ranks. */
static int exchange_parts(const struct round *r, double deadline_ms)
{
    struct divided_sum *sum = r->sum;
    struct comm_call call = {.operation = COMM_MESSAGES, .queue = r->queue};
    struct divided_range range;
    int64_t at = 0;

    sum->message_count = 0;
    for (int i = 0; i < sum->piece_count; i++) {
        int adder = sum->pieces[i].rank;
        if (!cut(r, i, &range))
            continue;
        if (adder != sum->rank && sum->rank < r->ranks)
            divided_sum_post(sum, adder, false, own_part(r, range), range.count);
        for (int p = 0; p < r->ranks && adder == sum->rank; p++)
            if (p != sum->rank)
                divided_sum_post(sum, p, true, r->received + p * r->stride + at, range.count);
        at += adder == sum->rank ? range.count : 0;
    }
    call.messages = sum->messages;
    call.message_count = sum->message_count;
    return comm_device_run(r->comm, &call, sum->is_captured, deadline_ms, r->err);
}

/* ---- additions ------------------------------------------------------------------------------- */

/* The sums so far and the leaves of the round, and how they are added. Each result is a part of
 * `walk`. */
struct order {
    const float *nodes[ADDERS_DEVICE_NODES];
    int walk[2 * ADDERS_DEVICE_NODES];
    int starts[ADDERS_DEVICE_DEPTH + 1]; /* of the results, and the end */
    int node_count, walk_count, depth;
};

static void push(struct order *o, const float *node)
{
    fleet_assert(o->node_count < ADDERS_DEVICE_NODES && o->depth < ADDERS_DEVICE_DEPTH);
    o->starts[o->depth++] = o->walk_count;
    o->walk[o->walk_count++] = o->node_count;
    o->nodes[o->node_count++] = node;
}

static void merge(struct order *o)
{
    o->walk[o->walk_count++] = -1;
    o->depth--;
}

/* `at`: elements of the bucket's own pieces before these. */
static void find_order(const struct round *r, int number, struct divided_range range, int64_t at,
                       struct order *out)
{
    const struct divided_sum *sum = r->sum;
    int live = __builtin_popcountll((unsigned long long)sum->done);

    out->node_count = out->walk_count = out->depth = 0;
    for (int i = 0; i < live; i++)
        push(out, divided_sum_place(sum, number, i, range.first));
    for (int p = 0; p < r->ranks; p++) {
        unsigned long long leaves = (unsigned long long)(sum->done + p + 1);
        push(out, p == sum->rank ? own_part(r, range) : r->received + p * r->stride + at);
        for (int merges = __builtin_ctzll(leaves); merges > 0; merges--)
            merge(out);
    }
    while (sum->done + r->ranks == sum->leaves && out->depth > 1)
        merge(out);
    out->starts[out->depth] = out->walk_count;
}

/* A result that reads sums of earlier rounds reads all of those behind its own place, so that no
 * later result reads what it writes. */
static int add_piece(const struct round *r, int number, struct divided_range range, int64_t at)
{
    struct order order;
    int rc = 0;

    find_order(r, number, range, at, &order);
    for (int i = 0; i < order.depth && rc == 0; i++) {
        float *to = divided_sum_place(r->sum, number, i, range.first);
        const struct comm_device_walk walk = {.nodes = order.nodes,
                                              .walk = order.walk + order.starts[i],
                                              .node_count = order.node_count,
                                              .walk_count = order.starts[i + 1] - order.starts[i],
                                              .to = to,
                                              .count = range.count};
        if (walk.walk_count > 1 || order.nodes[walk.walk[0]] != to)
            rc = comm_device_walk(r->comm, r->queue, &walk, r->err);
    }
    return rc;
}

static void clear_gaps(const struct round *r)
{
    int64_t last = r->range.first + r->range.count;

    for (int i = 0; i < r->sum->gap_count; i++) {
        int64_t first = r->sum->gaps[i].first, end = first + r->sum->gaps[i].count;
        first = first > r->range.first ? first : r->range.first;
        end = end < last ? end : last;
        if (first < end)
            r->queue->vtable->clear(r->queue, r->bucket + (first - r->range.first),
                                    (size_t)(end - first) * sizeof(float));
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

int divided_sum_add_on_device(struct divided_sum *sum, struct comm *comm, struct backend *backend,
                              struct divided_range range, float *bucket, double deadline_ms,
                              struct fleet_error *err)
{
    int64_t left = sum->leaves - sum->done, at = 0;
    struct round r = {.sum = sum,
                      .comm = comm,
                      .queue = backend,
                      .range = range,
                      .bucket = bucket,
                      .ranks = left < sum->world ? (int)left : sum->world,
                      .err = err};
    struct divided_range part;
    int rc;

    r.stride = adders_limit(sum->map, sum->space, range.first, range.first + range.count);
    r.received = comm_device_scratch(comm, adders_device_bytes(sum->world, r.stride), err);
    if (!r.received)
        return -ENOMEM;
    clear_gaps(&r);
    rc = exchange_parts(&r, deadline_ms);
    for (int i = 0; i < sum->piece_count && rc == 0; i++)
        if (sum->pieces[i].rank == sum->rank && cut(&r, i, &part)) {
            rc = add_piece(&r, i, part, at);
            at += part.count;
        }
    return rc;
}

int divided_sum_share_on_device(struct divided_sum *sum, struct comm *comm, struct backend *backend,
                                double deadline_ms, struct fleet_error *err)
{
    struct comm_call call = {.operation = COMM_MESSAGES, .queue = backend};

    sum->message_count = 0;
    for (int i = 0; i < sum->piece_count; i++)
        if (divided_sum_moves(sum, i))
            divided_sum_post_shares(sum, i, divided_sum_place(sum, i, 0, sum->pieces[i].first));
    call.messages = sum->messages;
    call.message_count = sum->message_count;
    return comm_device_run(comm, &call, sum->is_captured, deadline_ms, err);
}
