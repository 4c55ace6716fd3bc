/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/exchange.h"

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/trainer.h"
#include "agent/runtime/update.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/runtime_memory.h"

static bool is_half(const struct program *program)
{
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].section == PROGRAM_SECTION_EXCHANGE)
            return program->ops[i].attributes.wire == OP_WIRE_FP16;
    return false;
}

size_t exchange_workspace(const struct trainer *trainer)
{
    if (trainer->generation.world > 1 && is_half(&trainer->job.plan.program))
        return (size_t)trainer->job.bucket_elements * sizeof(uint16_t);
    return tree_sum_workspace(trainer->generation.range.leaves, trainer->generation.world,
                              trainer->job.bucket_elements);
}

/* The partial sums of all ranks complete the tree: the bits do not depend on the ranks. */
static int sum_in_tree(struct trainer *trainer, const struct leaf_range *range, int count,
                       const struct program_op *op, struct fleet_error *err)
{
    struct backend *memory = trainer->state.backend;
    size_t bytes = (size_t)op->attributes.flat_count * sizeof(float);
    float *slots[TREE_NODES_MAX];
    int rc;

    for (int n = 0; n < count; n++)
        slots[n] = backend_map(memory, trainer->state.slots[n] + op->attributes.flat_first, bytes,
                               BACKEND_CHANGE);
    rc = comm_tree_sum(trainer->net.comm, range->leaves, slots, op->attributes.flat_count,
                       trainer->net.workspace, trainer_deadline_ms(trainer), err);
    for (int n = 0; n < count; n++)
        backend_unmap(memory, trainer->state.slots[n] + op->attributes.flat_first, bytes,
                      BACKEND_CHANGE, slots[n]);
    return rc;
}

/*
 * A rank's part, divided as the mean over all leaves is, in fp16. The sum is multiplied back, since
 * the update divides (spec/strategy.md 15: the factor 1/N stands before the cast).
 */
static int sum_in_half(struct trainer *trainer, const struct leaf_range *range, int count,
                       const struct program_op *op, struct fleet_error *err)
{
    struct backend *backend = trainer->device.backend;
    int64_t elements = op->attributes.flat_count;
    float *sum = trainer->state.slots[0] + op->attributes.flat_first;
    float leaves = (float)update_averaged(trainer);
    uint16_t *halves = trainer->net.workspace;
    int rc;

    if (range->first == range->end) /* more ranks than leaves */
        backend->vtable->clear(backend, sum, (size_t)elements * sizeof(*sum));
    for (int n = 1; n < count; n++)
        backend->vtable->add(backend, sum, trainer->state.slots[n] + op->attributes.flat_first,
                             elements);
    backend->vtable->narrow(backend, halves, sum, 1.0f / leaves, elements);
    rc = comm_all_reduce(trainer->net.comm, halves, elements, COMM_FP16, COMM_SUM,
                         trainer_deadline_ms(trainer), err);
    if (rc == 0)
        backend->vtable->widen(backend, sum, halves, leaves, elements);
    return rc;
}

int exchange_gradient(struct trainer *trainer, const struct leaf_range *range,
                      struct fleet_error *err)
{
    const struct program *program = &trainer->job.plan.program;
    struct tree_node nodes[TREE_NODES_MAX];
    int node_count = tree_nodes(range->leaves, range->first, range->end, nodes);
    int used = node_count > 0 ? node_count : 1, rc = 0;

    if (trainer->generation.world == 1) /* slot 0 holds the sum already */
        return 0;
    for (int i = 0; i < program->op_count && rc == 0; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section == PROGRAM_SECTION_EXCHANGE)
            rc = (op->attributes.wire == OP_WIRE_FP16 ? sum_in_half : sum_in_tree)(trainer, range,
                                                                                   used, op, err);
    }
    return rc < 0 ? fleet_error_wrap(err, "sum the gradients") : 0;
}
