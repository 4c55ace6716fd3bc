/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/plan_cost.h"

#include <math.h>
#include <string.h>

#include "libfleet/plan/adders.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/plan_connections.h"
#include "libfleet/plan/plan_cost_internal.h"
#include "libfleet/plan/plan_stages.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/plan/runtime_hierarchy.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/tree.h"
#include "libfleet/program/dgc.h"
#include "libfleet/strategy/pipeline_schedule.h"

/* ---- sizes ----------------------------------------------------------------------------------- */

int plan_replicas(const struct plan *plan)
{
    return degree(plan, TOPOLOGY_DATA) * degree(plan, TOPOLOGY_SHARDING);
}

int plan_replica_of(const struct plan *plan, int rank)
{
    int at[TOPOLOGY_AXES];

    topology_coordinates(&plan->topology, rank, at);
    return at[TOPOLOGY_DATA] * degree(plan, TOPOLOGY_SHARDING) + at[TOPOLOGY_SHARDING];
}

int64_t plan_cost_micro_batches(const struct plan *plan)
{
    int64_t replicas = plan_replicas(plan);

    return (plan->micro_batches + replicas - 1) / replicas;
}

static double optimizer_bytes(const struct plan *plan)
{
    return 4.0 * plan->program.state_count + (weight_bytes(plan) == 2 ? 4 : 0);
}

/* ---- dgc ------------------------------------------------------------------------------------- */

/* Bytes of a rank's message; with the last sparsity, or with the one that sends most. */
double plan_cost_message_bytes(const struct plan *plan, bool is_largest)
{
    const struct strategy_dgc_config *config = &plan->selection.final.dgc_configs;
    double ratio = is_largest ? dgc_ratio_max(config) : dgc_ratio(config, INT64_MAX / 2);

    return 4 * (double)dgc_words(&plan->program, ratio, PROGRAM_NONE);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

int64_t plan_cost_bucket_elements(const struct program *program)
{
    int64_t largest = 0;

    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].attributes.space == OP_SPACE_GRADIENTS &&
            program->ops[i].attributes.flat_count > largest)
            largest = program->ops[i].attributes.flat_count;
    return largest;
}

/* Of the bucket that needs most. */
static size_t divided_exchange_bytes(const struct plan *plan)
{
    const struct program *program = &plan->program;
    int64_t most = 0;

    for (int i = 0; i < program->op_count; i++) {
        const struct op_attributes *a = &program->ops[i].attributes;
        int64_t added;
        if (program->ops[i].kind != OP_TREE_SUM ||
            program->ops[i].section != PROGRAM_SECTION_MICRO_BATCH)
            continue;
        added = adders_limit(&plan->ownership, program->flat_count, a->flat_first,
                             a->flat_first + a->flat_count);
        most = added > most ? added : most;
    }
    return runtime_divided_bytes(plan_replicas(plan), most);
}

/* A bucket in fp16; with blocks of ranks also room to add in. */
static size_t halves_bytes(const struct plan *plan, int block)
{
    int64_t count = plan_cost_bucket_elements(&plan->program);

    if (plan_replicas(plan) == 1)
        return 0;
    return block > 0 ? runtime_hierarchy_halves_bytes(block, count)
                     : sizeof(uint16_t) * (size_t)count;
}

static size_t exchange_bytes(const struct plan *plan)
{
    int replicas = plan_replicas(plan);
    const struct strategy *s = &plan->selection.final;
    struct runtime_hierarchy two_levels = {.leaves = plan->leaves, .ranks = replicas};
    int64_t nodes_total;
    size_t messages = 0;

    if (s->use_hierarchical_allreduce)
        two_levels.block =
            runtime_hierarchy_block(s->hierarchical_allreduce_inter_nranks, replicas);
    if (is_applied(plan, UNIT_FP16_ALLREDUCE) && !is_divided(plan))
        return halves_bytes(plan, two_levels.block);
    if (is_local(plan))
        return 0; /* averages are made in place */
    if (plan->has_program && adders_are_used(&plan->program))
        return divided_exchange_bytes(plan);
    (void)tree_slots_max(plan->leaves, replicas, &nodes_total);
    if (is_applied(plan, UNIT_DGC) && replicas > 1)
        messages = (size_t)plan_cost_message_bytes(plan, true) * (size_t)replicas;
    if (two_levels.block > 0)
        return messages +
               runtime_hierarchy_bytes(&two_levels, plan_cost_bucket_elements(&plan->program));
    return messages +
           runtime_exchange_bytes(nodes_total, replicas, plan_cost_bucket_elements(&plan->program));
}

