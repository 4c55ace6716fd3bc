/* SPDX-License-Identifier: Apache-2.0 */

/* A plan as JSON: for the status, for `fleetjob plan`, for one rank. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/tree.h"
#include "libfleet/strategy/pipeline_schedule.h"

#define SCHEDULE_STEPS_MAX 4096 /* longer orders are not printed */

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
    cJSON *list = cJSON_AddArrayToObject(root, key);

    for (size_t i = 0; i < names->count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(names->items[i]));
}

static void add_notes(cJSON *root, const char *key, const struct select_notes *notes)
{
    cJSON *list = cJSON_AddArrayToObject(root, key);

    for (size_t i = 0; i < notes->count; i++) {
        cJSON *note = cJSON_CreateObject();
        cJSON_AddStringToObject(note, "knob", notes->items[i].knob);
        cJSON_AddStringToObject(note, "because", notes->items[i].because);
        cJSON_AddItemToArray(list, note);
    }
}

/* What a status holds; `number` may be unknown. */
static void add_number(cJSON *root, const char *key, double number)
{
    if (isfinite(number))
        cJSON_AddNumberToObject(root, key, number);
    else
        cJSON_AddNullToObject(root, key);
}

static void add_bytes(cJSON *root, const char *key, const size_t *bytes)
{
    cJSON *object = cJSON_AddObjectToObject(root, key);
    double total = 0;

    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++) {
        cJSON_AddNumberToObject(object, plan_bytes_name((enum plan_bytes)kind),
                                (double)bytes[kind]);
        total += (double)bytes[kind];
    }
    cJSON_AddNumberToObject(object, "total", total);
}

static void add_degrees(cJSON *root, const struct topology *topology)
{
    cJSON *degrees = cJSON_AddObjectToObject(root, "degrees");

    for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
        cJSON_AddNumberToObject(degrees, topology_axis_name((enum topology_axis)axis),
                                topology->degree[axis]);
}

cJSON *plan_encode(const struct plan *plan)
{
    cJSON *root = cJSON_CreateObject();

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
    cJSON_AddNumberToObject(root, "checkpointCopyBytesMax", (double)plan->snapshot_bytes);
    cJSON_AddNumberToObject(root, "gradientSlots", plan->slots);
    cJSON_AddNumberToObject(root, "sentBytesPerUpdate", plan->sent_bytes);
    cJSON_AddStringToObject(root, "digest", plan->digest);
    return root;
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
    cJSON *groups = cJSON_AddObjectToObject(root, "groups");

    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        enum topology_axis axis = (enum topology_axis)i;
        cJSON *list = cJSON_CreateArray();

        for (int rank = topology->world - 1; rank >= 0;
             rank--) { /* to the front: appending is slow */
            int at[TOPOLOGY_AXES];
            topology_coordinates(topology, rank, at);
            if (at[axis] == 0)
                cJSON_InsertItemInArray(list, 0, encode_group(topology, axis, rank));
        }
        cJSON_AddItemToObject(groups, topology_axis_name(axis), list);
    }
}

static void add_order(cJSON *root, const struct topology *topology)
{
    cJSON *order = cJSON_AddArrayToObject(root, "order");

    for (int i = 0; i < TOPOLOGY_AXES; i++)
        cJSON_AddItemToArray(order, cJSON_CreateString(topology_axis_name(topology->order[i])));
}

static void add_traffic(cJSON *root, const struct plan_traffic *traffic)
{
    cJSON *list = cJSON_AddArrayToObject(root, "communication");

    for (size_t i = 0; i < traffic->count; i++) {
        const struct plan_transfer *t = &traffic->items[i];
        cJSON *item = cJSON_CreateObject();

        cJSON_AddStringToObject(item, "kind", t->kind);
        cJSON_AddStringToObject(item, "what", t->what);
        cJSON_AddStringToObject(item, "over", t->over);
        cJSON_AddNumberToObject(item, "ranks", t->ranks);
        cJSON_AddStringToObject(item, "when", t->when);
        add_number(item, "bytes", t->bytes);
        cJSON_AddStringToObject(item, "from", t->from_program ? "program" : "formula");
        cJSON_AddItemToArray(list, item);
    }
}

