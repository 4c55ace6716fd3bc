/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_PLACEMENT_H
#define AGENT_RUNTIME_PLACEMENT_H

/*
 * The plan of the generation, and what this rank holds by it. The trainer opens before it knows how
 * many ranks there will be; each generation is planned with its own number.
 */

#include "libfleet/plan/memory_plan.h"
#include "libfleet/plan/ownership.h"

struct fleet_error;
struct plan;
struct trainer;

#define PLACEMENT_NO_RANK (-1) /* before the first generation: only what every rank holds */

struct placement {
    struct ownership map;
    int replica; /* the own place in the map, or PLACEMENT_NO_RANK */
    struct memory_plan memory;
};

/* Of rank `replica` of `replicas`. -EOVERFLOW as memory_plan_build(). Release *out. */
int placement_build(const struct plan *plan, int replicas, int replica, struct placement *out,
                    struct fleet_error *err);
void placement_release(struct placement *placement);

/*
 * Plan the job for `world` ranks, PLAN_ANY_WORLD: not known yet. After the first time the state
 * stays as it is, and memory for the rest follows; pointers into the program become invalid.
 * -EINVAL: all that is wrong with the job, or a world with another state. -ENOMEM.
 */
int placement_plan(struct trainer *trainer, int world, struct fleet_error *err);

#endif
