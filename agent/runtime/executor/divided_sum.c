/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/divided_sum.h"

#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/add.h"
#include "agent/runtime/comm/comm.h"
#include "agent/runtime/executor/divided_sum_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/plan/adders.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/plan/runtime_memory.h"

#define BLOCK RUNTIME_EXCHANGE_BLOCK
#define DEPTH RUNTIME_EXCHANGE_DEPTH

/* ---- preparing ------------------------------------------------------------------------------- */

static int compare_ranges(const void *a, const void *b)
{
    const struct divided_range *x = a, *y = b;

    return x->first < y->first ? -1 : x->first > y->first;
}

static void find_gaps(struct divided_sum *sum, const struct program *program)
{
    FLEET_AUTO_FREE struct divided_range *gradients =
        calloc((size_t)program->var_count + 1, sizeof(*gradients));
    size_t count = 0;
    int64_t at = 0;

    sum->gaps = calloc((size_t)program->var_count + 2, sizeof(*sum->gaps));
    fleet_assert(gradients && sum->gaps);
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_GRADIENT)
            gradients[count++] = (struct divided_range){program->vars[v].flat_offset,
                                                        program_var_elements(&program->vars[v])};
    qsort(gradients, count, sizeof(*gradients), compare_ranges);
    gradients[count].first = program->flat_count;
    for (size_t i = 0; i <= count; i++) {
        if (gradients[i].first > at)
            sum->gaps[sum->gap_count++] = (struct divided_range){at, gradients[i].first - at};
        at = gradients[i].first + gradients[i].count;
    }
}

void divided_sum_init(struct divided_sum *out, const struct program *program,
                      const struct ownership *map, int rank, float *const *slots)
{
    *out = (struct divided_sum){.map = map,
                                .space = program->flat_count,
                                .rank = rank,
                                .world = map->replicas,
                                .slots = slots};
    out->piece_count = adders_list(map, program->flat_count, &out->pieces);
    out->held = calloc((size_t)out->piece_count + 1, sizeof(*out->held));
    out->holders = calloc((size_t)(out->piece_count * map->replicas) + 1, sizeof(*out->holders));
    out->hosts = calloc((size_t)out->piece_count + 1, sizeof(*out->hosts));
    fleet_assert(out->held && out->holders && out->hosts);
    for (int i = 0; i < out->piece_count; i++) {
        const struct ownership_line *line = &map->lines[out->pieces[i].line];
        out->held[i] = ownership_place(map, OWNERSHIP_GRADIENTS, out->pieces[i].first, rank);
        for (int r = 0; r < map->replicas; r++)
            out->holders[i * map->replicas + r] = ownership_holds(map, line, r);
    }
    find_gaps(out, program);
}

void divided_sum_release(struct divided_sum *sum)
{
    free(sum->pieces);
    free(sum->held);
    free(sum->holders);
    free(sum->hosts);
    free(sum->gaps);
    free(sum->messages);
    *sum = (struct divided_sum){0};
}

void divided_sum_begin(struct divided_sum *sum, int64_t leaves)
{
    sum->leaves = leaves;
    sum->done = 0;
}

void divided_sum_next_round(struct divided_sum *sum)
{
    sum->done += sum->world;
}

void divided_sum_set_round(struct divided_sum *sum, int64_t round)
{
    sum->done = round * sum->world;
}

bool divided_sum_is_full(const struct divided_sum *sum)
{
    return sum->leaves - sum->done >= sum->world;
}

size_t divided_sum_workspace(struct divided_sum *sum, struct divided_range range)
{
    int64_t limit = adders_limit(sum->map, sum->space, range.first, range.first + range.count);
    int64_t part = runtime_divided_part(limit);

    sum->stride = part > sum->stride ? part : sum->stride;
    return runtime_divided_bytes(sum->world, limit);
}

/* ---- messages -------------------------------------------------------------------------------- */

void divided_sum_post(struct divided_sum *sum, int peer, bool is_receive, float *data,
                      int64_t count)
{
    if (sum->message_count == sum->message_capacity) {
        sum->message_capacity = sum->message_capacity ? 2 * sum->message_capacity : 64;
        sum->messages =
            realloc(sum->messages, (size_t)sum->message_capacity * sizeof(*sum->messages));
        fleet_assert(sum->messages != NULL);
    }
    sum->messages[sum->message_count++] = (struct comm_message){
        .peer = peer, .is_receive = is_receive, .data = data, .count = count, .type = COMM_FP32};
}

static int send_all(struct divided_sum *sum, struct comm *comm, double deadline_ms,
                    struct fleet_error *err)
{
    int count = sum->message_count;

    sum->message_count = 0;
    return sum->world > 1 ? comm_messages(comm, sum->messages, count, deadline_ms, err) : 0;
}

/* ---- one part of a bucket -------------------------------------------------------------------- */

