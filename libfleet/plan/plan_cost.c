/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/plan_cost.h"

#include <math.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/plan/runtime_memory.h"
#include "libfleet/plan/tree.h"
#include "libfleet/program/dgc.h"
#include "libfleet/strategy/pipeline_schedule.h"

#define MEBI 1048576.0

/* ---- sizes ----------------------------------------------------------------------------------- */

static int degree(const struct plan *plan, enum topology_axis axis)
{
    return plan->topology.degree[axis];
}

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

static bool is_applied(const struct plan *plan, enum unit unit)
{
    return select_is_applied(&plan->selection, unit);
}

/* In effect, and nothing in the program stands for it. */
static bool is_by_formula(const struct plan *plan, enum unit unit)
{
    return (plan->formula_units & UNIT_BIT(unit)) != 0;
}

/* In effect, and not run: it divides more than states, or other axes have no pass. */
static bool is_sharded_by_formula(const struct plan *plan)
{
    return is_applied(plan, UNIT_SHARDING) && degree(plan, TOPOLOGY_SHARDING) > 1 &&
           plan_shards(plan) == 1;
}

static bool is_divided(const struct plan *plan)
{
    return is_sharded_by_formula(plan) || is_by_formula(plan, UNIT_PIPELINE) ||
           is_by_formula(plan, UNIT_TENSOR_PARALLEL);
}

static bool is_local(const struct plan *plan)
{
    return is_applied(plan, UNIT_LOCALSGD) || is_applied(plan, UNIT_ADAPTIVE_LOCALSGD);
}

int64_t plan_cost_micro_batches(const struct plan *plan)
{
    int64_t replicas = plan_replicas(plan);

    return (plan->micro_batches + replicas - 1) / replicas;
}

/* Of one update: gradient_merge's batches too. */
static double micro_batches_of_update(const struct plan *plan)
{
    return (double)plan_cost_micro_batches(plan) * plan->program.merge_steps;
}

/* Bytes of a weight, a gradient and the optimizer's state of one element, by the formulas. */
static double weight_bytes(const struct plan *plan)
{
    return plan->is_16_bit && is_sharded_by_formula(plan) ? 2 : 4;
}

static double optimizer_bytes(const struct plan *plan)
{
    return 4.0 * plan->program.state_count + (weight_bytes(plan) == 2 ? 4 : 0);
}

/* ---- dgc ------------------------------------------------------------------------------------- */

/* Bytes of a rank's message; with the last sparsity, or with the one that sends most. */
static double message_bytes(const struct plan *plan, bool is_largest)
{
    const struct strategy_dgc_config *config = &plan->selection.final.dgc_configs;
    double ratio = is_largest ? dgc_ratio_max(config) : dgc_ratio(config, INT64_MAX / 2);

    return 4 * (double)dgc_words(&plan->program, ratio, PROGRAM_NONE);
}

