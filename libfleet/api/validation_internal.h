/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_VALIDATION_INTERNAL_H
#define LIBFLEET_API_VALIDATION_INTERNAL_H

/* What the files of validation.h share, for them alone. */

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "libfleet/api/validation.h"

/* What every check reads. */
struct validation {
    const struct fleetjob *job;
    const struct validation_options *options;
    struct fleet_errors *errors, *warnings; /* warnings: NULL if the caller wants none */
};

/* Is the value of that field what the user wrote, and of the right kind? */
bool validation_knows(const struct validation *c, const char *path);

/* Could the block be read, even if a field in it is wrong? */
bool validation_can_read(const struct validation *c, const char *block);

/* A path of the job in field `name`; `is_written`: the job makes the file. */
void validation_path(const struct validation *c, const char *name, const char *path,
                     bool is_written);

/* spec.worker (validation_worker.c). */
void validation_worker(const struct validation *c);

/* command, args and env of the container must be lists. `front` is the path of
 * the container. */
void validation_container_lists(const struct validation *c, const cJSON *container,
                                const char *front);

/* spec.server (validation_server.c). */
void validation_server(const struct validation *c);

/* Strategy, batches, samples (validation_strategy.c). */
void validation_strategy(const struct validation *c);

/* spec.autoParallel (validation_auto_parallel.c). Each warning with a path below it names a key
 * that has no effect; the controller makes condition KeyIgnored of them. */
void validation_auto_parallel(const struct validation *c);

#endif