/* A bucket at work. */
struct round {
    struct divided_sum *sum;
    struct backend *backend;
    struct divided_range range;
    float *bucket;    /* host memory */
    int64_t part;     /* elements of each adder's share of the range: [part, part + PART) */
    int ranks;        /* 0 … ranks - 1 have a micro-batch in this round */
    float *received;  /* [world][stride] the parts that this rank adds up */
    int64_t stride;   /* of `received` */
    float *temporary; /* [DEPTH][BLOCK] */
};

/* Cut piece `number` to the range and the part at work. *at: how many elements of the adder's part
 * are before it. False: nothing is left. */
static bool cut(const struct round *r, int number, int64_t *before, struct divided_range *out,
                int64_t *at)
{
    const struct adder_piece *piece = &r->sum->pieces[number];
    int64_t first = piece->first > r->range.first ? piece->first : r->range.first;
    int64_t end = piece->first + piece->count, skipped, limit;

    if (end > r->range.first + r->range.count)
        end = r->range.first + r->range.count;
    if (first >= end)
        return false;
    skipped = before[piece->rank]; /* elements of this adder in the range, before this piece */
    before[piece->rank] += end - first;
    limit = r->part + RUNTIME_EXCHANGE_PART - skipped;
    *at = skipped > r->part ? skipped - r->part : 0;
    if (first + limit < end)
        end = first + limit;
    if (skipped < r->part)
        first += r->part - skipped;
    *out = (struct divided_range){first, end - first};
    return first < end;
}

static void post(struct round *r, const struct adder_piece *piece, struct divided_range range,
                 int64_t at)
{
    int own = r->sum->rank;

    if (piece->rank != own) {
        if (own < r->ranks)
            divided_sum_post(r->sum, piece->rank, false, r->bucket + (range.first - r->range.first),
                             range.count);
        return;
    }
    for (int p = 0; p < r->ranks; p++)
        if (p != own)
            divided_sum_post(r->sum, p, true, r->received + p * r->stride + at, range.count);
}

/* ---- additions ------------------------------------------------------------------------------- */

/* The sums so far, from left to right, then what is pushed onto them. */
struct stack {
    const float *items[DEPTH];
    int depth;
};

/* The two last ones become one. */
static void merge(const struct round *r, struct stack *stack, int64_t count)
{
    int place = stack->depth - 2;
    const float *left = stack->items[place], *right = stack->items[place + 1];
    float *to = r->temporary + place * BLOCK;

    comm_add(left, right, count, to);
    stack->items[place] = to;
    stack->depth--;
}

/* Push the round's leaves, each followed by the merges that complete a subtree. */
static void push_leaves(const struct round *r, struct stack *stack, const float *own, int64_t at,
                        int64_t count)
{
    for (int p = 0; p < r->ranks; p++) {
        uint64_t leaves = (uint64_t)(r->sum->done + p + 1);
        fleet_assert(stack->depth < DEPTH);
        stack->items[stack->depth++] = p == r->sum->rank ? own : r->received + p * r->stride + at;
        for (int merges = __builtin_ctzll(leaves); merges > 0; merges--)
            merge(r, stack, count);
    }
    while (r->sum->done + r->ranks == r->sum->leaves && stack->depth > 1)
        merge(r, stack, count);
}

/* Elements of the range that this rank adds up; slots[i] has their sums, host memory. */
static void add_range(const struct round *r, struct divided_range range, int64_t at,
                      float *const *slots)
{
    int live = __builtin_popcountll((unsigned long long)r->sum->done);
    const float *own = r->bucket + (range.first - r->range.first);

    for (int64_t from = 0; from < range.count; from += BLOCK) {
        int64_t count = range.count - from < BLOCK ? range.count - from : BLOCK;
        struct stack stack = {.depth = live};
        for (int i = 0; i < live; i++)
            stack.items[i] = slots[i] + from;
        push_leaves(r, &stack, own + from, at + from, count);
        for (int i = 0; i < stack.depth; i++)
            if (stack.items[i] != slots[i] + from)
                memcpy(slots[i] + from, stack.items[i], (size_t)count * sizeof(float));
    }
}

float *divided_sum_place(const struct divided_sum *sum, int number, int slot, int64_t first)
{
    const struct adder_piece *piece = &sum->pieces[number];
    int64_t place = slot == 0 ? sum->held[number] : piece->at;

    return sum->slots[slot] + place + (first - piece->first);
}