/* Bytes of gradients that are summed in every update. */
static double dense_bytes(const struct plan *plan)
{
    double elements = 0;

    for (int i = 0; i < plan->program.op_count; i++) {
        const struct op_attributes *a = &plan->program.ops[i].attributes;
        if (plan->program.ops[i].section == PROGRAM_SECTION_EXCHANGE &&
            a->space == OP_SPACE_GRADIENTS && a->phase == OP_PHASE_ANY)
            elements += (double)a->flat_count;
    }
    return 4 * elements;
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

static size_t exchange_bytes(const struct plan *plan)
{
    int replicas = plan_replicas(plan);
    int64_t nodes_total;
    size_t messages = 0;

    if (is_applied(plan, UNIT_FP16_ALLREDUCE) && !is_divided(plan))
        return replicas > 1 ? 2 * (size_t)plan_cost_bucket_elements(&plan->program) : 0;
    if (is_local(plan))
        return 0; /* averages are made in place */
    (void)tree_slots_max(plan->leaves, replicas, &nodes_total);
    if (is_applied(plan, UNIT_DGC) && replicas > 1)
        messages = (size_t)message_bytes(plan, true) * (size_t)replicas;
    return messages +
           runtime_exchange_bytes(nodes_total, replicas, plan_cost_bucket_elements(&plan->program));
}

static void bytes_of_program(const struct plan *plan, size_t *bytes)
{
    const size_t *memory = plan->memory.bytes;

    bytes[PLAN_BYTES_PARAMETERS] = memory[MEMORY_PARAMETERS];
    bytes[PLAN_BYTES_GRADIENTS] = (size_t)plan->slots * memory[MEMORY_GRADIENTS];
    bytes[PLAN_BYTES_OPTIMIZER] = memory[MEMORY_STATE0] + memory[MEMORY_STATE1];
    bytes[PLAN_BYTES_BUFFERS] =
        memory[MEMORY_BUFFERS] + runtime_leaf_bytes(plan->leaves, plan->program.buffer_count);
    bytes[PLAN_BYTES_INPUTS] = (1 + RUNTIME_PREFETCH_PLACES) * memory[MEMORY_INPUTS];
    bytes[PLAN_BYTES_ACTIVATIONS] = memory[MEMORY_ARENA];
    bytes[PLAN_BYTES_SCRATCH] =
        memory[MEMORY_SCRATCH] + memory[MEMORY_SCALARS] + runtime_kernel_bytes(plan->threads);
    bytes[PLAN_BYTES_EXCHANGE] = exchange_bytes(plan);
    bytes[PLAN_BYTES_HOST] = memory[MEMORY_HOST];
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
    struct pipeline_shape shape = {.stages = plan->parts.division.stages,
                                   .micro_batches =
                                       (int)fmin((double)plan_cost_micro_batches(plan), 1 << 20),
                                   .chunks = 1,
                                   .all_forward = pipeline_is_all_forward(&plan->selection.final)};
    double share = (double)(part->end_layer - part->first_layer) / (double)plan->parts.layers;
    int left = shape.stages - stage;
    int live = shape.all_forward || shape.micro_batches < left ? shape.micro_batches : left;

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

void plan_cost_bytes(const struct plan *plan, int stage, int shard, size_t bytes[PLAN_BYTES_COUNT],
                     bool by_formula[PLAN_BYTES_COUNT])
{
    memset(by_formula, 0, PLAN_BYTES_COUNT * sizeof(*by_formula));
    bytes_of_program(plan, bytes);
    if (plan->ownership.shards > 1 && shard != PLAN_COST_EQUAL_SHARDS)
        bytes[PLAN_BYTES_OPTIMIZER] = held_states(plan, shard);
    if (is_divided(plan))
        divide_bytes(plan, stage, shard, bytes, by_formula);
    if (is_by_formula(plan, UNIT_PIPELINE))
        stage_activations(plan, stage, bytes, by_formula);
}

/* ---- traffic --------------------------------------------------------------------------------- */

static void add(struct plan_traffic *traffic, struct plan_transfer transfer)
{
    program_traffic_add(traffic, &transfer);
}

static double ring(int ranks)
{
    return (double)(ranks - 1) / ranks;
}

static const char *replicas_name(const struct plan *plan)
{
    if (degree(plan, TOPOLOGY_SHARDING) == 1)
        return "data";
    return degree(plan, TOPOLOGY_DATA) == 1 ? "sharding" : "data and sharding";
}

static void add_sharding(const struct plan *plan, double elements, struct plan_traffic *traffic)
{
    const struct strategy_sharding_config *g = &plan->selection.final.sharding_configs;
    int ranks = degree(plan, TOPOLOGY_SHARDING), groups = degree(plan, TOPOLOGY_DATA);
    double bytes = weight_bytes(plan) * elements;
    double width = is_applied(plan, UNIT_FP16_ALLREDUCE) ? fmin(1, 2 / weight_bytes(plan)) : 1;
    double segments = fmax(1, ceil(bytes / ((double)g->fuse_broadcast_MB * MEBI)));
    double gathers = g->stage >= 3 ? 2 * micro_batches_of_update(plan) : 1;

    add(traffic, (struct plan_transfer){.kind = "reduce",
                                        .what = "gradients, to the owner",
                                        .over = "sharding",
                                        .when = "once an update, as gradients are complete",
                                        .ranks = ranks,
                                        .calls = segments,
                                        .bytes = bytes * width * ring(ranks)});
    add(traffic, (struct plan_transfer){.kind = "all_reduce",
                                        .what = "owned gradients",
                                        .over = "data",
                                        .when = "once an update, behind the reduction",
                                        .ranks = groups,
                                        .calls = segments,
                                        .bytes = 2 * bytes * width / ranks * ring(groups)});
    add(traffic, (struct plan_transfer){
                     .kind = "broadcast",
                     .what = "parameters, from the owner",
                     .over = "sharding",
                     .when = g->stage >= 3 ? "before each segment, forward and backward, of every "
                                             "micro-batch"
                                           : "once an update, before the forward pass",
                     .ranks = ranks,
                     .calls = segments * gathers,
                     .in_micro_batch = g->stage >= 3,
                     .bytes = bytes * ring(ranks) * gathers});
}

static void add_averaging(const struct plan *plan, double elements, struct plan_traffic *traffic)
{
    const struct strategy *s = &plan->selection.final;
    bool adapts = is_applied(plan, UNIT_ADAPTIVE_LOCALSGD);
    int every = adapts ? s->adaptive_localsgd_configs.init_k_steps : s->localsgd_configs.k_steps;
    int ranks = plan_replicas(plan);
    double bytes = is_divided(plan) ? 4 * elements : (double)plan->memory.bytes[MEMORY_GRADIENTS];

    add(traffic,
        (struct plan_transfer){.kind = "all_reduce",
                               .what = adapts ? "parameters, a share of an interval that adapts"
                                              : "parameters, a share of k_steps updates",
                               .over = replicas_name(plan),
                               .when = "every k_steps updates, behind the local update",
                               .ranks = ranks,
                               .calls = 1.0 / every,
                               .bytes = 2 * bytes * ring(ranks) / every});
}

static void add_sparse(const struct plan *plan, struct plan_traffic *traffic)
{
    int ranks = plan_replicas(plan);
    int64_t total;
    int nodes = tree_slots_max(plan->leaves, ranks, &total).nodes;

    add(traffic, (struct plan_transfer){.kind = "all_gather",
                                        .what = "the largest gradient elements",
                                        .over = "data",
                                        .when = "once an update, from rampup_begin_step on",
                                        .ranks = ranks,
                                        .calls = 1,
                                        .bytes = message_bytes(plan, false) * (ranks - 1)});
    add(traffic, (struct plan_transfer){.kind = "all_reduce",
                                        .what = "gradients of small tensors",
                                        .over = "data",
                                        .when = "once an update",
                                        .ranks = ranks,
                                        .calls = 1,
                                        .bytes = dense_bytes(plan) * ring(ranks) * (nodes + 1)});
}

static double count_buckets(const struct program *program)
{
    double count = 0;

    for (int i = 0; i < program->op_count; i++)
        count += program->ops[i].attributes.space == OP_SPACE_GRADIENTS;
    return fmax(1, count);
}

/* Every node's share goes to each other rank once, then each sum's share does. */
static void add_all_reduce(const struct plan *plan, double elements, struct plan_traffic *traffic)
{
    int ranks = plan_replicas(plan);
    bool is_half = is_applied(plan, UNIT_FP16_ALLREDUCE);
    int64_t total;
    int nodes = tree_slots_max(plan->leaves, ranks, &total).nodes;

    add(traffic,
        (struct plan_transfer){
            .kind = is_half ? "all_reduce" : "tree_sum",
            .what = is_half ? "gradients in fp16" : "gradients",
            .over = replicas_name(plan),
            .when = is_half ? "once an update, bucket by bucket"
                            : "once an update, bucket by bucket, partial sums of the fixed tree",
            .ranks = ranks,
            .calls = count_buckets(&plan->program),
            .bytes = (is_half ? 2 * 2 : 4 * (nodes + 1)) * elements * ring(ranks)});
}

static void add_stages(const struct plan *plan, int stage, struct plan_traffic *traffic)
{
    int stages = degree(plan, TOPOLOGY_PIPELINE);
    const struct plan_stage *part = &plan->parts.stages[stage];
    double runs = micro_batches_of_update(plan);

    if (stages == 1)
        return;
    if (stage + 1 < stages)
        add(traffic, (struct plan_transfer){.kind = "send",
                                            .what = "activations, to the next stage",
                                            .over = "pipeline",
                                            .when = "behind the forward pass of a micro-batch",
                                            .ranks = stages,
                                            .calls = runs,
                                            .in_micro_batch = true,
                                            .bytes = (double)part->sent_bytes * runs});
    if (stage > 0)
        add(traffic, (struct plan_transfer){.kind = "send",
                                            .what = "gradients of activations, to the stage before",
                                            .over = "pipeline",
                                            .when = "behind the backward pass of a micro-batch",
                                            .ranks = stages,
                                            .calls = runs,
                                            .in_micro_batch = true,
                                            .bytes = (double)part[-1].sent_bytes * runs});
    if (plan->parts.shared_elements > 0 && (stage == 0 || stage + 1 == stages))
        add(traffic, (struct plan_transfer){.kind = "all_reduce",
                                            .what = "gradients of parameters on two stages",
                                            .over = "pipeline",
                                            .when = "once an update",
                                            .ranks = 2,
                                            .calls = 1,
                                            .bytes = weight_bytes(plan) *
                                                     (double)plan->parts.shared_elements});
}

/* Twice forward and twice backward a layer, the layer's output. */
static void add_layers(const struct plan *plan, int stage, struct plan_traffic *traffic)
{
    int ranks = degree(plan, TOPOLOGY_MODEL);
    const struct plan_stage *part = &plan->parts.stages[stage];
    double layers = (double)(part->end_layer - part->first_layer);
    double bytes = (double)plan->layer_output_bytes;

    add(traffic, (struct plan_transfer){.kind = "all_reduce",
                                        .what = "outputs of divided layers and their gradients",
                                        .over = "model",
                                        .when = "twice forward and twice backward in each layer of "
                                                "every micro-batch",
                                        .ranks = ranks,
                                        .calls = 4 * layers * micro_batches_of_update(plan),
                                        .in_micro_batch = true,
                                        .bytes = 4 * layers * 2 * ring(ranks) * bytes *
                                                 micro_batches_of_update(plan)});
}

/* Ranks with different gradients must agree whether there is an inf, and on the norm. */
static void add_agreement(const struct plan *plan, struct plan_traffic *traffic)
{
    int parts = degree(plan, TOPOLOGY_SHARDING) * degree(plan, TOPOLOGY_PIPELINE) *
                degree(plan, TOPOLOGY_MODEL);

    if (is_divided(plan))
        add(traffic, (struct plan_transfer){.kind = "all_reduce",
                                            .what = "overflow flag and squared norm",
                                            .over = "sharding, pipeline and model",
                                            .when = "once an update, before it",
                                            .ranks = parts,
                                            .calls = 1,
                                            .bytes = 2 * 8 * ring(parts)});
}

void plan_cost_traffic(const struct plan *plan, int stage, int replica, struct plan_traffic *out)
{
    double elements = (double)plan->parts.stages[stage].elements;

    *out = (struct plan_traffic){.count = 0};
    if (plan->has_program && plan->formula_units == 0) {
        program_traffic(plan, replica, out);
        return;
    }
    if (is_sharded_by_formula(plan))
        add_sharding(plan, elements, out);
    else if (is_local(plan))
        add_averaging(plan, elements, out);
    else if (is_applied(plan, UNIT_DGC))
        add_sparse(plan, out);
    else
        add_all_reduce(plan, elements, out);
    add_stages(plan, stage, out);
    add_layers(plan, stage, out);
    add_agreement(plan, out);
    for (size_t i = 0; i < out->count && !plan->has_program; i++)
        out->items[i].bytes = NAN;
}

double plan_cost_sent(const struct plan_traffic *traffic)
{
    double sent = 0;

    for (size_t i = 0; i < traffic->count; i++)
        if (isfinite(traffic->items[i].bytes))
            sent += traffic->items[i].bytes;
    return sent;
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
