/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/program_traffic.h"

#include "libfleet/base/assert.h"
#include "libfleet/plan/adders.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/plan/runtime_traffic.h"
#include "libfleet/plan/tree.h"
#include "libfleet/program/dgc.h"

void program_traffic_add(struct plan_traffic *traffic, const struct plan_transfer *transfer)
{
    fleet_assert(traffic->count < PLAN_TRANSFERS_MAX);
    if (transfer->ranks > 1)
        traffic->items[traffic->count++] = *transfer;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* The axes of a group that have more than one rank. */
static unsigned int wide_axes(const struct topology *grid, unsigned int group)
{
    unsigned int wide = 0;

    for (unsigned int axis = 0; axis < TOPOLOGY_AXES; axis++)
        if (group & 1u << axis && grid->degree[axis] > 1)
            wide |= 1u << axis;
    return wide;
}

static enum transfer_what what_of(const struct program_op *op)
{
    static const enum transfer_what spaces[] = {[OP_SPACE_NONE] = TRANSFER_MICRO_BATCH_VALUES,
                                                [OP_SPACE_GRADIENTS] = TRANSFER_GRADIENTS,
                                                [OP_SPACE_PARAMETERS] = TRANSFER_PARAMETERS,
                                                [OP_SPACE_STATE0] = TRANSFER_STATE,
                                                [OP_SPACE_STATE1] = TRANSFER_STATE,
                                                [OP_SPACE_BUFFERS] = TRANSFER_STATISTICS};
    enum op_space space = op->attributes.space;

    if (op->kind == OP_DGC_GATHER)
        return TRANSFER_LARGEST_GRADIENTS;
    if (op->kind == OP_SEND && op->section == PROGRAM_SECTION_MICRO_BATCH)
        return op->backward ? TRANSFER_ACTIVATION_GRADIENTS : TRANSFER_ACTIVATIONS;
    if (op->section == PROGRAM_SECTION_AVERAGE) /* differences lie where gradients do */
        return TRANSFER_PARAMETERS_OF_INTERVAL;
    if (space == OP_SPACE_GRADIENTS && op->attributes.wire == OP_WIRE_FP16)
        return TRANSFER_GRADIENTS_FP16;
    if (space == OP_SPACE_NONE && op->section != PROGRAM_SECTION_MICRO_BATCH)
        return TRANSFER_VALUES;
    return spaces[space];
}

static bool is_divided_sum(const struct program_op *op)
{
    return op->kind == OP_TREE_SUM && op->attributes.owned;
}

static enum transfer_when when_of(const struct program_op *op)
{
    if (is_divided_sum(op) && op->section == PROGRAM_SECTION_EXCHANGE)
        return TRANSFER_COMPLETE_SUMS;
    switch (op->section) {
    case PROGRAM_SECTION_MICRO_BATCH:
        return op->backward ? TRANSFER_BACKWARD : TRANSFER_FORWARD;
    case PROGRAM_SECTION_EXCHANGE:
        return op->kind == OP_TREE_SUM ? TRANSFER_BUCKETS_OF_TREE : TRANSFER_BUCKETS;
    case PROGRAM_SECTION_CHECK:
        return TRANSFER_BEFORE_VOTE;
    case PROGRAM_SECTION_AVERAGE:
        return TRANSFER_AVERAGE;
    default:
        return TRANSFER_BEHIND_VOTE;
    }
}

/* ---- the sum --------------------------------------------------------------------------------- */

static int ranks_of(const struct topology *grid, unsigned int group)
{
    int ranks = 1;

    for (unsigned int axis = 0; axis < TOPOLOGY_AXES; axis++)
        if (group & 1u << axis)
            ranks *= grid->degree[axis];
    return ranks;
}

/* Elements of [first, end) whose optimizer states the replica owns. */
static int64_t owned(const struct plan *plan, int replica, int64_t first, int64_t end)
{
    const struct ownership *map = &plan->ownership;
    int64_t sum = 0;

    for (int i = 0; i < map->count; i++) {
        const struct ownership_line *line = &map->lines[i];
        int64_t from = line->first > first ? line->first : first;
        int64_t to = line->end < end ? line->end : end;
        if (line->holders == OWNERSHIP_SHARD && line->shard == replica % map->shards && from < to)
            sum += to - from;
    }
    return sum;
}

/* It has the most partial sums, and owns most. */
static int heaviest(const struct plan *plan)
{
    int replicas = plan_replicas(plan), best = 0, most = 0;
    int64_t most_owned = 0;

    for (int r = 0; r < replicas; r++) {
        int nodes = tree_slots_of(plan->leaves, replicas, r).nodes;
        int64_t own = owned(plan, r, 0, plan->program.flat_count);
        if (nodes > most || (nodes == most && own > most_owned)) {
            most = nodes;
            most_owned = own;
            best = r;
        }
    }
    return best;
}

/* Divided gradients: in each round that has a micro-batch of the replica, the elements that others
 * add up; then the sums to the other holders. */
static double sent_divided(const struct plan *plan, const struct program_op *op, int replica,
                           int ranks)
{
    const struct ownership *map = &plan->ownership;
    const struct op_attributes *a = &op->attributes;
    struct tree_share share = tree_share_of(plan->leaves, ranks, replica, true);
    int64_t rounds = (share.end - share.first + share.step - 1) / share.step, elements = 0;
    int64_t whole = plan->program.flat_count;

    if (op->section == PROGRAM_SECTION_MICRO_BATCH)
        elements = rounds * (a->flat_count - adders_elements(map, whole, replica, a->flat_first,
                                                             a->flat_first + a->flat_count));
    for (int i = 0; i < map->count && op->section != PROGRAM_SECTION_MICRO_BATCH; i++) {
        const struct ownership_line *line = &map->lines[i];
        struct ownership one = {.lines = &map->lines[i],
                                .count = 1,
                                .replicas = map->replicas,
                                .shards = map->shards,
                                .has_buddies = map->has_buddies};
        int64_t added = adders_elements(&one, whole, replica, 0, whole);
        for (int r = 0; r < ranks && added > 0; r++)
            elements += r != replica && ownership_holds(map, line, r) ? added : 0;
    }
    return (double)sizeof(float) * (double)elements;
}

/* What one execution sends. Of dgc it is the sparse phase, at its last sparsity. */
static double sent(const struct plan *plan, const struct gathers_parts *parts,
                   const struct program_op *op, int replica, const struct runtime_place *place)
{
    const struct strategy_dgc_config *dgc = &plan->selection.final.dgc_configs;
    const struct op_attributes *a = &op->attributes;

    if (a->phase == OP_PHASE_DENSE)
        return 0;
    if (gathers_is(op))
        return (double)gathers_sent(&plan->ownership, parts, (int)(op - plan->program.ops),
                                    replica);
    if (op->kind == OP_DGC_GATHER)
        return 4.0 * (double)dgc_words(&plan->program, dgc_ratio(dgc, INT64_MAX), PROGRAM_NONE) *
               (place->ranks - 1);
    if (op->kind != OP_ALL_GATHER || !a->owned)
        return runtime_sent(&plan->program, op, place);
    return (double)(sizeof(float) * (size_t)(place->ranks - 1)) *
           (double)owned(plan, replica, a->flat_first, a->flat_first + a->flat_count);
}

/* The place of a replica in the group of `op`. Along other axes than those of replicas it is 0. */
static struct runtime_place place_of(const struct plan *plan, const struct program_op *op,
                                     int replica)
{
    int sharding = plan->topology.degree[TOPOLOGY_SHARDING];
    unsigned int group = op->attributes.group;
    const struct strategy *s = &plan->selection.final;
    struct runtime_place place = {.ranks = ranks_of(&plan->topology, group),
                                  .leaves = plan->leaves};

    if (s->use_hierarchical_allreduce && group == OP_GROUP_REPLICAS)
        place.block = s->hierarchical_allreduce_inter_nranks;

    if ((group & OP_GROUP_REPLICAS) == OP_GROUP_REPLICAS)
        place.place = replica;
    else if (group & OP_GROUP_DATA)
        place.place = replica / sharding;
    else if (group & OP_GROUP_SHARDING)
        place.place = replica % sharding;
    return place;
}

static struct plan_transfer *find(struct plan_traffic *traffic, const struct plan_transfer *like)
{
    for (size_t i = 0; i < traffic->count; i++)
        if (transfer_is_like(&traffic->items[i], like))
            return &traffic->items[i];
    return NULL;
}

/* How often in an update. */
static double times_of(const struct plan *plan, const struct program_op *op)
{
    const struct strategy *s = &plan->selection.final;

    if (gathers_is(op)) /* ranks without a micro-batch take part, too */
        return (double)((plan->leaves + plan_replicas(plan) - 1) / plan_replicas(plan));
    if (op->section == PROGRAM_SECTION_MICRO_BATCH)
        return (double)plan_cost_micro_batches(plan) * plan->program.merge_steps;
    if (op->section == PROGRAM_SECTION_AVERAGE)
        return 1.0 / (s->adaptive_localsgd ? s->adaptive_localsgd_configs.init_k_steps
                                           : s->localsgd_configs.k_steps);
    return 1;
}

/* ---- ranks that share a replica -------------------------------------------------------------- */

static struct plan_cell_transfer *find_cell(struct plan_cell_traffic *traffic,
                                            const struct plan_transfer *like)
{
    struct plan_cell_transfer *item = traffic->items;

    for (; item < traffic->items + traffic->count; item++)
        if (transfer_is_like(&item->transfer, like))
            return item;
    fleet_assert(traffic->count < PLAN_CELL_TRANSFERS_MAX);
    traffic->count++;
    *item = (struct plan_cell_transfer){.transfer = *like};
    return item;
}

static bool is_in_cell(const struct program_op *op)
{
    return op->section == PROGRAM_SECTION_MICRO_BATCH &&
           op_definition(op->kind)->is_communication &&
           (op->attributes.group & ~OP_GROUP_CELL) == 0;
}

double program_traffic_in_cell(const struct plan *plan, int op)
{
    const struct program_op *it = &plan->program.ops[op];
    struct runtime_place place;

    if (!is_in_cell(it))
        return 0;
    place = place_of(plan, it, 0);
    return place.ranks > 1 ? runtime_sent(&plan->program, it, &place) : 0;
}

void program_traffic_of_cells(const struct plan *plan, struct plan_cell_traffic *out)
{
    const struct program *program = &plan->program;
    struct stages_span span = stages_span_of(program);

    *out = (struct plan_cell_traffic){.count = 0};
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        struct runtime_place place;
        struct plan_cell_transfer *item;
        enum stages_place at;

        if (!is_in_cell(op))
            continue;
        place = place_of(plan, op, 0);
        if (place.ranks == 1)
            continue;
        item = find_cell(
            out, &(struct plan_transfer){.kind = op->kind,
                                         .what = what_of(op),
                                         .over = wide_axes(&plan->topology, op->attributes.group),
                                         .when = when_of(op),
                                         .ranks = place.ranks,
                                         .in_micro_batch = true,
                                         .from_program = true});
        at = stages_place_of(program, &span, i);
        item->calls[at]++;
        item->rounds[at] += runtime_rounds(program, op, place.ranks);
        item->bytes[at] += program_traffic_in_cell(plan, i);
    }
}

