/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_GONE_JOBS_H
#define CONTROLLER_FLEETJOB_GONE_JOBS_H

/*
 * Which UIDs belong to no FleetJob any more. Workers whose job was deleted with `--cascade=orphan`
 * dial for ever otherwise.
 *
 * A cache may be behind, so none is believed: the API server is asked for the jobs of that name,
 * without a cache of its own (a list without resourceVersion). A UID that is gone stays gone. One
 * that is there, suspended or finished perhaps, is asked about again after GONE_JOBS_AGAIN_MS at
 * the earliest.
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

/* Is it known to be gone? If that is not known, it is asked, and a later call has the answer.
 * `name` "" or one that no job can have: never. */
bool gone_jobs_ask(struct gone_jobs *jobs, const char *uid, const char *name);

#endif
