/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_VALIDATION_H
#define LIBFLEET_API_VALIDATION_H

/*
 * Do the parts of a FleetJob fit together? All errors at once, each with its path. The same checks
 * run in the controller (condition Accepted), in `fleetjob validate` and before `fleetjob run`.
 *
 * Checked are: the name (so that pod names and labels fit), replicas within [min, max], volumes,
 * template beside the fields it replaces, paths, strategy and its knobs together at the job's size,
 * autoParallel's keys, degrees at each size of an elastic job, more workers than micro-batches,
 * pipeline's batch arithmetic, precision beside amp, failure rules, that there is something to run,
 * and whether an image's ENTRYPOINT can run.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/strategy/select.h"

struct fleet_errors;
struct fleetjob;

struct validation_options {
    bool in_cluster;    /* paths must be absolute and checkpoints lie on a volume */
    bool without_image; /* workers are processes of this machine: no image says what to start */
    int64_t world_size; /* check for this many ranks instead of those of `worker`; 0 = not */
    const enum strategy_policy *policy; /* instead of the job's; NULL = the job's */
};

/*
 * Append errors to `errors`, and unlikely values and fields without an effect to `warnings` (may be
 * NULL). Checks that depend on a value that could not be decoded are skipped (fleetjob.h,
 * `unread`). Returns 0, or -EINVAL if errors were appended.
 */
int validation_check(const struct fleetjob *job, const struct validation_options *options,
                     struct fleet_errors *errors, struct fleet_errors *warnings);

#endif
