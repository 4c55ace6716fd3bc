/* SPDX-License-Identifier: Apache-2.0 */

/* A plan as JSON: for the status, for `fleetjob plan`, for one rank. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/gpu_memory.h"
#include "libfleet/plan/plan.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/tree.h"
#include "libfleet/strategy/pipeline_schedule.h"

const char *plan_bytes_name(enum plan_bytes kind)
{
    static const char *const names[] = {"parameters", "gradients", "optimizer",
                                        "buffers",    "inputs",    "activations",
                                        "scratch",    "exchange",  "host"};

    fleet_assert((size_t)kind < FLEET_COUNT(names));
    return names[kind];
}

static void add_names(cJSON *root, const char *key, const struct select_names *names)
{
    cJSON *list = fleet_json_set_list(root, key);

    for (size_t i = 0; i < names->count; i++)
        fleet_json_add_string(list, names->items[i]);
}

static void add_notes(cJSON *root, const char *key, const struct select_notes *notes)
{
    cJSON *list = fleet_json_set_list(root, key);

    for (size_t i = 0; i < notes->count; i++) {
        cJSON *note = fleet_json_new_object();
        fleet_json_set_string(note, "setting", notes->items[i].knob);
        fleet_json_set_string(note, "because", notes->items[i].because);
        fleet_json_add(list, note);
    }
}

/* What a status holds; `number` may be unknown. */
static void add_number(cJSON *root, const char *key, double number)
{
    if (isfinite(number))
        fleet_json_set_number(root, key, number);
    else
        fleet_json_set_null(root, key);
}

static void add_bytes(cJSON *root, const char *key, const size_t *bytes)
{
    cJSON *object = fleet_json_set_object(root, key);
    double total = 0;

    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++) {
        fleet_json_set_number(object, plan_bytes_name((enum plan_bytes)kind), (double)bytes[kind]);
        total += (double)bytes[kind];
    }
    fleet_json_set_number(object, "total", total);
}

static void add_degrees(cJSON *root, const struct topology *topology)
{
    cJSON *degrees = fleet_json_set_object(root, "degrees");

    for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
        fleet_json_set_number(degrees, topology_axis_name((enum topology_axis)axis),
                              topology->degree[axis]);
}

cJSON *plan_encode(const struct plan *plan)
{
    cJSON *root = fleet_json_new_object();

    add_names(root, "applied", &plan->selection.applied);
    add_notes(root, "dropped", &plan->selection.dropped);
    add_notes(root, "withoutEffect", &plan->selection.without_effect);
    add_names(root, "dependsOnWorkers", &plan->selection.depends_on_workers);
    add_notes(root, "notes", &plan->selection.notes);
    if (plan->selection.warnings.count > 0)
        add_notes(root, "warnings", &plan->selection.warnings);
    add_degrees(root, &plan->topology);
    if (!plan->has_program)
        return root;
    add_bytes(root, "bytesPerRank", plan->bytes);
    fleet_json_set_number(root, "checkpointCopyBytesMax", (double)plan->snapshot_bytes);
    fleet_json_set_number(root, "gradientSlots", plan->slots);
    fleet_json_set_number(root, "sentBytesPerUpdate", plan->sent_bytes);
    fleet_json_set_string(root, "digest", plan->digest);
    return root;
}

/* If the ranks train on GPUs. */
static void add_gpu(cJSON *root, const struct plan *plan)
{
    cJSON *gpu = fleet_json_set_object(root, "gpu");
    struct gpu_memory memory;

    gpu_memory_plan(plan, &memory);
    add_bytes(gpu, "bytesPerRank", memory.bytes);
    fleet_json_set_number(gpu, "hostBytesPerRank", (double)memory.host);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static cJSON *encode_group(const struct topology *topology, enum topology_axis axis, int rank)
{
    int *ranks = calloc((size_t)topology->degree[axis], sizeof(*ranks));
    cJSON *list;

    fleet_assert(ranks);
    (void)topology_group(topology, axis, rank, ranks);
    list = cJSON_CreateIntArray(ranks, topology->degree[axis]);
    free(ranks);
    return list;
}

/* The groups of an axis, by their first rank: each rank is in exactly one. */
static void add_groups(cJSON *root, const struct topology *topology)
{
    cJSON *groups = fleet_json_set_object(root, "groups");

    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        enum topology_axis axis = (enum topology_axis)i;
        cJSON *list = fleet_json_new_list();

        for (int rank = topology->world - 1; rank >= 0;
             rank--) { /* to the front: appending is slow */
            int at[TOPOLOGY_AXES];
            topology_coordinates(topology, rank, at);
            if (at[axis] == 0)
                fleet_json_add_first(list, encode_group(topology, axis, rank));
        }
        fleet_json_set(groups, topology_axis_name(axis), list);
    }
}