/* Of a rank that holds `copies` micro-batches at one time. */
static void bytes_of_program(const struct plan *plan, size_t copies, size_t *bytes)
{
    const size_t *memory = plan->memory.bytes;

    bytes[PLAN_BYTES_PARAMETERS] = memory[MEMORY_PARAMETERS];
    bytes[PLAN_BYTES_GRADIENTS] =
        memory[MEMORY_GRADIENTS] + (size_t)(plan->slots - 1) * plan->memory.further_slot_bytes;
    bytes[PLAN_BYTES_OPTIMIZER] = memory[MEMORY_STATE0] + memory[MEMORY_STATE1];
    bytes[PLAN_BYTES_BUFFERS] =
        memory[MEMORY_BUFFERS] + runtime_leaf_bytes(plan->leaves, plan->program.buffer_count);
    bytes[PLAN_BYTES_INPUTS] = (copies + RUNTIME_PREFETCH_PLACES) * memory[MEMORY_INPUTS];
    bytes[PLAN_BYTES_ACTIVATIONS] = copies * memory[MEMORY_ARENA];
    bytes[PLAN_BYTES_SCRATCH] =
        memory[MEMORY_SCRATCH] + memory[MEMORY_SCALARS] + runtime_kernel_bytes(plan->threads);
    bytes[PLAN_BYTES_EXCHANGE] = exchange_bytes(plan) + plan->connection_bytes;
    bytes[PLAN_BYTES_HOST] = copies * memory[MEMORY_HOST];
}

static void set_formula(size_t *bytes, bool *by_formula, enum plan_bytes kind, double value)
{
    bytes[kind] = (size_t)ceil(value);
    by_formula[kind] = true;
}

/* What sharding, stages and tensor parallelism leave to a rank. */
static void divide_bytes(const struct plan *plan, int stage, int shard, size_t *bytes,
                         bool *by_formula)
{
    const struct strategy_sharding_config *g = &plan->selection.final.sharding_configs;
    double elements = (double)plan->parts.stages[stage].elements, weight = weight_bytes(plan);
    double own = shard == PLAN_COST_EQUAL_SHARDS
                     ? elements / plan->parts.division.shards
                     : (double)plan_parts_shard_elements(&plan->parts, stage, shard);
    bool is_sharded = is_sharded_by_formula(plan);

    set_formula(bytes, by_formula, PLAN_BYTES_PARAMETERS,
                weight * (is_sharded && g->stage >= 3 ? own : elements));
    set_formula(bytes, by_formula, PLAN_BYTES_GRADIENTS,
                weight * plan->slots * (is_sharded && g->stage >= 2 ? own : elements));
    set_formula(bytes, by_formula, PLAN_BYTES_OPTIMIZER,
                optimizer_bytes(plan) * (is_sharded ? own : elements));
    if (is_sharded && g->optimize_offload) {
        set_formula(bytes, by_formula, PLAN_BYTES_HOST,
                    (double)(bytes[PLAN_BYTES_HOST] + bytes[PLAN_BYTES_OPTIMIZER]));
        bytes[PLAN_BYTES_OPTIMIZER] = 0;
    }
    if (is_sharded && g->stage >= 3) /* one segment of others' parameters at a time */
        set_formula(bytes, by_formula, PLAN_BYTES_EXCHANGE,
                    fmin((double)g->fuse_broadcast_MB * MEBI, weight * elements));
}

static void stage_activations(const struct plan *plan, int stage, size_t *bytes, bool *by_formula)
{
    const struct plan_stage *part = &plan->parts.stages[stage];
    const struct pipeline_shape *shape = &plan->schedule;
    double share = (double)(part->end_layer - part->first_layer) / (double)plan->parts.layers;
    double live = (double)pipeline_peak(shape, stage) / shape->chunks;

    set_formula(bytes, by_formula, PLAN_BYTES_ACTIVATIONS,
                (double)bytes[PLAN_BYTES_ACTIVATIONS] * share * live);
}

/* The states that a rank of the shard holds, as owner and as buddy. */
static size_t held_states(const struct plan *plan, int shard)
{
    const struct program *program = &plan->program;
    int64_t elements = 0;

    for (int slot = 0; slot < program->state_count; slot++)
        elements += ownership_elements(&plan->ownership, slot ? OWNERSHIP_STATE1 : OWNERSHIP_STATE0,
                                       program->flat_count, shard);
    return (size_t)elements * sizeof(float);
}

