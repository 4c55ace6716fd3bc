/* SPDX-License-Identifier: Apache-2.0 */

/* What a rank sends, where the formulas of plan_cost.h say it. */
#include <math.h>

#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/plan_cost_internal.h"
#include "libfleet/plan/plan_stages.h"
#include "libfleet/plan/program_traffic.h"
#include "libfleet/plan/tree.h"

/* Of one update: gradient_merge's batches too. */
static double micro_batches_of_update(const struct plan *plan)
{
    return (double)plan_cost_micro_batches(plan) * plan->program.merge_steps;
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

static void add(struct plan_traffic *traffic, struct plan_transfer transfer)
{
    program_traffic_add(traffic, &transfer);
}

static double ring(int ranks)
{
    return (double)(ranks - 1) / ranks;
}

/* The axes of the replicas that have more than one rank. */
static unsigned int replica_axes(const struct plan *plan)
{
    if (degree(plan, TOPOLOGY_SHARDING) == 1)
        return OP_GROUP_DATA;
    return degree(plan, TOPOLOGY_DATA) == 1 ? OP_GROUP_SHARDING : OP_GROUP_REPLICAS;
}

static void add_sharding(const struct plan *plan, double elements, struct plan_traffic *traffic)
{
    const struct strategy_sharding_config *g = &plan->selection.final.sharding_configs;
    int ranks = degree(plan, TOPOLOGY_SHARDING), groups = degree(plan, TOPOLOGY_DATA);
    double bytes = weight_bytes(plan) * elements;
    double width = is_applied(plan, UNIT_FP16_ALLREDUCE) ? fmin(1, 2 / weight_bytes(plan)) : 1;
    double segments = fmax(1, ceil(bytes / ((double)g->fuse_broadcast_MB * MEBI)));
    double gathers = g->stage >= 3 ? 2 * micro_batches_of_update(plan) : 1;

    add(traffic, (struct plan_transfer){.kind = OP_REDUCE,
                                        .what = TRANSFER_GRADIENTS_TO_OWNER,
                                        .over = OP_GROUP_SHARDING,
                                        .when = TRANSFER_AS_COMPLETE,
                                        .ranks = ranks,
                                        .calls = segments,
                                        .bytes = bytes * width * ring(ranks)});
    add(traffic, (struct plan_transfer){.kind = OP_ALL_REDUCE,
                                        .what = TRANSFER_OWNED_GRADIENTS,
                                        .over = OP_GROUP_DATA,
                                        .when = TRANSFER_BEHIND_REDUCTION,
                                        .ranks = groups,
                                        .calls = segments,
                                        .bytes = 2 * bytes * width / ranks * ring(groups)});
    add(traffic, (struct plan_transfer){.kind = OP_BROADCAST,
                                        .what = TRANSFER_PARAMETERS_OF_OWNER,
                                        .over = OP_GROUP_SHARDING,
                                        .when = g->stage >= 3 ? TRANSFER_EACH_SEGMENT
                                                              : TRANSFER_BEFORE_FORWARD,
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

    add(traffic, (struct plan_transfer){.kind = OP_ALL_REDUCE,
                                        .what = adapts ? TRANSFER_PARAMETERS_ADAPTIVE
                                                       : TRANSFER_PARAMETERS_OF_STEPS,
                                        .over = replica_axes(plan),
                                        .when = TRANSFER_AVERAGE,
                                        .ranks = ranks,
                                        .calls = 1.0 / every,
                                        .bytes = 2 * bytes * ring(ranks) / every});
}

static void add_sparse(const struct plan *plan, struct plan_traffic *traffic)
{
    int ranks = plan_replicas(plan);
    int64_t total;
    int nodes = tree_slots_max(plan->leaves, ranks, &total).nodes;

    add(traffic,
        (struct plan_transfer){.kind = OP_ALL_GATHER,
                               .what = TRANSFER_LARGEST_GRADIENTS,
                               .over = OP_GROUP_DATA,
                               .when = TRANSFER_AFTER_RAMP_UP,
                               .ranks = ranks,
                               .calls = 1,
                               .bytes = plan_cost_message_bytes(plan, false) * (ranks - 1)});
    add(traffic, (struct plan_transfer){.kind = OP_ALL_REDUCE,
                                        .what = TRANSFER_SMALL_GRADIENTS,
                                        .over = OP_GROUP_DATA,
                                        .when = TRANSFER_ONCE,
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

    add(traffic, (struct plan_transfer){
                     .kind = is_half ? OP_ALL_REDUCE : OP_TREE_SUM,
                     .what = is_half ? TRANSFER_GRADIENTS_FP16 : TRANSFER_GRADIENTS,
                     .over = replica_axes(plan),
                     .when = is_half ? TRANSFER_BUCKETS : TRANSFER_BUCKETS_OF_TREE,
                     .ranks = ranks,
                     .calls = count_buckets(&plan->program),
                     .rounds = 2 * count_buckets(&plan->program),
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
        add(traffic, (struct plan_transfer){.kind = OP_SEND,
                                            .what = TRANSFER_ACTIVATIONS,
                                            .over = OP_GROUP_PIPELINE,
                                            .when = TRANSFER_BEHIND_FORWARD,
                                            .ranks = stages,
                                            .calls = runs,
                                            .in_micro_batch = true,
                                            .bytes = (double)part->sent_bytes * runs});
    if (stage > 0)
        add(traffic, (struct plan_transfer){.kind = OP_SEND,
                                            .what = TRANSFER_ACTIVATION_GRADIENTS,
                                            .over = OP_GROUP_PIPELINE,
                                            .when = TRANSFER_BEHIND_BACKWARD,
                                            .ranks = stages,
                                            .calls = runs,
                                            .in_micro_batch = true,
                                            .bytes = (double)part[-1].sent_bytes * runs});
    if (plan->parts.shared_elements > 0 && (stage == 0 || stage + 1 == stages))
        add(traffic, (struct plan_transfer){.kind = OP_ALL_REDUCE,
                                            .what = TRANSFER_SHARED_GRADIENTS,
                                            .over = OP_GROUP_PIPELINE,
                                            .when = TRANSFER_ONCE,
                                            .ranks = 2,
                                            .calls = 1,
                                            .bytes = weight_bytes(plan) *
                                                     (double)plan->parts.shared_elements});
}

/* Nothing is known of the model. */
static void add_unknown_layers(const struct plan *plan, struct plan_traffic *traffic)
{
    add(traffic, (struct plan_transfer){.kind = OP_ALL_REDUCE,
                                        .what = TRANSFER_LAYER_OUTPUTS,
                                        .over = OP_GROUP_MODEL,
                                        .when = TRANSFER_EACH_LAYER,
                                        .ranks = degree(plan, TOPOLOGY_MODEL),
                                        .in_micro_batch = true});
}

/* What the ranks that share tensors or sequences send in the layers of the stage, and in front of
 * the first and behind the last one. */
static void add_cells(const struct plan *plan, int stage, struct plan_traffic *traffic)
{
    const struct plan_stage *part = &plan->parts.stages[stage];
    double layers = (double)(part->end_layer - part->first_layer);
    double runs = micro_batches_of_update(plan);
    double share[STAGES_PLACES] = {
        [STAGES_FRONT] = stage == 0,
        [STAGES_LAYERS] = plan->parts.layers > 0 ? layers / (double)plan->parts.layers : 1,
        [STAGES_END] = stage + 1 == plan->parts.division.stages};

    for (size_t i = 0; i < plan->cell_traffic.count; i++) {
        const struct plan_cell_transfer *item = &plan->cell_traffic.items[i];
        struct plan_transfer transfer = item->transfer;

        for (int place = 0; place < STAGES_PLACES; place++) {
            transfer.calls += runs * share[place] * item->calls[place];
            transfer.rounds += runs * share[place] * item->rounds[place];
            transfer.bytes += runs * share[place] * item->bytes[place];
        }
        add(traffic, transfer);
    }
}

/* Ranks with different gradients must agree whether there is an inf, and on the norm. */
static void add_agreement(const struct plan *plan, struct plan_traffic *traffic)
{
    int parts = degree(plan, TOPOLOGY_SHARDING) * degree(plan, TOPOLOGY_PIPELINE) *
                degree(plan, TOPOLOGY_MODEL);

    if (is_divided(plan))
        add(traffic, (struct plan_transfer){.kind = OP_ALL_REDUCE,
                                            .what = TRANSFER_OVERFLOW_AND_NORM,
                                            .over = OP_GROUP_WORLD & ~OP_GROUP_DATA,
                                            .when = TRANSFER_BEFORE_UPDATE,
                                            .ranks = parts,
                                            .calls = 1,
                                            .bytes = 2 * 8 * ring(parts)});
}

void plan_cost_traffic(const struct plan *plan, int stage, int replica, struct plan_traffic *out)
{
    double elements = (double)plan->parts.stages[stage].elements;

    *out = (struct plan_traffic){.count = 0};
    if (plan->has_program && plan->formula_units == 0) {
        struct plan view = plan_stages_view(plan, stage);
        program_traffic(&view, replica, out);
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
    if (plan->has_program)
        add_cells(plan, stage, out);
    else
        add_unknown_layers(plan, out);
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