static void add_order(cJSON *root, const struct topology *topology)
{
    cJSON *order = fleet_json_set_list(root, "order");

    for (int i = 0; i < TOPOLOGY_AXES; i++)
        fleet_json_add_string(order, topology_axis_name(topology->order[i]));
}

static void add_traffic(cJSON *root, const struct plan_traffic *traffic)
{
    cJSON *list = fleet_json_set_list(root, "communication");

    for (size_t i = 0; i < traffic->count; i++) {
        const struct plan_transfer *t = &traffic->items[i];
        cJSON *item = fleet_json_new_object();

        fleet_json_set_string(item, "kind", transfer_kind_text(t));
        fleet_json_set_string(item, "what", transfer_what_text(t));
        fleet_json_set_string(item, "over", transfer_over_text(t));
        fleet_json_set_number(item, "ranks", t->ranks);
        fleet_json_set_string(item, "when", transfer_when_text(t));
        add_number(item, "bytes", t->bytes);
        fleet_json_set_string(item, "from", t->from_program ? "program" : "formula");
        fleet_json_add(list, item);
    }
}

static void add_sources(cJSON *root, const bool *by_formula)
{
    cJSON *sources = fleet_json_set_object(root, "bytesFrom");

    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        fleet_json_set_string(sources, plan_bytes_name((enum plan_bytes)kind),
                              by_formula[kind] ? "formula" : "program");
}

static cJSON *encode_stage(const struct plan *plan, int number)
{
    const struct plan_stage *stage = &plan->parts.stages[number];
    cJSON *item = fleet_json_new_object(), *shards;

    fleet_json_set_number(item, "stage", number);
    fleet_json_set_number(item, "firstLayer", (double)stage->first_layer);
    fleet_json_set_number(item, "layers", (double)(stage->end_layer - stage->first_layer));
    fleet_json_set_number(item, "tensors", (double)stage->tensors);
    fleet_json_set_number(item, "elements", (double)stage->elements);
    shards = fleet_json_set_list(item, "shardElements");
    for (int shard = 0; shard < plan->parts.division.shards; shard++)
        fleet_json_add_number(shards,
                              (double)plan_parts_shard_elements(&plan->parts, number, shard));
    return item;
}

static void add_accumulation(cJSON *root, const struct plan *plan)
{
    const struct strategy *s = &plan->selection.final;
    cJSON *object = fleet_json_set_object(root, "accumulation");

    fleet_json_set_number(object, "batches", plan->program.merge_steps);
    fleet_json_set_bool(object, "average",
                        plan->program.merge_steps == 1 || s->gradient_merge_configs.avg);
    fleet_json_set_number(object, "microBatchesPerBatch", (double)plan_cost_micro_batches(plan));
    fleet_json_set_number(object, "partialSums", plan->slots);
}

/* Without a model the plan has bytes for each element. */
static void add_bytes_per_element(cJSON *root, const struct plan *plan)
{
    const struct strategy *s = &plan->selection.final;
    double states = s->lars || s->dgc || s->localsgd || s->adaptive_localsgd ? 1 : 2;
    double weight = s->amp ? 2 : 4, optimizer = 4 * states + (s->amp ? 4 : 0);
    double shards = plan->parts.division.shards, parts = plan->parts.division.stages;
    cJSON *object = fleet_json_set_object(root, "bytesPerParameter");

    parts *= plan->parts.division.model_ranks;
    fleet_json_set_string(object, "optimizer",
                          s->lars       ? "lars"
                          : s->lamb     ? "lamb"
                          : states == 1 ? "momentum"
                                        : "adam");
    fleet_json_set_number(object, "parameters",
                          weight / parts / (s->sharding_configs.stage >= 3 ? shards : 1));
    fleet_json_set_number(object, "gradients",
                          weight / parts / (s->sharding_configs.stage >= 2 ? shards : 1));
    fleet_json_set_number(object, "optimizerState", optimizer / parts / shards);
}

