/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_MACHINE_CHECK_H
#define CLI_MACHINE_CHECK_H

/*
 * Checks of a job that only a machine can make: are the data there and of the right kind, can
 * outputs be written, do the workers fit into the memory? Paths on a volume of the cluster do not
 * exist here; one note lists them.
 */

#include <stdbool.h>

struct fleet_errors;
struct fleetjob;
struct plan;

struct machine_check_options {
    const char *folder; /* of the job file, absolute: relative paths start there */
    bool in_cluster;    /* nothing of it will run here */
    bool will_run;      /* here, now: paths of volumes are those of this machine */
};

/*
 * Data, tokenizer's files, initial weights, folders of checkpoints, curve and TensorBoard. `errors`
 * gets the errors of a run here, `notes` the paths that cannot be checked here. It leaves no new
 * file behind.
 */
void machine_check_files(const struct fleetjob *job, const struct machine_check_options *options,
                         struct fleet_errors *errors, struct fleet_errors *warnings,
                         struct fleet_errors *notes);

/* All workers of the job together against this machine's memory. */
void machine_check_memory(const struct fleetjob *job, const struct plan *plan,
                          struct fleet_errors *errors);

#endif
