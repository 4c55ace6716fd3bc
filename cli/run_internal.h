/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_RUN_INTERNAL_H
#define CLI_RUN_INTERNAL_H

/* What the files of `fleetjob run` share, for them alone: run.c, run_servers.c and
 * run_curve.c. */

#include <stdbool.h>
#include <stdint.h>

#include "cli/curves/curve.h"
#include "cli/job_file.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/plan/plan.h"

struct fleet_errors;
struct local_job;
struct message_step;
struct progress;

struct run_arguments {
    const char *file;
    struct job_file_changes changes;
    bool is_json, is_verbose, calibrates;
    const char *curve, *state_file; /* relative to the current folder; NULL = none */
};

/* The state of a run. */
struct run {
    struct run_arguments arguments;
    struct fleetjob job;
    char *folder;     /* absolute folder of the job file: relative paths of the job are relative to
                       * it */
    struct plan plan; /* if the job has a training block */
    struct progress *progress;
    struct local_job *local; /* while it runs */
    struct curve curve;
    bool has_stepped, has_earlier; /* a step was made; this run has looked for the record of earlier
                                    * runs */
    double recorded_ms;            /* when the losses were last written beside the checkpoints */
    bool has_told_record;
    int restarts; /* that counted */
    double started_ms;
    cJSON *links; /* of --calibrate; NULL = none */
};

/* ---- run_calibrate.c ------------------------------------------------------------------------- */

/* Measure this machine for the search of a job that has passed its checks, print and store the
 * rates, and let the job be read again with them. Returns 0, or -EINVAL with errors appended: no
 * search of the job uses rates, it has its own, or what plan_calibrate() says. */
int run_calibrate(struct run *run, struct fleet_errors *errors);

/* ---- run_servers.c --------------------------------------------------------------------------- */

/* Run a job with spec.server: its processes have no hub and no agents (launch_servers.h). Returns
 * the exit code; messages go to standard error. */
int run_servers(const struct run *run);

/* ---- run_curve.c ----------------------------------------------------------------------------- */

/* The file for the picture of the losses, heap; NULL = none. */
char *run_curve_path(const struct run *run);

/* Give the curve its title: the job and what it trains. */
void run_curve_describe(struct run *run);

/* Earlier runs of this job have made the steps up to `step`: take over their losses from the
 * record. */
void run_curve_take_earlier(struct run *run, int64_t step);

/* A committed step. The first one shows the step from which this run continues. */
void run_curve_note_step(struct run *run, const struct message_step *step);

/* Write the losses beside the checkpoints, if the job has them. */
void run_curve_keep(struct run *run);

/* True if the picture is drawn; a failure is a warning. `path` may be NULL. */
bool run_curve_draw(struct run *run, const char *path);

#endif