static void add_piece(const struct round *r, int number, struct divided_range range, int64_t at)
{
    int64_t done = r->sum->done + r->ranks;
    int before = __builtin_popcountll((unsigned long long)r->sum->done);
    int after = done == r->sum->leaves ? 1 : __builtin_popcountll((unsigned long long)done);
    int used = before > after ? before : after;
    size_t bytes = (size_t)range.count * sizeof(float);
    float *slots[DEPTH];

    for (int i = 0; i < used; i++)
        slots[i] = backend_map(r->backend, divided_sum_place(r->sum, number, i, range.first), bytes,
                               BACKEND_CHANGE);
    add_range(r, range, at, slots);
    for (int i = 0; i < used; i++)
        backend_unmap(r->backend, divided_sum_place(r->sum, number, i, range.first), bytes,
                      BACKEND_CHANGE, slots[i]);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* One part of each adder's share; false: no adder has as much. */
static bool take_part(struct round *r, struct comm *comm, int64_t *before, double deadline_ms,
                      int *rc, struct fleet_error *err)
{
    const struct divided_sum *sum = r->sum;
    struct divided_range range;
    bool is_there = false;
    int64_t at;

    memset(before, 0, (size_t)sum->world * sizeof(*before));
    for (int i = 0; i < sum->piece_count; i++)
        if (cut(r, i, before, &range, &at)) {
            post(r, &sum->pieces[i], range, at);
            is_there = true;
        }
    *rc = is_there ? send_all(r->sum, comm, deadline_ms, err) : 0;
    memset(before, 0, (size_t)sum->world * sizeof(*before));
    for (int i = 0; i < sum->piece_count && *rc == 0; i++)
        if (cut(r, i, before, &range, &at) && sum->pieces[i].rank == sum->rank)
            add_piece(r, i, range, at);
    return is_there;
}

static void clear_gaps(const struct divided_sum *sum, struct divided_range range, float *bucket)
{
    for (int i = 0; i < sum->gap_count; i++) {
        int64_t first = sum->gaps[i].first, end = first + sum->gaps[i].count;
        first = first > range.first ? first : range.first;
        end = end < range.first + range.count ? end : range.first + range.count;
        if (first < end)
            memset(bucket + (first - range.first), 0, (size_t)(end - first) * sizeof(*bucket));
    }
}

int divided_sum_add(struct divided_sum *sum, struct comm *comm, struct backend *backend,
                    struct divided_range range, float *bucket, void *workspace, double deadline_ms,
                    struct fleet_error *err)
{
    int64_t left = sum->leaves - sum->done;
    size_t bytes = (size_t)range.count * sizeof(float);
    int64_t *before = workspace;
    struct round r = {.sum = sum, .backend = backend, .range = range};
    int rc = 0;

    if (left <= 0)
        return 0;
    if (divided_sum_is_on_device(sum, comm))
        return divided_sum_add_on_device(sum, comm, backend, range, bucket, deadline_ms, err);
    r.ranks = left < sum->world ? (int)left : sum->world;
    r.stride = sum->stride;
    r.temporary = (float *)(before + sum->world);
    r.received = r.temporary + DEPTH * BLOCK;
    r.bucket = backend_map(backend, bucket, bytes, BACKEND_CHANGE);
    clear_gaps(sum, range, r.bucket);
    while (rc == 0 && take_part(&r, comm, before, deadline_ms, &rc, err))
        r.part += RUNTIME_EXCHANGE_PART;
    backend_unmap(backend, bucket, bytes, BACKEND_CHANGE, r.bucket);
    return rc;
}

/* A whole piece in the first slot. */
static float *sum_of(const struct divided_sum *sum, int number)
{
    return divided_sum_place(sum, number, 0, sum->pieces[number].first);
}

bool divided_sum_moves(const struct divided_sum *sum, int number)
{
    const bool *holders = sum->holders + number * sum->world;
    int count = 0;

    for (int r = 0; r < sum->world; r++)
        count += holders[r];
    return holders[sum->rank] && count > 1;
}

void divided_sum_post_shares(struct divided_sum *sum, int number, float *data)
{
    const struct adder_piece *piece = &sum->pieces[number];

    if (piece->rank != sum->rank)
        divided_sum_post(sum, piece->rank, true, data, piece->count);
    for (int r = 0; r < sum->world && piece->rank == sum->rank; r++)
        if (r != sum->rank && sum->holders[number * sum->world + r])
            divided_sum_post(sum, r, false, data, piece->count);
}

static enum backend_access access_to(const struct divided_sum *sum, int number)
{
    return sum->pieces[number].rank == sum->rank ? BACKEND_READ : BACKEND_WRITE;
}

int divided_sum_share(struct divided_sum *sum, struct comm *comm, struct backend *backend,
                      double deadline_ms, struct fleet_error *err)
{
    int rc;

    if (divided_sum_is_on_device(sum, comm))
        return divided_sum_share_on_device(sum, comm, backend, deadline_ms, err);
    for (int i = 0; i < sum->piece_count; i++) {
        const struct adder_piece *piece = &sum->pieces[i];
        if (!divided_sum_moves(sum, i))
            continue;
        sum->hosts[i] = backend_map(backend, sum_of(sum, i), (size_t)piece->count * sizeof(float),
                                    access_to(sum, i));
        divided_sum_post_shares(sum, i, sum->hosts[i]);
    }
    rc = send_all(sum, comm, deadline_ms, err);
    for (int i = 0; i < sum->piece_count; i++)
        if (divided_sum_moves(sum, i))
            backend_unmap(backend, sum_of(sum, i), (size_t)sum->pieces[i].count * sizeof(float),
                          access_to(sum, i), sum->hosts[i]);
    return rc;
}
