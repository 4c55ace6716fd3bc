/* SPDX-License-Identifier: Apache-2.0 */

/* fleet.init(): the role, the strategy, the world and the groups of its axes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/hybrid/hybrid.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/check.h"

_Static_assert((int)FLEET_AXIS_DATA == (int)TOPOLOGY_DATA, "axes have the same numbers");

static struct hybrid *state;

const struct hybrid *hybrid_get(void)
{
    return state;
}

static void release_state(struct hybrid *hybrid)
{
    strategy_release(&hybrid->strategy);
    fleet_role_free(hybrid->own_role);
    free(hybrid);
}

void fleet_release(void)
{
    if (!state)
        return;
    if (state->is_collective)
        fleet_env_release();
    release_state(state);
    state = NULL;
}

/* The world stays: other ranks may still be in it. */
static void begin_anew(void)
{
    (void)fprintf(stderr, "fleet_init: called again: it makes new groups\n");
    for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
        if (state->groups[axis])
            fleet_group_free(state->groups[axis]);
    if (state->alone)
        fleet_group_free(state->alone);
    release_state(state);
    state = NULL;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Every rank makes the groups of all ranks along the axis, in the order of their first ranks. */
static int make_axis(struct hybrid *hybrid, enum topology_axis axis, struct fleet_error *err)
{
    const struct topology *t = &hybrid->topology;
    FLEET_AUTO_FREE int *ranks = calloc((size_t)t->degree[axis], sizeof(*ranks));

    if (!ranks)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int rank = 0; rank < t->world && t->degree[axis] > 1; rank++) {
        struct fleet_group *group;
        int rc;

        if (topology_group(t, axis, rank, ranks) > 0)
            continue;
        rc = fleet_group_new(ranks, t->degree[axis], 0, &group, err);
        if (rc < 0)
            return rc;
        if (fleet_rank(group) >= 0)
            hybrid->groups[axis] = group;
    }
    return 0;
}

int hybrid_data_group(struct fleet_group **out, struct fleet_error *err)
{
    struct fleet_group *group;

    if (state->groups[TOPOLOGY_DATA] || state->topology.world == 1) {
        *out = state->groups[TOPOLOGY_DATA];
        return 0;
    }
    *out = state->alone;
    for (int rank = 0; !*out && rank < state->topology.world; rank++) {
        int rc = fleet_group_new(&rank, 1, 0, &group, err);

        if (rc < 0)
            return rc;
        if (fleet_rank(group) >= 0)
            state->alone = group;
    }
    *out = state->alone;
    return 0;
}

static int begin_collective(struct hybrid *hybrid, struct fleet_error *err)
{
    struct fleet_errors errors = {0};
    int rc = fleet_env_init(err), world;

    if (rc < 0)
        return rc;
    world = fleet_world_size(NULL);
    if (strategy_check(&hybrid->strategy, world, false, "", &errors, NULL) == 0)
        (void)topology_build(&hybrid->strategy, world, NULL, "", &hybrid->topology, &errors);
    rc = fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    for (int axis = 0; axis < TOPOLOGY_AXES && rc == 0; axis++)
        rc = make_axis(hybrid, (enum topology_axis)axis, err);
    return rc;
}

/* ---- beginning ------------------------------------------------------------------------------- */

static int choose_strategy(const struct fleet_strategy *given, struct strategy *out,
                           struct fleet_error *err)
{
    int rc = given ? 0 : strategy_of_job(out, err);

    if (given) {
        strategy_release(out);
        strategy_copy(out, &given->values);
    }
    return rc < 0 ? rc : 0;
}

static int choose_role(const struct fleet_role *given, struct hybrid *hybrid,
                       struct fleet_error *err)
{
    int rc = given ? 0 : fleet_role_from_env(hybrid->is_collective, &hybrid->own_role, err);

    if (rc < 0)
        return rc;
    hybrid->role = given ? given : hybrid->own_role;
    if (fleet_role_is_collective(hybrid->role) != hybrid->is_collective)
        return fleet_error(err, -EINVAL, "is_collective is %s, but not of the role",
                           hybrid->is_collective ? "true" : "false");
    return 0;
}

int fleet_init(const struct fleet_role *role, bool is_collective,
               const struct fleet_strategy *strategy, struct fleet_error *err)
{
    struct hybrid *hybrid = calloc(1, sizeof(*hybrid));
    int rc;

    if (!hybrid)
        return fleet_error(err, -ENOMEM, "fleet_init: out of memory");
    if (state)
        begin_anew();
    strategy_init(&hybrid->strategy);
    hybrid->is_collective = is_collective;
    rc = choose_strategy(strategy, &hybrid->strategy, err);
    if (rc == 0)
        rc = choose_role(role, hybrid, err);
    if (rc == 0 && is_collective)
        rc = begin_collective(hybrid, err);
    if (rc < 0) {
        release_state(hybrid);
        return fleet_error_wrap(err, "fleet_init");
    }
    state = hybrid;
    return 0;
}

/* ---- queries --------------------------------------------------------------------------------- */

const struct fleet_role *fleet_init_role(void)
{
    return state ? state->role : NULL;
}

static bool has_axes(enum fleet_axis axis)
{
    return state && state->is_collective && (int)axis >= 0 && (int)axis < TOPOLOGY_AXES;
}

int fleet_axis_degree(enum fleet_axis axis)
{
    return has_axes(axis) ? state->topology.degree[axis] : -1;
}

int fleet_axis_place(enum fleet_axis axis)
{
    int coordinates[TOPOLOGY_AXES];

    if (!has_axes(axis))
        return -1;
    topology_coordinates(&state->topology, fleet_rank(NULL), coordinates);
    return coordinates[axis];
}

int fleet_axis_group(enum fleet_axis axis, struct fleet_group **out, struct fleet_error *err)
{
    const char *what = "fleet_axis_group";

    if (!state || !state->is_collective)
        return fleet_error(err, FLEET_NOT_INITIALIZED,
                           "%s: call fleet_init() of a collective job first", what);
    if (!has_axes(axis))
        return fleet_error(err, -EINVAL, "%s: axis is %d, allowed: 0 to %d", what, (int)axis,
                           TOPOLOGY_AXES - 1);
    if (!state->groups[axis])
        return fleet_error(err, -EINVAL, "%s: the degree of the %s axis is 1: nothing to exchange",
                           what, topology_axis_name((enum topology_axis)axis));
    *out = state->groups[axis];
    return 0;
}
