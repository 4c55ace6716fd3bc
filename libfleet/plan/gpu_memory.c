/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/gpu_memory.h"

#include "libfleet/base/error.h"
#include "libfleet/plan/adders.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/gpu_program.h"
#include "libfleet/plan/gpu_scratch.h"
#include "libfleet/plan/memory_plan.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/plan/runtime_hierarchy.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/tree.h"
#include "libfleet/program/ops/operand.h"

/* Axes along which the ranks of a replica lie. */
#define CELLS (OP_GROUP_MODEL | OP_GROUP_SEQUENCE | OP_GROUP_PIPELINE)

/* Kernels share one piece of working memory. */
static size_t scratch_bytes(const struct program *program)
{
    size_t most = 0, tables = GPU_SCRATCH_TABLES;

    for (int i = 0; i < program->op_count; i++) {
        size_t bytes = gpu_scratch_bytes(program, &program->ops[i]);
        most = bytes > most ? bytes : most;
        if (program->ops[i].kind == OP_GRAD_NORM)
            tables = GPU_SCRATCH_TABLES + (size_t)program->var_count * GPU_SCRATCH_ROW;
    }
    return most + tables + GPU_SCRATCH_PRODUCTS;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static int group_size(const struct plan *plan, unsigned int axes)
{
    int size = 1;

    for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
        if (axes & (1u << axis)) /* enum op_group */
            size *= plan->topology.degree[axis];
    return size;
}

/* What a rank gets of the micro-batches of all ranks. */
static size_t divided_bytes(const struct plan *plan, const struct program_op *op, int ranks)
{
    const struct op_attributes *a = &op->attributes;

    if (op->section != PROGRAM_SECTION_MICRO_BATCH || !adders_fit_device(ranks, plan->leaves))
        return 0;
    return adders_device_bytes(ranks, adders_limit(&plan->ownership, plan->program.flat_count,
                                                   a->flat_first, a->flat_first + a->flat_count));
}

static size_t received_by(const struct plan *plan, const struct program_op *op)
{
    const struct program_var *x = operand_in(&plan->program, op, 0);
    int ranks = group_size(plan, op->attributes.group);
    int64_t nodes, count = x ? program_var_elements(x) : op->attributes.flat_count;
    size_t size = x ? program_type_size(x->type) : sizeof(float);

    if (ranks == 1)
        return 0;
    if (gathers_is(op))
        return gathers_halves(op);
    switch (op->kind) {
    case OP_TREE_SUM:
        if (adders_are_used(&plan->program))
            return divided_bytes(plan, op, ranks);
        (void)tree_slots_max(plan->leaves, ranks, &nodes);
        return runtime_received_bytes(op->attributes.flat_count, ranks, nodes, sizeof(float));
    case OP_ALL_REDUCE:
        if (op->attributes.wire == OP_WIRE_FP16)
            return x ? 0 : runtime_halves_bytes(count, ranks); /* operands: by the host */
        return runtime_received_bytes(count, ranks, ranks, size);
    case OP_REDUCE_SCATTER:
    case OP_REDUCE_TO:
        return (size_t)count * size;
    default:
        return 0;
    }
}

/* Each communicator has memory for the operation that receives most. A group of all ranks has the
 * world's. */
static size_t exchange_bytes(const struct plan *plan)
{
    const struct program *program = &plan->program;
    size_t most[OP_GROUP_WORLD + 1] = {0}, sum = 0;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        unsigned int axes = gathers_is(op) ? OP_GROUP_REPLICAS : op->attributes.group;
        size_t bytes;
        if (!op_definition(op->kind)->is_communication)
            continue;
        bytes = received_by(plan, op);
        axes = group_size(plan, axes) == plan->world ? OP_GROUP_WORLD : axes;
        most[axes] = bytes > most[axes] ? bytes : most[axes];
    }
    for (unsigned int axes = 0; axes <= OP_GROUP_WORLD; axes++)
        sum += most[axes];
    return sum;
}