/* ---- all ranks ------------------------------------------------------------------------------- */

void program_traffic(const struct plan *plan, int replica, struct plan_traffic *traffic)
{
    const struct program *program = &plan->program;
    struct gathers_parts parts;

    if (replica == PROGRAM_TRAFFIC_HEAVIEST)
        replica = heaviest(plan);
    gathers_parts_init(program, &parts);
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        struct plan_transfer transfer, *same;
        struct runtime_place place;
        double times;

        if (!op_definition(op->kind)->is_communication || op->kind == OP_RECEIVE)
            continue;
        times = times_of(plan, op);
        place = place_of(plan, op, replica);
        transfer = (struct plan_transfer){
            .kind = op->kind,
            .what = what_of(op),
            .over = wide_axes(&plan->topology, op->attributes.group),
            .when = when_of(op),
            .ranks = place.ranks,
            .calls = times,
            .rounds = times * runtime_rounds(program, op, place.ranks),
            .in_micro_batch = op->section == PROGRAM_SECTION_MICRO_BATCH,
            .bytes = is_divided_sum(op) ? sent_divided(plan, op, replica, place.ranks)
                                        : sent(plan, &parts, op, replica, &place) * times,
            .from_program = true};
        same = find(traffic, &transfer);
        if (same) {
            same->bytes += transfer.bytes;
            same->calls += transfer.calls;
            same->rounds += transfer.rounds;
        } else {
            program_traffic_add(traffic, &transfer);
        }
    }
    gathers_parts_release(&parts);
}
