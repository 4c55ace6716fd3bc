/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_JUDGE_H
#define LIBFLEET_API_JUDGE_H

/*
 * All that is wrong with a FleetJob as far as its text says, whatever the kind of error, at once:
 * what must fit together (validation.h), what the built-in trainer cannot run, what the model's
 * program does not have, what a worker's memory cannot hold. The controller (condition Accepted),
 * `fleetjob validate`, `fleetjob run` and `fleetjob plan` all ask here.
 *
 * A value that could not be read hides only what depends on it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/plan/plan.h"

struct fleet_errors;
struct fleetjob;

struct judge_options {
    bool in_cluster;    /* as in validation.h */
    bool without_image; /* the same */
    bool only_explain;  /* what the built-in trainer cannot run is no error, but in the plan */
    int64_t world_size; /* ranks; 0 = as `worker` says */
    int threads;        /* compute threads of a trainer; 0 = not known */
    const enum strategy_policy *policy; /* instead of the job's; NULL = the job's */
};

/*
 * Judge a job that fleetjob_decode() has read, with or without success; `errors` may hold what
 * decoding found, `warnings` (may be NULL) gets what is legal and odd. Returns true and *out_plan
 * (release it) if there is a plan, false if there is none; a job may have a plan and errors all the
 * same (memory).
 */
bool judge_job(const struct fleetjob *job, const struct judge_options *options,
               struct plan *out_plan, struct fleet_errors *errors, struct fleet_errors *warnings);

#endif
