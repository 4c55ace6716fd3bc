/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_JUDGE_H
#define LIBFLEET_API_JUDGE_H

/*
 * Find every error of a FleetJob in its text, all at once: parts that do not fit together
 * (validation.h), settings that the built-in trainer cannot run, names that the model's program
 * does not have, a plan that exceeds a worker's memory. The controller (condition Accepted),
 * `fleetjob validate`, `fleetjob run` and `fleetjob plan` use it.
 *
 * A value that could not be read suppresses only the checks that depend on it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/plan/plan.h"

struct fleet_errors;
struct fleetjob;

struct judge_options {
    bool in_cluster;       /* as in validation.h */
    bool without_image;    /* the same */
    bool only_explain;     /* settings that cannot run are listed in the plan, and are no errors */
    int64_t world_size;    /* ranks; 0 = as `worker` says */
    int threads;           /* compute threads of a trainer; 0 = not known */
    bool on_one_machine;   /* all ranks are; else the processes of a pod are */
    bool encrypts_data;    /* of jobs whose dataEncryption is Auto */
    const char *cuda_comm; /* FLEET_CUDA_COMM of workers whose template has none; NULL = none */
    const enum strategy_policy *policy; /* instead of the job's; NULL = the job's */
};

/*
 * Judge a job that fleetjob_decode() has read, with or without success. `errors` may hold what
 * decoding found. `warnings` (may be NULL) gets values that are legal but unlikely. Returns true
 * and *out_plan (release it) if there is a plan, else false. A job with a plan may still have
 * errors (memory).
 */
bool judge_job(const struct fleetjob *job, const struct judge_options *options,
               struct plan *out_plan, struct fleet_errors *errors, struct fleet_errors *warnings);

/*
 * The number of workers with which a worker of an elastic job needs most memory: a worker of fewer
 * may hold larger shards, or more partial sums. Of more than JUDGE_SIZES numbers from minReplicas
 * on, only the first ones are planned. Returns true and *out_plan (release it) if a worker needs
 * more than in `plan`, the plan of the job as it is written.
 */
#define JUDGE_SIZES 16
bool judge_tightest(const struct fleetjob *job, const struct judge_options *options,
                    const struct plan *plan, struct plan *out_plan, int64_t *out_workers);

#endif
