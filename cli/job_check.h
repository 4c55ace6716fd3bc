/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_JOB_CHECK_H
#define CLI_JOB_CHECK_H

/*
 * All checks of a job before it runs: of its text (libfleet/api/judge.h) and of this machine
 * (machine_check.h). `fleetjob validate`, `run` and `plan` all use it, so that none accepts a job
 * that another one refuses. They differ in what they do with a result.
 *
 *             wrong in the text   wrong on this machine   does not fit this machine
 *   validate  error               error                   note
 *   run       error               error                   error
 *   plan      error               warning                 note
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"

struct fleetjob;

enum job_check_for {
    JOB_CHECK_VALIDATE,
    JOB_CHECK_RUN,
    JOB_CHECK_PLAN,
};

struct job_check_options {
    enum job_check_for command;
    const char *file;                   /* that the job was read from: relative paths start there */
    bool in_cluster;                    /* judge it as a cluster does */
    int64_t world_size;                 /* ranks; 0 = as the job says */
    const enum strategy_policy *policy; /* instead of the job's; NULL = the job's */
};

struct job_check {
    struct fleet_errors errors;   /* the job is refused */
    struct fleet_errors warnings; /* legal, but probably a mistake */
    struct fleet_errors notes;    /* facts that are not known here, or do not hold here */
    bool has_plan;
    struct plan plan;
};

/*
 * Check what fleetjob_decode() has read; `check->errors` may hold what it found. Completes the job
 * with what its files say (vocabulary). Release *check.
 */
void job_check(struct fleetjob *job, const struct job_check_options *options,
               struct job_check *check);
void job_check_release(struct job_check *check);

#endif
