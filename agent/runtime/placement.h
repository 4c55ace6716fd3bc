/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_PLACEMENT_H
#define AGENT_RUNTIME_PLACEMENT_H

/*
 * The plan of the generation, and the part of the state that this rank holds by it. The trainer
 * starts before it knows the number of ranks; each generation is planned with its own number.
 */

#include "libfleet/plan/memory_plan.h"
#include "libfleet/plan/ownership.h"

struct fleet_error;
struct plan;
struct trainer;

#define PLACEMENT_NO_RANK (-1) /* before the first generation: only what every rank holds */

struct placement {
    struct ownership map;
    int replica; /* this rank's place in the map, or PLACEMENT_NO_RANK */
    struct memory_plan memory;
    int lost; /* 1 + the shard that was lost with its holders, so that the state was given up; 0 */
};

/* The placement of rank `replica` of `replicas`. -EOVERFLOW as memory_plan_build(). Release
 * *out. */
int placement_build(const struct plan *plan, int replicas, int replica, struct placement *out,
                    struct fleet_error *err);
void placement_release(struct placement *placement);

/*
 * Plan the job for `world` ranks; PLAN_ANY_WORLD: the number is not known yet. A call after the
 * first one keeps the state and allocates the other memory again; pointers into the program become
 * invalid. -EINVAL: all errors of the job, or a world that needs another state. -ENOMEM.
 */
int placement_plan(struct trainer *trainer, int world, struct fleet_error *err);

#endif
