/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_GONE_JOBS_H
#define CONTROLLER_FLEETJOB_GONE_JOBS_H

/*
 * UIDs that belong to no FleetJob any more. Without them, workers of a job that was deleted with
 * `--cascade=orphan` would dial for ever.
 *
 * Caches may be stale, so the API server is asked for the jobs of that name, without its own cache
 * (a list without resourceVersion). A UID that is gone stays gone. A UID that exists (its job may
 * be suspended or finished) is asked about again after GONE_JOBS_AGAIN_MS at the earliest.
 */

#include <stdbool.h>
#include <stddef.h>

struct gone_jobs;
struct kube_io;

#define GONE_JOBS_AGAIN_MS 30000.0
#define GONE_JOBS_MAX      4096 /* UIDs that are remembered; more are not remembered */

/* `namespaces` [count] are those that are watched, 0: all; borrowed for its life. */
struct gone_jobs *gone_jobs_new(struct kube_io *io, const char *const *namespaces, size_t count);
void gone_jobs_free(struct gone_jobs *jobs); /* NULL is fine */

/* Is the job known to be gone? If that is not known, the API server is asked, and a later call has
 * the answer. False for a `name` that is "" or that no job can have. */
bool gone_jobs_ask(struct gone_jobs *jobs, const char *uid, const char *name);

#endif
