/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/step/exchange.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/runtime/comm/device.h"
#include "agent/runtime/step/update.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/adders.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/runtime_hierarchy.h"
#include "libfleet/strategy/cells.h"

static double deadline_of(void *context)
{
    return trainer_deadline_ms(context);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The ranks that share `rank`'s coordinates on all axes outside `axes`: by replicas, those of a
 * replica by cells. So the place in a group of replicas is the replica's number. */
static int ranks_of(const struct topology *grid, unsigned int axes, int rank, int *out)
{
    int own[TOPOLOGY_AXES], count = 0, cells = cells_count(grid);

    topology_coordinates(grid, rank, own);
    for (int i = 0; i < grid->world; i++) {
        int r = cells_rank(grid, (struct cell_place){.cell = i % cells, .replica = i / cells});
        int at[TOPOLOGY_AXES];
        bool is_member = true;

        topology_coordinates(grid, r, at);
        for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
            is_member &= at[axis] == own[axis] || axes & 1u << axis;
        if (is_member)
            out[count++] = r;
    }
    return count;
}

/* They are all ranks, in order: the world's communicator does. */
static bool are_world(const struct topology *grid, const int *ranks, int count)
{
    for (int i = 0; i < count; i++)
        if (ranks[i] != i)
            return false;
    return count == grid->world;
}

static bool has_lower(const int *ranks, int count, int rank)
{
    for (int i = 0; i < count; i++)
        if (ranks[i] < rank)
            return true;
    return false;
}

/* All groups along `axes`, one after the other: every rank takes part in making each. */
static int make_groups(struct trainer *trainer, const struct topology *grid, unsigned int axes,
                       struct fleet_error *err)
{
    struct exchange_groups *groups = &trainer->net.groups;
    FLEET_AUTO_FREE int *ranks = calloc((size_t)grid->world, sizeof(*ranks));
    int rc = 0;

    fleet_assert(ranks != NULL);
    for (int r = 0; r < grid->world && rc == 0; r++) {
        int count = ranks_of(grid, axes, r, ranks);
        struct comm *made = NULL;

        if (are_world(grid, ranks, count))
            groups->communication.groups[axes] = trainer->net.comm;
        if (count == 1 || are_world(grid, ranks, count))
            return 0;
        if (has_lower(ranks, count, r)) /* made already */
            continue;
        rc = comm_group(trainer->net.comm, ranks, count, trainer_deadline_ms(trainer), &made, err);
        if (made)
            groups->communication.groups[axes] = groups->made[axes] = made;
    }
    return rc;
}

/* The number of workers after a loss. */
static void report_one_level(struct trainer *trainer, int block, int ranks)
{
    if (ranks > block && ranks % block != 0 && trainer->generation.rank == 0)
        trainer_note(trainer,
                     "use_hierarchical_allreduce: %d workers do not divide into blocks of %d, so "
                     "gradients are summed in one level, with the same bits",
                     ranks, block);
}

/* The same of sharding groups. */
static void report_one_group(struct trainer *trainer, const struct topology *grid)
{
    const struct strategy_sharding_config *g = &trainer->job.plan.selection.final.sharding_configs;
    int shards = grid->degree[TOPOLOGY_SHARDING];

    if (trainer->job.plan.selection.final.sharding && g->hybrid_dp && shards > 1 &&
        shards != g->sharding_group_size && shards == grid->world && trainer->generation.rank == 0)
        trainer_note(trainer,
                     "hybrid_dp: %d workers are not several groups of %d, so they are one sharding "
                     "group, with the same bits",
                     grid->world, g->sharding_group_size);
}

/* Blocks of the ranks that sum gradients, if the strategy has them. */
static int open_hierarchy(struct trainer *trainer, struct fleet_error *err)
{
    const struct strategy *s = &trainer->job.plan.selection.final;
    struct communication *c = &trainer->net.groups.communication;
    struct comm *replicas = c->groups[OP_GROUP_REPLICAS];
    int block = 0;

    if (s->use_hierarchical_allreduce && replicas) {
        block = runtime_hierarchy_block(s->hierarchical_allreduce_inter_nranks, replicas->world);
        report_one_level(trainer, s->hierarchical_allreduce_inter_nranks, replicas->world);
    }
    return block > 0
               ? hierarchy_open(replicas, block, trainer_deadline_ms(trainer), &c->hierarchy, err)
               : 0;
}

static int open_groups(struct trainer *trainer, struct fleet_error *err)
{
    const struct program *program = &trainer->job.plan.program;
    const struct topology *grid = &trainer->job.plan.topology; /* of this generation's world */
    bool is_used[OP_GROUP_WORLD + 1] = {false};
    int rc = 0;

    report_one_group(trainer, grid);
    is_used[OP_GROUP_REPLICAS] = is_used[EXCHANGE_CELLS] = true; /* of a cell; of a replica */
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind != OP_ALL_GATHER ||
            !program->ops[i].attributes.owned) /* share.h, gather.h: by the replicas' */
            is_used[program->ops[i].attributes.group] = true;
    for (unsigned int axes = 1; axes <= OP_GROUP_WORLD && rc == 0; axes++)
        if (is_used[axes])
            rc = make_groups(trainer, grid, axes, err);
    if (rc == 0 && cells_replicas(grid) == 1)
        trainer->net.cell = trainer->net.alone = comm_local_new();
    else
        trainer->net.cell = trainer->net.groups.communication.groups[OP_GROUP_REPLICAS];
    return rc == 0 ? open_hierarchy(trainer, err) : rc;
}

