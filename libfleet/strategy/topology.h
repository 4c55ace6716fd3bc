/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_TOPOLOGY_H
#define LIBFLEET_STRATEGY_TOPOLOGY_H

/*
 * Which ranks work together on what: the world as a grid with one axis for each kind of
 * parallelism.
 *
 * Invariants, quoted by number in code and tests:
 *  (1) world = product of the degrees.
 *  (2) rank <-> coordinates is a bijection; the axis order[0] varies fastest. Unless
 *      hybrid_configs.order says otherwise the order is model, sequence, sharding, pipeline, data.
 *  (3) The groups of an axis (ranks that differ only there) partition the world into groups of
 *      that axis's degree; ranks of a group ascend with the coordinate.
 *
 * Where a degree comes from, the first that is set; two that are set must be equal:
 *   model     hybrid_configs.mp_degree, sharding_configs.mp_degree (with sharding),
 *             tensor_parallel_configs.tensor_parallel_degree (with tensor_parallel); else 1
 *   sequence  hybrid_configs.sep_degree; else 1
 *   sharding  hybrid_configs.sharding_degree; with sharding and several groups (hybrid_dp, or
 *             dp_degree, mp_degree or pp_degree given) sharding_group_size; with sharding else all
 *             that is left over; without sharding 1
 *   pipeline  hybrid_configs.pp_degree, sharding_configs.pp_degree (with sharding); with pipeline
 *             else all that is left over, or only its smallest prime factor where another knob
 *             wants ranks too (sharding, localsgd, adaptive_localsgd, dgc, fp16_allreduce,
 *             sync_batch_norm); without pipeline 1
 *   data      hybrid_configs.dp_degree unless -1; with sharding and degrees given but not
 *             hybrid_dp: sharding_configs.dp_degree; else what is left over
 */

#include <stddef.h>

#include "libfleet/base/limits.h"
#include "libfleet/strategy/strategy.h"

struct fleet_errors;

#define TOPOLOGY_WORLD_MAX FLEET_WORLD_MAX

enum topology_axis {
    TOPOLOGY_MODEL,
    TOPOLOGY_SEQUENCE,
    TOPOLOGY_SHARDING,
    TOPOLOGY_PIPELINE,
    TOPOLOGY_DATA,
    TOPOLOGY_AXES,
};

struct topology {
    int world;
    int degree[TOPOLOGY_AXES];
    enum topology_axis order[TOPOLOGY_AXES]; /* fastest first */
};

/*
 * The grid of `world` ranks, 1 … TOPOLOGY_WORLD_MAX. -EINVAL if the degrees do not multiply to the
 * world or contradict each other: the errors name them and the nearest that would do. `path` stands
 * in front of each path. The strategy should have passed strategy_check().
 */
int topology_build(const struct strategy *s, int world, const char *path, struct topology *out,
                   struct fleet_errors *errors);

/*
 * The fewest ranks that the degrees of the strategy allow: the product of those that are given, at
 * least 1, at most TOPOLOGY_WORLD_MAX; two groups with hybrid_dp. A trainer plans with it: it
 * starts before it knows the number of ranks, and the number may change while it runs.
 */
int topology_least_world(const struct strategy *s);

/* "model", "sequence", "sharding", "pipeline", "data". */
const char *topology_axis_name(enum topology_axis axis);

/* The coordinates of `rank`, and back. */
void topology_coordinates(const struct topology *t, int rank, int out[TOPOLOGY_AXES]);
int topology_rank(const struct topology *t, const int coordinates[TOPOLOGY_AXES]);

/* The group of `rank` along `axis`: writes degree[axis] ranks, returns the place of `rank` in
 * it. */
int topology_group(const struct topology *t, enum topology_axis axis, int rank, int *out_ranks);

/* The rank with the same coordinates but `coordinate` on `axis`. */
int topology_neighbour(const struct topology *t, enum topology_axis axis, int rank, int coordinate);

#endif
