/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_TOPOLOGY_H
#define LIBFLEET_STRATEGY_TOPOLOGY_H

/*
 * The ranks as a grid with one axis for each kind of parallelism. It decides which ranks work
 * together.
 *
 * Invariants, which code and tests quote by number:
 *  (1) world = product of the degrees.
 *  (2) rank <-> coordinates is a bijection. The axis order[0] varies fastest. The order is model,
 *      sequence, sharding, pipeline, data, unless hybrid_configs.order gives another.
 *  (3) A group of an axis is the ranks that differ only along that axis. The groups of an axis
 *      partition the world; each has as many ranks as the axis's degree. The ranks of a group
 *      ascend with the coordinate.
 *
 * A degree is the first of these fields that is set. If two of them are set, they must be equal:
 *   model     hybrid_configs.mp_degree, sharding_configs.mp_degree (with sharding),
 *             tensor_parallel_configs.tensor_parallel_degree (with tensor_parallel); else 1
 *   sequence  hybrid_configs.sep_degree; else 1
 *   sharding  hybrid_configs.sharding_degree; with sharding and several groups (hybrid_dp, or
 *             dp_degree, mp_degree or pp_degree given) sharding_group_size; with sharding otherwise
 *             all remaining ranks; without sharding 1. Ranks that are not several whole groups of
 *             hybrid_dp, where no other degree is given, are one group: strategy_check() refuses
 *             them unless they are what a loss left
 *   pipeline  hybrid_configs.pp_degree, sharding_configs.pp_degree (with sharding); with pipeline
 *             otherwise all remaining ranks, or only the smallest prime factor of their number if
 *             another knob needs ranks, too (sharding, localsgd, adaptive_localsgd, dgc,
 *             fp16_allreduce, sync_batch_norm); without pipeline 1
 *   data      hybrid_configs.dp_degree unless -1; with sharding and given degrees but without
 *             hybrid_dp: sharding_configs.dp_degree; else all remaining ranks
 *
 * With sharding and sharding_configs._dp_as_optimizer_sharding, a sharding axis of one rank and the
 * data axis then change their roles: the ranks that data parallelism has are the sharding group.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/limits.h"
#include "libfleet/strategy/strategy.h"

struct fleet_errors;
struct topology_job;

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
    bool data_is_sharded;                    /* the sharding axis is that of data parallelism */
};

/*
 * The grid of `world` ranks, 1 … TOPOLOGY_WORLD_MAX. -EINVAL if the product of the degrees is not
 * the world, or if degrees contradict each other: the errors name them and the nearest valid ones
 * that `job` allows (topology_fit.h; NULL: nothing is known of it). Whether `job` allows the grid
 * itself is not asked. Each reported path starts with `path`. Call strategy_check() before.
 */
int topology_build(const struct strategy *s, int world, const struct topology_job *job,
                   const char *path, struct topology *out, struct fleet_errors *errors);

/*
 * The fewest ranks that the degrees of the strategy allow: the product of the given degrees, at
 * least 1 and at most TOPOLOGY_WORLD_MAX; hybrid_dp counts as two groups. A trainer plans with this
 * number, because it starts before it knows the number of ranks, and because that number may change
 * while it runs.
 */
int topology_least_world(const struct strategy *s);

/* The same degrees and order. */
bool topology_equal(const struct topology *a, const struct topology *b);

/* "model", "sequence", "sharding", "pipeline", "data". */
const char *topology_axis_name(enum topology_axis axis);

/* The coordinates of `rank`, and back. */
void topology_coordinates(const struct topology *t, int rank, int out[TOPOLOGY_AXES]);
int topology_rank(const struct topology *t, const int coordinates[TOPOLOGY_AXES]);

/* The group of `rank` along `axis`: writes degree[axis] ranks and returns the position of `rank`
 * among them. */
int topology_group(const struct topology *t, enum topology_axis axis, int rank, int *out_ranks);

/* The rank with the same coordinates but `coordinate` on `axis`. */
int topology_neighbour(const struct topology *t, enum topology_axis axis, int rank, int coordinate);

#endif