static void add_sources(cJSON *root, const bool *by_formula)
{
    cJSON *sources = cJSON_AddObjectToObject(root, "bytesFrom");

    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        cJSON_AddStringToObject(sources, plan_bytes_name((enum plan_bytes)kind),
                                by_formula[kind] ? "formula" : "program");
}

static cJSON *encode_stage(const struct plan *plan, int number)
{
    const struct plan_stage *stage = &plan->parts.stages[number];
    cJSON *item = cJSON_CreateObject(), *shards;

    cJSON_AddNumberToObject(item, "stage", number);
    cJSON_AddNumberToObject(item, "firstLayer", (double)stage->first_layer);
    cJSON_AddNumberToObject(item, "layers", (double)(stage->end_layer - stage->first_layer));
    cJSON_AddNumberToObject(item, "tensors", (double)stage->tensors);
    cJSON_AddNumberToObject(item, "elements", (double)stage->elements);
    shards = cJSON_AddArrayToObject(item, "shardElements");
    for (int shard = 0; shard < plan->parts.division.shards; shard++)
        cJSON_AddItemToArray(shards, cJSON_CreateNumber((double)plan_parts_shard_elements(
                                         &plan->parts, number, shard)));
    return item;
}

static void add_accumulation(cJSON *root, const struct plan *plan)
{
    const struct strategy *s = &plan->selection.final;
    cJSON *object = cJSON_AddObjectToObject(root, "accumulation");

    cJSON_AddNumberToObject(object, "batches", plan->program.merge_steps);
    cJSON_AddBoolToObject(object, "average",
                          plan->program.merge_steps == 1 || s->gradient_merge_configs.avg);
    cJSON_AddNumberToObject(object, "microBatchesPerBatch", (double)plan_cost_micro_batches(plan));
    cJSON_AddNumberToObject(object, "partialSums", plan->slots);
}

/* Without a model the plan has bytes for each element. */
static void add_bytes_per_element(cJSON *root, const struct plan *plan)
{
    const struct strategy *s = &plan->selection.final;
    double states = s->lars || s->dgc || s->localsgd || s->adaptive_localsgd ? 1 : 2;
    double weight = s->amp ? 2 : 4, optimizer = 4 * states + (s->amp ? 4 : 0);
    double shards = plan->parts.division.shards, parts = plan->parts.division.stages;
    cJSON *object = cJSON_AddObjectToObject(root, "bytesPerParameter");

    parts *= plan->parts.division.model_ranks;
    cJSON_AddStringToObject(object, "optimizer",
                            s->lars       ? "lars"
                            : s->lamb     ? "lamb"
                            : states == 1 ? "momentum"
                                          : "adam");
    cJSON_AddNumberToObject(object, "parameters",
                            weight / parts / (s->sharding_configs.stage >= 3 ? shards : 1));
    cJSON_AddNumberToObject(object, "gradients",
                            weight / parts / (s->sharding_configs.stage >= 2 ? shards : 1));
    cJSON_AddNumberToObject(object, "optimizerState", optimizer / parts / shards);
}

