/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_PLACEMENT_H
#define AGENT_RUNTIME_JOIN_PLACEMENT_H

/*
 * The plan of the generation, and the part of the state that this rank holds by it. The trainer
 * starts before it knows the number of ranks; each generation is planned with its own number.
 */

#include <stdbool.h>

#include "agent/runtime/state.h"
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
 * Plan the job for `rank` of `world` ranks; 0 of PLAN_ANY_WORLD: the number is not known yet. A
 * call after the first one keeps the state and allocates the other memory again; pointers into the
 * program become invalid. If the rank belongs to another cell than the memory, the state is given
 * up, and its memory is made again. -EINVAL: all errors of the job, or a world that needs another
 * state. -ENOMEM.
 */
int placement_plan(struct trainer *trainer, int world, int rank, struct fleet_error *err);

/* The same placement again, in new memory, without a state: `committed` is TRAINER_NO_STATE. The
 * first call makes the memory. -ENOMEM. */
int placement_begin(struct trainer *trainer, struct fleet_error *err);

/* How a map with `shards` shards divides the state of the trainer's program. */
enum state_division placement_division(const struct trainer *trainer, int shards);

/* A generation of the job may give this rank a part of the optimizer states only: memory waits for
 * it. The same on all ranks. */
bool placement_may_divide(const struct trainer *trainer);

/* Set the state that the seeds alone give. */
void placement_initialize(struct trainer *trainer);

#endif