/* Without NCCL, each communicator has a window: of the world, of groups, of blocks of replicas. A
 * rank uses the groups of its replica and of its replicas always. */
static size_t window_bytes(const struct plan *plan)
{
    const struct strategy *s = &plan->selection.final;
    int replicas = group_size(plan, OP_GROUP_REPLICAS), block = 0, ranks = plan->world;
    bool is_used[OP_GROUP_WORLD + 1] = {[OP_GROUP_REPLICAS] = true, [CELLS] = true};

    for (int i = 0; i < plan->program.op_count; i++) {
        const struct program_op *op = &plan->program.ops[i];
        if (op->kind != OP_ALL_GATHER || !op->attributes.owned) /* by the replicas' */
            is_used[op->attributes.group] = true;
    }
    for (unsigned int axes = 1; axes <= OP_GROUP_WORLD; axes++) {
        int size = group_size(plan, axes);
        ranks += is_used[axes] && size > 1 && size < plan->world ? size : 0;
    }
    if (s->use_hierarchical_allreduce && replicas > 1)
        block = runtime_hierarchy_block(s->hierarchical_allreduce_inter_nranks, replicas);
    if (block > 0)
        ranks += block + replicas / block;
    return plan->shares_gpus && plan->world > 1 ? (size_t)ranks * RUNTIME_WINDOW_BYTES : 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* A GPU runs a program that was rewritten for it, with another arena and other working memory. */
static void use_gpu_program(const struct plan *plan, struct gpu_memory *out)
{
    struct memory_plan memory;
    struct fleet_error ignored;
    struct program program;

    program_copy(&plan->program, &program);
    if (gpu_program_apply(&program) &&
        memory_plan_build(&program, &plan->ownership, ownership_heaviest(&plan->ownership), &memory,
                          &ignored) == 0) {
        out->bytes[PLAN_BYTES_ACTIVATIONS] -= plan->memory.bytes[MEMORY_ARENA];
        out->bytes[PLAN_BYTES_ACTIVATIONS] += memory.bytes[MEMORY_ARENA];
        out->bytes[PLAN_BYTES_SCRATCH] += scratch_bytes(&program) - scratch_bytes(&plan->program);
        memory_plan_release(&memory);
    }
    program_release(&program);
}

void gpu_memory_plan(const struct plan *plan, struct gpu_memory *out)
{
    const size_t *memory = plan->memory.bytes;
    size_t ahead = RUNTIME_PREFETCH_PLACES * memory[MEMORY_INPUTS];
    size_t leaves = runtime_leaf_bytes(plan->leaves, plan->program.buffer_count);

    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        out->bytes[kind] = plan->bytes[kind];
    out->bytes[PLAN_BYTES_INPUTS] -= ahead;
    out->bytes[PLAN_BYTES_BUFFERS] = memory[MEMORY_BUFFERS];
    out->bytes[PLAN_BYTES_SCRATCH] = memory[MEMORY_SCALARS] + scratch_bytes(&plan->program);
    out->bytes[PLAN_BYTES_EXCHANGE] = exchange_bytes(plan) + window_bytes(plan);
    out->bytes[PLAN_BYTES_HOST] = 0;
    if (!plan->by_formula[PLAN_BYTES_ACTIVATIONS])
        use_gpu_program(plan, out);
    out->host = ahead + leaves + plan->bytes[PLAN_BYTES_EXCHANGE] + plan->bytes[PLAN_BYTES_HOST];
    if (plan->snapshot_bytes > 0)
        out->host += plan->bytes[PLAN_BYTES_PARAMETERS] + memory[MEMORY_STATE0] +
                     memory[MEMORY_STATE1] + memory[MEMORY_BUFFERS];
}

size_t gpu_memory_total(const struct gpu_memory *memory)
{
    size_t sum = 0;

    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        sum += memory->bytes[kind];
    return sum;
}
