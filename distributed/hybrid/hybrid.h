/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_HYBRID_HYBRID_H
#define DISTRIBUTED_HYBRID_HYBRID_H

/* What the sources of fleet_strategy.h share. */

/* error.h comes first: fleet.h defines the same structure where error.h is absent. */
/* clang-format off */
#include "distributed/distributed.h"
#include "include/fleet/fleet_strategy.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/topology.h"
/* clang-format on */

struct fleet_strategy {
    struct strategy values;
};

/* Merge a file of Paddle's text format into `values`; on failure they are unchanged. */
int strategy_object_load(struct strategy *values, const char *path, struct fleet_error *err);

/* Read the strategy of the FleetJob, FLEET_STRATEGY_FILE, into `values`, which have the defaults.
 * Returns 1; 0: there is no such file. Errors as above, with the name of the variable. */
int strategy_of_job(struct strategy *values, struct fleet_error *err);

/* What fleet_init() began; NULL before it. */
struct hybrid {
    struct strategy strategy;
    const struct fleet_role *role;
    struct fleet_role *own_role; /* of the variables, owned */
    bool is_collective;
    struct topology topology;                  /* of a collective job */
    struct fleet_group *groups[TOPOLOGY_AXES]; /* of this rank, NULL: the degree is 1 */
    struct fleet_group *alone;                 /* of this rank only, made when it is needed */
};

const struct hybrid *hybrid_get(void);

/* The group over which gradients are averaged: that of the data axis, which may be this rank alone.
 * All ranks call it alike. */
int hybrid_data_group(struct fleet_group **out, struct fleet_error *err);

#endif
