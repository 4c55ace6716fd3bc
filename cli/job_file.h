/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_JOB_FILE_H
#define CLI_JOB_FILE_H

/*
 * A FleetJob from a file, as the commands that run or plan one need it: the command line counts
 * before the file.
 */

#include <stdint.h>

#include "libfleet/api/fleetjob.h"

struct fleet_errors;

struct job_file_changes {
    int64_t workers; /* worker.replicas, and its limits if they are narrower; 0 = as it is */
    int64_t steps;   /* training.steps; 0 = as it is */
    /* Relative to the current folder; NULL = as it is. */
    const char *data_path;       /* training.data.path */
    const char *checkpoint_path; /* training.checkpoint.path */
    const cJSON *links;          /* autoParallel.links; NULL = as it is */
};

/*
 * Read, change and decode. `out` can be released after any result. -EINVAL with an error
 * appended: there is no FleetJob to look at. 0 although errors were appended: job_check()
 * (job_check.h) can say what else is wrong. A strategy file that the job names is loaded
 * (strategy_load.h), and a division is kept (resume_division.h).
 */
int job_file_read(const char *path, const struct job_file_changes *changes, struct fleetjob *out,
                  struct fleet_errors *errors);

/* The folder of `path`, absolute; heap. Relative paths of the job start there. */
char *job_file_folder(const char *path);

/* The command of a job that brings its own trainer, as one argument vector: command and args of the
 * template's first container. NULL if it has none. */
char **job_file_command(const struct fleetjob *job);

/* The variables of the template's first container that have a value, as "NAME=value"; NULL if there
 * are none. */
char **job_file_environment(const struct fleetjob *job);

/* The same for the servers of a job with spec.server. */
char **job_file_server_command(const struct fleetjob *job);
char **job_file_server_environment(const struct fleetjob *job);

/* Free any of these lists. NULL is fine. */
void job_file_free_command(char **command);

/* Ranks of the job at its number of workers. */
int job_file_world(const struct fleetjob *job);

#endif
