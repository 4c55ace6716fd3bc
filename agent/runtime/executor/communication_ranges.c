/* SPDX-License-Identifier: Apache-2.0 */

/* Operators over a range of a flat space: the sum of the gradient, and ranges of other values. */
#include <errno.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "agent/runtime/executor/communication_internal.h"
#include "agent/runtime/executor/divided_sum.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/plan/runtime_memory.h"

static int64_t first_of(const struct communication_work *x)
{
    return x->op->attributes.flat_first;
}

/* Complete the partial sums of this rank in the operator's range. */
void communication_fold(const struct communication_work *x)
{
    const struct communication *c = x->c;

    for (int64_t i = 0; i < c->fold_count; i++)
        x->backend->vtable->add(x->backend, c->slots[c->folds[i].into] + first_of(x),
                                c->slots[c->folds[i].slot] + first_of(x),
                                x->op->attributes.flat_count);
}

bool communication_is_sum_of_halves(const struct program_op *op)
{
    const struct op_attributes *a = &op->attributes;

    return op->kind == OP_ALL_REDUCE && a->space == OP_SPACE_GRADIENTS && a->wire == OP_WIRE_FP16;
}

bool communication_has_two_levels(const struct communication *c, const struct program_op *op)
{
    bool is_sum = op->kind == OP_TREE_SUM || communication_is_sum_of_halves(op);

    return c->hierarchy.block && op->attributes.group == OP_GROUP_REPLICAS && is_sum;
}

/* The device's library has its own way between machines. */
static bool is_in_two_levels(const struct communication_work *x)
{
    return !x->on_device && communication_has_two_levels(x->c, x->op);
}

/* The partial sums of all ranks complete the tree: the bits do not depend on the ranks. */
static int sum_in_tree(const struct communication_work *x)
{
    const struct communication *c = x->c;
    int count = c->nodes > 0 ? c->nodes : 1; /* the sum arrives in the first */
    size_t bytes = (size_t)x->op->attributes.flat_count * sizeof(float);
    float *slots[TREE_NODES_MAX];
    const struct comm_call call = {.operation = COMM_TREE_SUM,
                                   .type = COMM_FP32,
                                   .count = x->op->attributes.flat_count,
                                   .leaves = c->leaves,
                                   .slots = slots,
                                   .workspace = c->workspace,
                                   .queue = communication_queue(x)};
    int rc;

    for (int n = 0; n < count; n++)
        slots[n] = communication_view(x, c->slots[n] + first_of(x), bytes, BACKEND_CHANGE);
    if (is_in_two_levels(x))
        rc = hierarchy_tree_sum(&(struct hierarchy_sum){.hierarchy = &c->hierarchy,
                                                        .leaves = c->leaves,
                                                        .slots = slots,
                                                        .nodes = c->nodes,
                                                        .count = x->op->attributes.flat_count,
                                                        .workspace = c->workspace,
                                                        .deadline_ms = communication_deadline(x)},
                                x->err);
    else
        rc = communication_make(x, &call);
    for (int n = 0; n < count; n++)
        communication_end_view(x, c->slots[n] + first_of(x), bytes, BACKEND_CHANGE, slots[n]);
    return rc;
}

/* All partial sums of this rank in slot 0. */
float *communication_add_nodes(const struct communication_work *x)
{
    const struct communication *c = x->c;
    int64_t count = x->op->attributes.flat_count;
    float *sum = c->slots[0] + first_of(x);

    if (c->nodes == 0)
        x->backend->vtable->clear(x->backend, sum, (size_t)count * sizeof(*sum));
    for (int n = 1; n < c->nodes; n++)
        x->backend->vtable->add(x->backend, sum, c->slots[n] + first_of(x), count);
    return sum;
}

struct divided_range communication_range(const struct program_op *op)
{
    return (struct divided_range){op->attributes.flat_first, op->attributes.flat_count};
}