/* ---- the device's library -------------------------------------------------------------------- */

/* What a rank says of itself. */
#define HAS_LIBRARY 1
#define CAPTURES    1 /* from this bit on: enum comm_device_captures */

/* Does each rank have the library? A rank without it says why, once. */
static int agree_on_library(struct trainer *trainer, const struct comm_device_library **library,
                            struct fleet_error *err)
{
    static bool has_said;
    struct fleet_error why = {.text = ""};
    int world = trainer->generation.world, rc;
    FLEET_AUTO_FREE uint8_t *all = calloc((size_t)world, 1);
    bool is_there = trainer->device.kind->collectives(library, &why) == 0;
    uint8_t mine = is_there ? HAS_LIBRARY : 0;

    fleet_assert(all != NULL);
    if (is_there && backend_captures(trainer->device.backend) && (*library)->captures())
        mine |= (uint8_t)((*library)->captures() << CAPTURES);
    rc = comm_all_gather(trainer->net.comm, &mine, sizeof(mine), all, trainer_deadline_ms(trainer),
                         err);
    trainer->net.groups.captures = rc == 0 ? COMM_DEVICE_CAPTURES_ALL : COMM_DEVICE_CAPTURES_NONE;
    for (int r = 0; r < world && rc == 0; r++) {
        if (!all[r])
            *library = NULL;
        if (trainer->net.groups.captures > (enum comm_device_captures)(all[r] >> CAPTURES))
            trainer->net.groups.captures = all[r] >> CAPTURES;
    }
    if (rc == 0 && !is_there && !has_said) {
        has_said = true;
        trainer_note(trainer, "Ranks exchange gradients by way of the host's memory: %s", why.text);
    }
    return rc;
}

/* Collectives over the memory of the devices, for the world and then for its groups. */
static int open_device(struct trainer *trainer, bool in_compute_queue, struct fleet_error *err)
{
    struct backend *backend = trainer->device.backend;
    const struct comm_device_library *library = NULL;
    struct comm_device_id id = {.bytes = {0}};
    int rc;

    if (trainer->generation.world == 1 || !trainer->device.kind->collectives)
        return 0;
    rc = agree_on_library(trainer, &library, err);
    if (rc < 0 || !library)
        return rc;
    trainer->net.groups.library = library;
    if (trainer->generation.rank == 0 && (rc = library->make_id(&id, err)) < 0)
        return rc;
    rc = comm_broadcast(trainer->net.comm, &id, sizeof(id), 0, trainer_deadline_ms(trainer), err);
    if (rc == 0)
        rc = comm_use_device(trainer->net.comm, library, &id,
                             in_compute_queue ? backend : backend_second(backend),
                             trainer_deadline_ms(trainer), err);
    return rc;
}

/* ---- the gradient ---------------------------------------------------------------------------- */

/* The exchange section reads each element of the gradient once. */
static bool exchanges_all(const struct program *program)
{
    int64_t elements = 0;

    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].section == PROGRAM_SECTION_EXCHANGE &&
            program->ops[i].attributes.space == OP_SPACE_GRADIENTS)
            elements += program->ops[i].attributes.flat_count;
    return elements == program->flat_count;
}

static void bring_sums(struct trainer *trainer, struct communication *c)
{
    const struct leaf_range *range = &trainer->generation.range;
    struct tree_node nodes[TREE_NODES_MAX];

    c->nodes = tree_nodes(range->leaves, range->first, range->end, nodes);
    c->leaves = range->leaves;
    c->averaged = (double)update_averaged(trainer);
    c->is_even = range->leaves % trainer->generation.replicas == 0;
    if (trainer->generation.replicas == 1 || exchange_divides(trainer) ||
        !exchanges_all(&trainer->job.plan.program))
        return;
    c->folds = range->instructions + range->folds_first;
    c->fold_count = range->count - range->folds_first;
}

bool exchange_folds(const struct trainer *trainer)
{
    return trainer->net.groups.communication.folds != NULL;
}

