/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/runtime_traffic.h"

#include <math.h>

#include "libfleet/plan/runtime_hierarchy.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/tree.h"

int64_t runtime_part_first(int64_t count, int world, int part)
{
    int64_t aligned = (count + RUNTIME_EXCHANGE_ALIGN - 1) / RUNTIME_EXCHANGE_ALIGN;
    int64_t first = aligned * part / world * RUNTIME_EXCHANGE_ALIGN;

    return first < count ? first : count;
}

/* Elements of `count`, cut into chunks of `largest`, that are in this rank's parts. */
static int64_t own_elements(int64_t count, int64_t largest, const struct runtime_place *p)
{
    int64_t whole = count / largest, rest = count % largest;
    int64_t own = runtime_part_first(largest, p->ranks, p->place + 1) -
                  runtime_part_first(largest, p->ranks, p->place);
    int64_t own_rest = runtime_part_first(rest, p->ranks, p->place + 1) -
                       runtime_part_first(rest, p->ranks, p->place);

    return whole * own + own_rest;
}

/* The partial sums to the ranks that add a part, then the own part's sum to all. */
double runtime_tree_sum_sent(int64_t count, int64_t nodes, const struct runtime_place *p)
{
    int64_t own = own_elements(count, RUNTIME_EXCHANGE_PART * p->ranks, p);

    if (count <= RUNTIME_EXCHANGE_WHOLE)
        return (double)(nodes * count * (p->ranks - 1)) * sizeof(float);
    return (double)(nodes * (count - own) + own * (p->ranks - 1)) * sizeof(float);
}

static double tree_sum(int64_t count, const struct runtime_place *p)
{
    int block = runtime_hierarchy_block(p->block, p->ranks);
    struct runtime_hierarchy two_levels = {p->leaves, p->ranks, block, p->place};

    return block > 0 ? runtime_hierarchy_sent(&two_levels, count)
                     : runtime_tree_sum_sent(count,
                                             tree_slots_of(p->leaves, p->ranks, p->place).nodes, p);
}

/* To all, in fp16: the gradient of fp16_allreduce. */
static bool is_in_two_levels(const struct program_op *op, const struct runtime_place *p)
{
    return runtime_hierarchy_block(p->block, p->ranks) > 0 &&
           op->attributes.space == OP_SPACE_GRADIENTS && op->attributes.wire == OP_WIRE_FP16;
}

static double reduce(int64_t count, size_t size, bool is_for_root, bool is_root,
                     const struct runtime_place *p)
{
    int64_t chunk = RUNTIME_REDUCE_PART / (int64_t)size * p->ranks;
    int64_t own = own_elements(count, chunk, p), to = p->ranks - 1;

    if (is_for_root)
        to = is_root ? 0 : 1;
    if (count * (int64_t)size <= RUNTIME_REDUCE_WHOLE)
        return (double)(count * to) * (double)size;
    return (double)(count - own + own * to) * (double)size;
}

double runtime_broadcast_sent(double bytes, int ranks, int place)
{
    if (bytes <= (double)RUNTIME_BROADCAST_DIRECT || ranks <= 2)
        return place == 0 ? bytes * (ranks - 1) : 0;
    return place < ranks - 1 ? bytes : 0;
}

static double broadcast(double bytes, int root, const struct runtime_place *p)
{
    return runtime_broadcast_sent(bytes, p->ranks, (p->place - root + p->ranks) % p->ranks);
}

/* Parts of a range go by owner: each in its turn. */
static double by_owner(const struct program_op *op, int64_t part, size_t size,
                       const struct runtime_place *p)
{
    double sent = 0;

    for (int owner = 0; owner < p->ranks; owner++)
        sent += op->kind == OP_ALL_GATHER ? broadcast((double)part * (double)size, owner, p)
                                          : reduce(part, size, true, owner == p->place, p);
    return sent;
}

double runtime_sent(const struct program *program, const struct program_op *op,
                    const struct runtime_place *p)
{
    const struct op_attributes *a = &op->attributes;
    int64_t count = op_payload(program, op);
    size_t size = op_wire_size(program, op);
    double bytes = (double)count * (double)size;
    struct runtime_hierarchy two_levels = {p->leaves, p->ranks, p->block, p->place};

    if (p->ranks == 1)
        return 0;
    switch (op->kind) {
    case OP_TREE_SUM:
        return tree_sum(count, p);
    case OP_ALL_REDUCE:
        if (is_in_two_levels(op, p))
            return runtime_hierarchy_halves_sent(&two_levels, count);
        return reduce(count, size, false, false, p);
    case OP_REDUCE_TO:
        return reduce(count, size, true, a->root == p->place, p);
    case OP_BROADCAST:
        return broadcast(bytes, a->root, p);
    case OP_REDUCE_SCATTER:
    case OP_ALL_GATHER:
        if (a->space != OP_SPACE_NONE)
            return by_owner(op, count / p->ranks, sizeof(float), p);
        return bytes * (p->ranks - 1) / (op->kind == OP_ALL_GATHER ? 1 : p->ranks);
    case OP_ALL_TO_ALL:
        return bytes * (p->ranks - 1) / p->ranks;
    case OP_SEND:
        return bytes;
    default:
        return 0;
    }
}

static double rounds_of_parts(double size, double whole, double chunk)
{
    return size <= whole ? 1 : 2 * ceil(size / chunk);
}

double runtime_rounds(const struct program *program, const struct program_op *op, int ranks)
{
    double count = (double)op_payload(program, op);
    double bytes = count * (double)op_wire_size(program, op);
    double whole = (double)RUNTIME_REDUCE_WHOLE, chunk = (double)RUNTIME_REDUCE_PART * ranks;

    switch (op->kind) {
    case OP_TREE_SUM:
        return rounds_of_parts(count, (double)RUNTIME_EXCHANGE_WHOLE,
                               (double)RUNTIME_EXCHANGE_PART * ranks);
    case OP_ALL_REDUCE:
    case OP_REDUCE_SCATTER:
        return rounds_of_parts(bytes, whole, chunk);
    default:
        return 1;
    }
}