cJSON *plan_encode_whole(const struct plan *plan)
{
    cJSON *root = plan_encode(plan), *stages;

    cJSON_AddNumberToObject(root, "world", plan->world);
    add_order(root, &plan->topology);
    add_groups(root, &plan->topology);
    add_accumulation(root, plan);
    if (plan->has_program) {
        add_sources(root, plan->by_formula);
        cJSON_AddNumberToObject(root, "elements", (double)plan->parts.elements);
        stages = cJSON_AddArrayToObject(root, "stages");
        for (int stage = 0; stage < plan->parts.division.stages; stage++)
            cJSON_AddItemToArray(stages, encode_stage(plan, stage));
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
    const struct strategy_pipeline_config *p = &plan->selection.final.pipeline_configs;
    struct pipeline_shape shape = {.stages = plan->parts.division.stages,
                                   .micro_batches = 1,
                                   .chunks = 1,
                                   .all_forward = strcmp(p->schedule_mode, "F-then-B") == 0};
    int64_t micro_batches = plan_cost_micro_batches(plan);
    cJSON *object = cJSON_AddObjectToObject(root, "stage");

    cJSON_AddNumberToObject(object, "index", stage);
    cJSON_AddNumberToObject(object, "of", shape.stages);
    if (plan->has_program) {
        cJSON_AddNumberToObject(object, "firstLayer",
                                (double)plan->parts.stages[stage].first_layer);
        cJSON_AddNumberToObject(object, "endLayer", (double)plan->parts.stages[stage].end_layer);
        cJSON_AddNumberToObject(object, "elements", (double)plan->parts.stages[stage].elements);
    }
    if (shape.stages == 1 || micro_batches > SCHEDULE_STEPS_MAX / 2)
        return;
    shape.micro_batches = (int)micro_batches;
    pipeline_print(&shape, stage, &text);
    cJSON_AddStringToObject(object, "schedule", fleet_strbuf_text(&text));
    cJSON_AddNumberToObject(object, "liveMicroBatches", pipeline_peak(&shape, stage));
}

static void add_rank_shard(cJSON *root, const struct plan *plan, int stage, int shard)
{
    cJSON *object = cJSON_AddObjectToObject(root, "shard");

    cJSON_AddNumberToObject(object, "index", shard);
    cJSON_AddNumberToObject(object, "of", plan->parts.division.shards);
    if (!plan->has_program)
        return;
    cJSON_AddNumberToObject(object, "tensors",
                            (double)plan_parts_shard_tensors(&plan->parts, stage, shard));
    cJSON_AddNumberToObject(object, "elements",
                            (double)plan_parts_shard_elements(&plan->parts, stage, shard));
}

/* Its leaves of the summation tree, in the order of the data. */
static void add_rank_leaves(cJSON *root, const struct plan *plan, int rank)
{
    int replicas = plan_replicas(plan), replica = plan_replica_of(plan, rank);
    struct tree_slots slots = tree_slots_of(plan->leaves, replicas, replica);
    int64_t share = plan->leaves / replicas, larger = plan->leaves % replicas;
    cJSON *object = cJSON_AddObjectToObject(root, "microBatches");

    cJSON_AddNumberToObject(object, "replica", replica);
    cJSON_AddNumberToObject(object, "first",
                            (double)(replica * share + (replica < larger ? replica : larger)));
    cJSON_AddNumberToObject(object, "count", (double)(share + (replica < larger)));
    cJSON_AddNumberToObject(object, "partialSums", slots.nodes);
    cJSON_AddNumberToObject(object, "gradientSlots", slots.slots);
}

cJSON *plan_encode_rank(const struct plan *plan, int rank)
{
    cJSON *root = cJSON_CreateObject(), *coordinates, *groups;
    size_t bytes[PLAN_BYTES_COUNT];
    bool by_formula[PLAN_BYTES_COUNT];
    struct plan_traffic traffic;
    int at[TOPOLOGY_AXES];

    fleet_assert(rank >= 0 && rank < plan->world);
    topology_coordinates(&plan->topology, rank, at);
    cJSON_AddNumberToObject(root, "rank", rank);
    coordinates = cJSON_AddObjectToObject(root, "coordinates");
    groups = cJSON_AddObjectToObject(root, "groups");
    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        const char *name = topology_axis_name((enum topology_axis)i);
        cJSON_AddNumberToObject(coordinates, name, at[i]);
        cJSON_AddItemToObject(groups, name,
                              encode_group(&plan->topology, (enum topology_axis)i, rank));
    }
    add_rank_stage(root, plan, at[TOPOLOGY_PIPELINE]);
    add_rank_shard(root, plan, at[TOPOLOGY_PIPELINE], at[TOPOLOGY_SHARDING]);
    add_rank_leaves(root, plan, rank);
    plan_cost_traffic(plan, at[TOPOLOGY_PIPELINE], &traffic);
    if (plan->has_program) {
        plan_cost_bytes(plan, at[TOPOLOGY_PIPELINE], at[TOPOLOGY_SHARDING], bytes, by_formula);
        add_bytes(root, "bytes", bytes);
        add_sources(root, by_formula);
    }
    add_traffic(root, &traffic);
    return root;
}
