/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/plan_connections.h"

#include <stdbool.h>

#include "libfleet/plan/plan_cost_internal.h"
#include "libfleet/plan/runtime_connections.h"
#include "libfleet/plan/runtime_hierarchy.h"
#include "libfleet/program/op.h"
#include "libfleet/strategy/cells.h"

/* Axes along which the ranks of a replica lie. */
#define CELLS (1u << TOPOLOGY_MODEL | 1u << TOPOLOGY_SEQUENCE | 1u << TOPOLOGY_PIPELINE)

/* Ranks that follow each other are on one machine. */
static bool is_near(const struct plan *plan, int rank)
{
    return rank < (plan->machine_ranks > 1 ? plan->machine_ranks : 1);
}

static size_t bytes_of(const struct plan *plan, int ranks, int neighbours)
{
    int channels = plan->selection.final.nccl_comm_num;
    struct runtime_connections connections = {.ranks = ranks,
                                              .neighbours = neighbours,
                                              .channels = channels > 1 ? channels : 1,
                                              .encrypts = plan->encrypts};

    return runtime_connections_bytes(&connections);
}

/* The group of rank 0 along `axes`. The world has its communicator already. */
static size_t group_bytes(const struct plan *plan, unsigned int axes)
{
    const struct topology *grid = &plan->topology;
    int count = 0, near = 0;

    for (int r = 0; r < grid->world; r++) {
        int at[TOPOLOGY_AXES];
        bool is_member = true;

        topology_coordinates(grid, r, at);
        for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
            is_member &= at[axis] == 0 || axes & 1u << axis;
        count += is_member;
        near += is_member && is_near(plan, r);
    }
    return count == 1 || count == grid->world ? 0 : bytes_of(plan, count, near);
}

/* Blocks of the ranks that sum with rank 0, and the first ranks of the blocks. */
static size_t hierarchy_bytes(const struct plan *plan)
{
    const struct strategy *s = &plan->selection.final;
    int ranks = plan_replicas(plan), block = 0, near = 0, leaders = 0;
    size_t bytes = 0;

    if (s->use_hierarchical_allreduce)
        block = runtime_hierarchy_block(s->hierarchical_allreduce_inter_nranks, ranks);
    for (int r = 0; r < ranks && block > 0; r++) {
        bool here = is_near(plan, cells_rank(&plan->topology, (struct cell_place){.replica = r}));
        near += r < block && here;
        leaders += r % block == 0 && here;
    }
    if (block > 0)
        bytes = bytes_of(plan, block, near) + bytes_of(plan, ranks / block, leaders);
    return bytes;
}

size_t plan_connections_bytes(const struct plan *plan)
{
    const struct program *program = &plan->program;
    bool is_used[OP_GROUP_WORLD + 1] = {false};
    size_t bytes = 0;
    int near = plan->machine_ranks < plan->world ? plan->machine_ranks : plan->world;

    if (!plan->has_program || plan->world == 1 || (plan->machine_ranks <= 1 && !plan->encrypts))
        return 0;
    is_used[OP_GROUP_REPLICAS] = is_used[CELLS] = true;
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].section != PROGRAM_SECTION_UPDATE || !program->ops[i].attributes.owned)
            is_used[program->ops[i].attributes.group] = true;
    bytes = bytes_of(plan, plan->world, near > 1 ? near : 1) + hierarchy_bytes(plan);
    for (unsigned int axes = 1; axes < OP_GROUP_WORLD; axes++)
        if (is_used[axes])
            bytes += group_bytes(plan, axes);
    return bytes;
}
