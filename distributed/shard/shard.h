/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_SHARD_SHARD_H
#define DISTRIBUTED_SHARD_SHARD_H

/* What the sources of fleet_shard.h share. */

/* error.h comes first: fleet.h defines the same structure where error.h is absent. */
/* clang-format off */
#include "distributed/distributed.h"
#include "include/fleet/fleet_shard.h"
#include "distributed/mesh/dtensor.h"
/* clang-format on */

enum shard_level {
    SHARD_NONE, /* every rank updates everything: fleet_distributed_optimizer() without sharding */
    SHARD_OS,
    SHARD_P_G_OS,
};

/* A parameter of fleet_group_shard(). It counts as a flat one of `elements`. */
struct shard_param {
    char *name;                 /* owned */
    float *value, *gradient;    /* the caller's, [elements] */
    struct fleet_tensor tensor; /* its type and shape */
    int64_t elements;
    bool is_fixed;
    bool is_divided;            /* "p_g_os": only a part of the value is here */
    struct placement placement; /* of the state, and of a divided value, on the mesh of the group */
    int64_t first, count;       /* this rank's part of the state */
    float *part;                /* [count] of a divided value, owned */
    float *sums;                /* [elements], of merge_steps; NULL: one call is one update */
    float *reduced;             /* [count] during a step, owned */
    float *state[FLEET_STATES_MAX]; /* [count] each, owned */
};

struct fleet_group_sharded {
    struct fleet_group *group;
    struct fleet_mesh *mesh; /* of the group's ranks */
    struct fleet_shard_options options;
    struct fleet_optimizer optimizer;
    struct shard_param *params; /* [count] */
    int count;
    int calls;    /* since the last update */
    int64_t step; /* updates */
};

/* As fleet_group_shard(), with a level that it does not offer by name. */
int shard_new(const char *what, const struct fleet_ddp_tensor *tensors, int count,
              const struct fleet_optimizer *optimizer, enum shard_level level,
              const struct fleet_shard_options *options, struct fleet_group *group,
              struct fleet_group_sharded **out, struct fleet_error *err);

/* Gather a flat tensor; `part` is this rank's. *out is new, [elements]. */
int shard_gather(const char *what, struct fleet_group_sharded *sharded,
                 const struct shard_param *param, const float *part, void **out,
                 struct fleet_error *err);

/* -EINVAL: no update function, a wrong number of states. */
int shard_check_optimizer(const char *what, const struct fleet_optimizer *optimizer,
                          struct fleet_error *err);

/* `states` arrays of `count` zeros. -ENOMEM: none is left. */
int shard_states_new(int states, int64_t count, float **out);
void shard_states_release(float **states);

#endif
