/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_LINEAGE_H
#define LIBFLEET_BASE_LINEAGE_H

/*
 * The generations whose steps count, oldest first.
 *
 * Steps are numbered from 1. `first_step` is the first step that a generation commits, or may
 * commit: it goes on from the state of the step before, or begins the job if that is 0. Its steps
 * count up to the first step of the next entry.
 *
 * A state, in memory or in a checkpoint, has the number of the last step committed in it; 0 is the
 * state that training starts from.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/generation.h"

#define FLEET_LINEAGE_MAX 20 /* entries; of a longer list the oldest are left out */

struct fleet_lineage_entry {
    struct fleet_generation generation;
    int64_t first_step;
};

struct fleet_lineage {
    struct fleet_lineage_entry entries[FLEET_LINEAGE_MAX]; /* [count], oldest first */
    size_t count;
};

/*
 * Does the state of `step`, reached in `generation`, count? It does if its generation is listed (or
 * is older than the first one listed), and no newer one listed has a first step up to `step`.
 * Always false for an empty list.
 */
bool fleet_lineage_has(const struct fleet_lineage *lineage, struct fleet_generation generation,
                       int64_t step);

/* The generation that made `step`, of those up to `generation`, whose members held that step: the
 * newest one listed whose first step is not above it; none, if no such one is listed. */
struct fleet_generation fleet_lineage_maker(const struct fleet_lineage *lineage,
                                            struct fleet_generation generation, int64_t step);

/* Was this step committed in `generation` itself, and does it count? False if that generation is
 * not listed. */
bool fleet_lineage_made(const struct fleet_lineage *lineage, struct fleet_generation generation,
                        int64_t step);

#endif