/* Each rank has the sums of some elements only. */
int communication_run_divided(const struct communication_work *x, float *bucket)
{
    struct divided_sum *sum = x->c->divided;

    if (!sum) /* a rank that only looks at its own micro-batch */
        return 0;
    sum->is_captured = x->is_captured;
    if (x->op->section == PROGRAM_SECTION_MICRO_BATCH)
        return divided_sum_add(sum, x->comm, x->backend, communication_range(x->op), bucket,
                               x->c->workspace, communication_deadline(x), x->err);
    return divided_sum_share(sum, x->comm, x->backend, communication_deadline(x), x->err);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* The halves lie behind what the all-reduce receives. */
static int sum_halves_on_device(const struct communication_work *x, float *range, float divisor)
{
    int64_t count = x->op->attributes.flat_count;
    struct comm_device_cast narrow = {.from = range,
                                      .to_type = COMM_FP16,
                                      .from_type = COMM_FP32,
                                      .scale = 1.0f / divisor,
                                      .count = count};
    struct comm_device_cast widen = {.to = range,
                                     .to_type = COMM_FP32,
                                     .from_type = COMM_FP16,
                                     .scale = divisor,
                                     .count = count};
    int world = x->comm->world, rc;
    char *memory = comm_device_scratch(x->comm, runtime_halves_bytes(count, world), x->err);

    if (!memory)
        return -ENOMEM;
    narrow.to = memory + runtime_halves_at(count, world);
    widen.from = narrow.to;
    rc = comm_device_cast(x->comm, x->backend, &narrow, x->err);
    if (rc == 0)
        rc = communication_call(x, narrow.to, narrow.to, count, COMM_FP16);
    return rc < 0 ? rc : comm_device_cast(x->comm, x->backend, &widen, x->err);
}

/*
 * A rank's part, divided as the mean over all leaves is, in fp16. The sum is multiplied back, since
 * the update divides: the factor 1/N comes before the cast.
 */
static int run_range_in_halves(const struct communication_work *x, float *range, float divisor)
{
    const struct backend_vtable *v = x->backend->vtable;
    int64_t count = x->op->attributes.flat_count;
    uint16_t *halves = x->c->workspace;
    bool is_result = x->op->kind != OP_REDUCE_TO || x->comm->rank == x->op->attributes.root;
    int rc;

    if (x->on_device)
        return sum_halves_on_device(x, range, divisor);
    v->narrow(x->backend, halves, range, 1.0f / divisor, count);
    if (is_in_two_levels(x))
        rc = hierarchy_sum_halves(
            &(struct hierarchy_halves){.hierarchy = &x->c->hierarchy,
                                       .memory = halves,
                                       .count = count,
                                       .deadline_ms = communication_deadline(x)},
            x->err);
    else
        rc = communication_call(x, halves, halves, count, COMM_FP16);
    if (rc == 0 && is_result)
        v->widen(x->backend, range, halves, divisor, count);
    return rc;
}

/* In the library's own order: fewer bytes, and other bits for another number of ranks. */
static int sum_in_any_order(const struct communication_work *x)
{
    float *sum = communication_add_nodes(x);
    const struct comm_call call = {.operation = COMM_ALL_REDUCE,
                                   .type = COMM_FP32,
                                   .reduction = COMM_SUM,
                                   .count = x->op->attributes.flat_count,
                                   .send = sum,
                                   .receive = sum,
                                   .queue = x->backend,
                                   .any_order = true};

    return communication_make(x, &call);
}

int communication_run_gradients(const struct communication_work *x)
{
    if (x->op->kind == OP_TREE_SUM)
        return x->on_device && x->c->any_order ? sum_in_any_order(x) : sum_in_tree(x);
    if (x->op->attributes.wire == OP_WIRE_FP16)
        return run_range_in_halves(x, communication_add_nodes(x), (float)x->c->averaged);
    return communication_run_range(x, communication_add_nodes(x));
}

/* Each rank's own part: all to all of them, or reduced to each in turn. */
static int run_owned(const struct communication_work *x, float *seen)
{
    int rc = 0;

    fleet_assert(x->c->owned != NULL);
    for (int place = 0; place < x->comm->world && rc == 0; place++) {
        struct comm_call call = {.operation = COMM_BROADCAST,
                                 .type = COMM_FP32,
                                 .reduction = communication_reduction(x->op),
                                 .root = place,
                                 .queue = communication_queue(x),
                                 .any_order = x->c->any_order};
        int64_t first;
        float *part;

        x->c->owned(x->c->context, x->op, place, &first, &call.count);
        part = seen + (first - first_of(x));
        call.receive = part;
        if (x->op->kind == OP_REDUCE_SCATTER) {
            call.operation = COMM_REDUCE;
            call.send = part;
        }
        if (call.count > 0)
            rc = communication_make(x, &call);
    }
    return rc;
}

int communication_run_range(const struct communication_work *x, float *range)
{
    bool is_by_owner = x->op->kind == OP_ALL_GATHER || x->op->kind == OP_REDUCE_SCATTER;
    size_t bytes = (size_t)x->op->attributes.flat_count * sizeof(float);
    float *seen;
    int rc;

    if (x->op->attributes.wire == OP_WIRE_FP16 && !is_by_owner)
        return run_range_in_halves(x, range, 1.0f);
    seen = communication_view(x, range, bytes, BACKEND_CHANGE);
    rc = is_by_owner ? run_owned(x, seen)
                     : communication_call(x, seen, seen, x->op->attributes.flat_count, COMM_FP32);
    communication_end_view(x, range, bytes, BACKEND_CHANGE, seen);
    return rc;
}
