/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_RESUME_DIVISION_H
#define CLI_RESUME_DIVISION_H

#include <cjson/cJSON.h>

struct fleet_errors;
struct fleetjob;

/*
 * A job with autoParallel auto_parallel that goes on from a checkpoint keeps the division that the
 * checkpoint was trained with, if it fits the number of workers (libfleet/api/divisions.h): decodes
 * `job` again, from `root`. Nothing happens without a local checkpoint of the same model. `file` is
 * the job's, from which relative paths start.
 */
void resume_division(cJSON *root, const char *file, struct fleetjob *job,
                     struct fleet_errors *errors);

#endif
