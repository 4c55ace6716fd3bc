/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_JOB_FILE_H
#define CLI_JOB_FILE_H

/*
 * A FleetJob from a file, as the commands that run or plan one need it: what the command line says
 * wins over the file, then everything is checked, all errors at once.
 */

#include <stdint.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/program/plan.h"

struct fleet_errors;

struct job_file_changes {
    int64_t workers; /* worker.replicas, and its limits if they are narrower; 0 = as it is */
    int64_t steps;   /* training.steps; 0 = as it is */
    /* Relative to the current folder; NULL = as it is. */
    const char *data_path;       /* training.data.path */
    const char *checkpoint_path; /* training.checkpoint.path */
    const char *curve;           /* training.log.curve */
};

/*
 * Read, change, decode and check. `out` can be released whatever the result. -EINVAL with errors
 * appended: not YAML or JSON, no FleetJob, invalid; warnings (may be NULL) are what is only odd.
 */
int job_file_read(const char *path, const struct job_file_changes *changes, struct fleetjob *out,
                  struct fleet_errors *errors, struct fleet_errors *warnings);

/*
 * Read from the tokenizer's file what the job leaves to it: the size of the vocabulary. `path` is the
 * file of the job. -errno with an error about the file appended: the job can still be checked,
 * but its plan has no program.
 */
int job_file_complete(struct fleetjob *job, const char *path, struct fleet_errors *errors);

/* The plan at `world` ranks, with this machine's threads. As plan_build(); -EINVAL, too, if a worker
 * needs more memory than the job allows it. */
int job_file_plan(const struct fleetjob *job, int world, struct plan *out,
                  struct fleet_errors *errors);

/* The folder of `path`, absolute; heap. Relative paths of the job start there. */
char *job_file_folder(const char *path);

/* The command of a job that brings its own trainer, as one argument vector: command and args of the
 * template's first container. NULL if it has none. */
char **job_file_command(const struct fleetjob *job);

/* The variables of the template's first container that have a value, as "NAME=value"; NULL if there
 * are none. */
char **job_file_environment(const struct fleetjob *job);

/* Free either list. NULL is fine. */
void job_file_free_command(char **command);

/* Ranks of the job at its number of workers. */
int job_file_world(const struct fleetjob *job);

#endif
