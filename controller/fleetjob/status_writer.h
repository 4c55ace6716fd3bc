/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_STATUS_WRITER_H
#define CONTROLLER_FLEETJOB_STATUS_WRITER_H

/*
 * Writes the status of one job, one request at a time. Each is a merge patch on the status
 * subresource, so fields that only a newer version knows stay as they are.
 *
 *  (1) Every write carries the resourceVersion that it rests on, and the UID. A write that rests
 *      on an old state, or on a job of that name which no longer exists, is refused.
 *  (2) A record of the rendezvous replaces only an older one. It is refused if the status has a
 *      newer epoch; or a generation that the asking hub does not know, because that hub was made
 *      from an old state; or a restart that another hub began and that is not in the history yet;
 *      or the end of the job.
 *  (3) status_writer_is_current() is false from a write until the cache has seen it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/kube/io.h"
#include "libfleet/rendezvous/hub.h"

struct fleet_error;
struct status_writer;

#define STATUS_WRITER_PATIENCE_MS 30000.0 /* for the cache to see a write */

/* For one job, which is the object with this `uid` alone. Strings are copied. */
struct status_writer *status_writer_new(struct kube_io *io, const char *namespace_,
                                        const char *name, const char *uid);

/* Requests under way are dropped. NULL is fine. */
void status_writer_free(struct status_writer *writer);

/* The cache has this version of the job. */
void status_writer_seen(struct status_writer *writer, const char *resource_version);

/* The cache has all that was written, and nothing is on its way. */
bool status_writer_is_current(const struct status_writer *writer, double now_ms);

/*
 * Write what differs between the two states of the job. `before` is its status in `version` of it
 * (NULL = the newest that is known): the cache may still be stale after the wait; then the write
 * fails with 409, so rule (1) holds. `raw` is the JSON that `before` was read from: its unknown
 * members stay, also in entries of lists. NULL: there is none. Only when
 * status_writer_is_current(). `done` gets NULL or the error: kube_is_conflict() means that another
 * client has changed the job. If nothing differs, `done` runs within this call.
 */
typedef void status_writer_done(void *user, const struct fleet_error *err);
void status_writer_write(struct status_writer *writer, const char *version,
                         const struct fleetjob_status *before, const cJSON *raw,
                         const struct fleetjob_status *after, status_writer_done *done, void *user);

enum status_writer_result {
    STATUS_WRITER_RECORDED, /* the API server has it now */
    STATUS_WRITER_FAILED,   /* not now */
    STATUS_WRITER_OUTDATED, /* never: (2) */
};

/*
 * Record a generation with the restarts counted so far, as soon as nothing else is on its way; a
 * newer one takes the place of one that waits. `lineage` ends with it. `known` is the newest that
 * the hub knows to have been recorded or asked for before.
 */
typedef void status_writer_recorded(void *user, struct fleet_generation generation,
                                    enum status_writer_result result);
void status_writer_record(struct status_writer *writer, const struct hub_record *record,
                          const struct fleet_lineage *lineage, struct fleet_generation known,
                          status_writer_recorded *done, void *user);

#endif