cJSON *plan_encode_whole(const struct plan *plan)
{
    cJSON *root = plan_encode(plan), *stages;

    fleet_json_set_number(root, "world", plan->world);
    add_order(root, &plan->topology);
    add_groups(root, &plan->topology);
    add_accumulation(root, plan);
    if (plan->has_program) {
        add_sources(root, plan->by_formula);
        add_gpu(root, plan);
        fleet_json_set_number(root, "elements", (double)plan->parts.elements);
        stages = fleet_json_set_list(root, "stages");
        for (int stage = 0; stage < plan->parts.division.stages; stage++)
            fleet_json_add(stages, encode_stage(plan, stage));
    } else {
        add_bytes_per_element(root, plan);
    }
    add_traffic(root, &plan->traffic);
    if (!plan->own_trainer)
        add_notes(root, "cannotRun", &plan->cannot_run);
    return root;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static void add_rank_stage(cJSON *root, const struct plan *plan, int stage)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const struct pipeline_shape *shape = &plan->schedule;
    cJSON *object = fleet_json_set_object(root, "stage");

    fleet_json_set_number(object, "index", stage);
    fleet_json_set_number(object, "of", shape->stages);
    if (plan->has_program) {
        fleet_json_set_number(object, "firstLayer", (double)plan->parts.stages[stage].first_layer);
        fleet_json_set_number(object, "endLayer", (double)plan->parts.stages[stage].end_layer);
        fleet_json_set_number(object, "elements", (double)plan->parts.stages[stage].elements);
    }
    if (shape->stages == 1 || pipeline_step_count(shape) > PIPELINE_STEPS_PRINTED)
        return;
    pipeline_print(shape, stage, &text);
    fleet_json_set_string(object, "schedule", fleet_strbuf_text(&text));
    fleet_json_set_number(object, "liveMicroBatches", pipeline_peak(shape, stage));
}

static void add_rank_shard(cJSON *root, const struct plan *plan, int stage, int shard)
{
    cJSON *object = fleet_json_set_object(root, "shard");

    fleet_json_set_number(object, "index", shard);
    fleet_json_set_number(object, "of", plan->parts.division.shards);
    if (!plan->has_program)
        return;
    fleet_json_set_number(object, "tensors",
                          (double)plan_parts_shard_tensors(&plan->parts, stage, shard));
    fleet_json_set_number(object, "elements",
                          (double)plan_parts_shard_elements(&plan->parts, stage, shard));
}

/* Its leaves of the summation tree, in the order of the data. */
static void add_rank_leaves(cJSON *root, const struct plan *plan, int rank)
{
    int replicas = plan_replicas(plan), replica = plan_replica_of(plan, rank);
    struct tree_slots slots = tree_slots_of(plan->leaves, replicas, replica);
    int64_t share = plan->leaves / replicas, larger = plan->leaves % replicas;
    cJSON *object = fleet_json_set_object(root, "microBatches");

    fleet_json_set_number(object, "replica", replica);
    fleet_json_set_number(object, "first",
                          (double)(replica * share + (replica < larger ? replica : larger)));
    fleet_json_set_number(object, "count", (double)(share + (replica < larger)));
    fleet_json_set_number(object, "partialSums", slots.nodes);
    fleet_json_set_number(object, "gradientSlots", slots.slots);
}

cJSON *plan_encode_rank(const struct plan *plan, int rank)
{
    cJSON *root = fleet_json_new_object(), *coordinates, *groups;
    size_t bytes[PLAN_BYTES_COUNT];
    bool by_formula[PLAN_BYTES_COUNT];
    struct plan_traffic traffic;
    int at[TOPOLOGY_AXES];

    fleet_assert(rank >= 0 && rank < plan->world);
    topology_coordinates(&plan->topology, rank, at);
    fleet_json_set_number(root, "rank", rank);
    coordinates = fleet_json_set_object(root, "coordinates");
    groups = fleet_json_set_object(root, "groups");
    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        const char *name = topology_axis_name((enum topology_axis)i);
        fleet_json_set_number(coordinates, name, at[i]);
        fleet_json_set(groups, name, encode_group(&plan->topology, (enum topology_axis)i, rank));
    }
    add_rank_stage(root, plan, at[TOPOLOGY_PIPELINE]);
    add_rank_shard(root, plan, at[TOPOLOGY_PIPELINE], at[TOPOLOGY_SHARDING]);
    add_rank_leaves(root, plan, rank);
    plan_cost_traffic(plan, at[TOPOLOGY_PIPELINE], plan_replica_of(plan, rank), &traffic);
    if (plan->has_program) {
        plan_cost_bytes(plan, at[TOPOLOGY_PIPELINE], at[TOPOLOGY_SHARDING], bytes, by_formula);
        add_bytes(root, "bytes", bytes);
        add_sources(root, by_formula);
    }
    add_traffic(root, &traffic);
    return root;
}