/* The sums of gradients that a rank of the shard has, as owner, as buddy and while it adds. */
static size_t held_sums(const struct plan *plan, int shard)
{
    int64_t whole = plan->program.flat_count;
    int64_t held = ownership_elements(&plan->ownership, OWNERSHIP_GRADIENTS, whole, shard);
    int64_t added = adders_elements(&plan->ownership, whole, shard, 0, whole);

    return sizeof(float) * (size_t)(held + (plan->slots - 1) * added);
}

/* The parameters that a rank of the shard holds, as owner and as buddy. */
static size_t held_parameters(const struct plan *plan, int shard)
{
    return sizeof(float) * (size_t)ownership_elements(&plan->ownership, OWNERSHIP_PARAMETERS,
                                                      plan->program.flat_count, shard);
}

void plan_cost_bytes(const struct plan *plan, int stage, int shard, size_t bytes[PLAN_BYTES_COUNT],
                     bool by_formula[PLAN_BYTES_COUNT])
{
    struct plan view = plan_stages_view(plan, stage);

    memset(by_formula, 0, PLAN_BYTES_COUNT * sizeof(*by_formula));
    bytes_of_program(&view, (size_t)plan_stages_copies(plan, stage), bytes);
    if (view.ownership.shards > 1 && shard != PLAN_COST_EQUAL_SHARDS)
        bytes[PLAN_BYTES_OPTIMIZER] = held_states(&view, shard);
    if (view.ownership.shards > 1 && shard != PLAN_COST_EQUAL_SHARDS &&
        adders_are_used(&view.program))
        bytes[PLAN_BYTES_GRADIENTS] = held_sums(&view, shard);
    if (view.ownership.shards > 1 && shard != PLAN_COST_EQUAL_SHARDS &&
        gathers_are_used(&view.program))
        bytes[PLAN_BYTES_PARAMETERS] = held_parameters(&view, shard);
    if (is_divided(plan))
        divide_bytes(plan, stage, shard, bytes, by_formula);
    if (is_by_formula(plan, UNIT_PIPELINE))
        stage_activations(plan, stage, bytes, by_formula);
    if (plan->program.offloads_states) {
        bytes[PLAN_BYTES_HOST] += bytes[PLAN_BYTES_OPTIMIZER];
        bytes[PLAN_BYTES_OPTIMIZER] = 0;
    }
}

/* ---- the plan -------------------------------------------------------------------------------- */

static double micro_batch_flops(const struct program *program)
{
    double flops = 0;

    for (int i = 0; i < program->op_count; i++) {
        struct op_cost cost;
        if (program->ops[i].section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        op_cost(program, &program->ops[i], &cost);
        flops += cost.flops;
    }
    return flops;
}

static size_t sum_bytes(const size_t *bytes)
{
    size_t sum = 0;

    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        sum += bytes[kind];
    return sum;
}

void plan_cost(struct plan *plan)
{
    int64_t nodes_total;

    plan->slots = tree_slots_max(plan->leaves, plan_replicas(plan), &nodes_total).slots;
    if (plan->has_program && adders_are_used(&plan->program))
        plan->slots = adders_slots(plan->leaves, plan_replicas(plan));
    plan->connection_bytes = plan_connections_bytes(plan);
    if (plan->has_program && plan->formula_units != 0)
        program_traffic_of_cells(plan, &plan->cell_traffic);
    plan->flops = micro_batch_flops(&plan->program);
    for (int stage = 0; stage < plan->parts.division.stages; stage++) {
        size_t bytes[PLAN_BYTES_COUNT];
        bool by_formula[PLAN_BYTES_COUNT];
        struct plan_traffic traffic;

        if (plan->has_program)
            plan_cost_bytes(plan, stage, PLAN_COST_EQUAL_SHARDS, bytes, by_formula);
        if (plan->has_program && (stage == 0 || sum_bytes(bytes) > sum_bytes(plan->bytes))) {
            memcpy(plan->bytes, bytes, sizeof(bytes));
            memcpy(plan->by_formula, by_formula, sizeof(by_formula));
        }
        plan_cost_traffic(plan, stage, PROGRAM_TRAFFIC_HEAVIEST, &traffic);
        if (stage == 0 || plan_cost_sent(&traffic) > plan_cost_sent(&plan->traffic))
            plan->traffic = traffic;
    }
    plan->sent_bytes = plan_cost_sent(&plan->traffic);
}