int64_t exchange_absences(const struct trainer *trainer, const struct leaf_range *range)
{
    const struct program *program = &trainer->job.plan.program;

    for (int i = 0; i < program->op_count && trainer->generation.replicas > 1; i++) {
        if (program->ops[i].section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        if (op_definition(program->ops[i].kind)->is_communication &&
            program->ops[i].attributes.group & OP_GROUP_REPLICAS)
            return tree_first_leaf(range->leaves, trainer->generation.replicas, 1) -
                   leaf_range_own(range);
    }
    return 0;
}

/* ---- what is divided ------------------------------------------------------------------------- */

bool exchange_divides(const struct trainer *trainer)
{
    return adders_are_used(&trainer->job.plan.program);
}

bool exchange_gathers(const struct trainer *trainer)
{
    return gathers_are_used(&trainer->job.plan.program);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int reserve_workspace(struct trainer *trainer, struct fleet_error *err)
{
    struct exchange_groups *groups = &trainer->net.groups;
    struct backend *memory = trainer->device.memory_backend;
    size_t wanted = communication_workspace(&groups->communication, &trainer->job.plan.program);

    if (wanted > groups->workspace_bytes) {
        exchange_release(trainer);
        groups->workspace = memory->vtable->allocate_host(memory, wanted, err);
        if (!groups->workspace)
            return fleet_error_wrap(err, "allocate memory to sum gradients");
        groups->workspace_bytes = wanted;
    }
    groups->communication.workspace = groups->workspace;
    return 0;
}

int exchange_open(struct trainer *trainer, struct fleet_error *err)
{
    struct communication *c = &trainer->net.groups.communication;
    int rc;

    *c = (struct communication){.world = trainer->net.comm,
                                .in_compute_queue =
                                    trainer->job.plan.selection.final.calc_comm_same_stream,
                                .any_order = !trainer->job.config.deterministic,
                                .deadline_ms = deadline_of,
                                .context = trainer};
    bring_sums(trainer, c);
    trainer->net.groups.captures = COMM_DEVICE_CAPTURES_NONE;
    if ((rc = open_device(trainer, c->in_compute_queue, err)) < 0)
        return rc;
    if (trainer->generation.range.leaves >= trainer->generation.replicas)
        c->captures = trainer->net.groups.captures;
    if ((rc = open_groups(trainer, err)) < 0 || (rc = reserve_workspace(trainer, err)) < 0)
        return rc;
    return executor_bind(trainer->device.executor, c, err);
}

int exchange_divide(struct trainer *trainer, struct fleet_error *err)
{
    struct exchange_groups *groups = &trainer->net.groups;
    bool is_divided = exchange_divides(trainer);
    int slots = is_divided
                    ? adders_slots(trainer->generation.range.leaves, trainer->generation.replicas)
                    : trainer->generation.range.slots;

    if (state_reserve_slots(&trainer->state, slots, err) < 0)
        return err->code;
    groups->communication.slots = trainer->state.slots;
    if (!is_divided)
        return 0;
    divided_sum_release(&groups->divided);
    divided_sum_init(&groups->divided, &trainer->job.plan.program, &trainer->placement.map,
                     trainer->generation.place.replica, trainer->state.slots);
    groups->communication.divided = &groups->divided;
    if (exchange_gathers(trainer)) {
        gather_release(&groups->gather);
        gather_init(&groups->gather, &trainer->job.plan.program, &trainer->placement.map,
                    trainer->generation.place.replica);
        groups->communication.gather = &groups->gather;
    }
    return reserve_workspace(trainer, err);
}

void exchange_settle(const struct trainer *trainer)
{
    if (trainer->net.groups.library)
        trainer->net.groups.library->settle();
}

void exchange_close(struct trainer *trainer)
{
    struct exchange_groups *groups = &trainer->net.groups;

    if (trainer->device.executor)
        (void)executor_bind(trainer->device.executor, NULL, NULL);
    hierarchy_close(&groups->communication.hierarchy);
    for (unsigned int axes = 0; axes <= OP_GROUP_WORLD; axes++) {
        comm_free(groups->made[axes]);
        groups->made[axes] = NULL;
    }
    groups->communication = (struct communication){0};
    divided_sum_release(&groups->divided);
    gather_release(&groups->gather);
    comm_free(trainer->net.alone);
    trainer->net.cell = trainer->net.alone = NULL;
}

void exchange_release(struct trainer *trainer)
{
    struct backend *memory = trainer->device.memory_backend;

    if (memory)
        memory->vtable->deallocate_host(memory, trainer->net.groups.workspace);
    trainer->net.groups.workspace = NULL;
    trainer->net.groups.workspace_bytes = 0;
}
