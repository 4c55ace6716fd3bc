/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_JOB_OBJECTS_H
#define CONTROLLER_FLEETJOB_JOB_OBJECTS_H

/*
 * The objects of a job besides its pods: a Secret, a Service for the names of the pods, one in
 * front of servers, and the PodGroup of a gang scheduler. They are made before the first pods of a
 * generation of the spec (prepare.c), and again if they are deleted.
 *
 *   Secret    create ── 409, the status records this content ──▶ done
 *                    ├─ 409, another content ──▶ delete ──▶ create
 *                    └─ refused, the status records this content ──▶ done: not known to be missing
 *   Service   only with spec.worker.hostnames
 *             in the cache and ours ──▶ done
 *             in the cache, of a job before us or orphaned by one ──▶ delete ──▶ create
 *             else create ── 409: it belongs to another object, and the job runs without it
 *   Service of servers   only with spec.server: its address is a part of all pods
 *             in the cache and ours, else create ── an error: the job has to wait. It asks for the
 *             address that status.servers records
 *   PodGroup  create ── 409 ──▶ patch
 *
 * The controller has no right to read a Secret. So the status records a digest of its content
 * (status.secretDigest), and the Secret is asked for again while a pod has a node and does not
 * start, and when a pod is made. Services are watched. A PodGroup is asked for again while a pod
 * waits for a node. docs/decisions/secrets-are-not-read.md has the alternatives.
 */

#include <stdbool.h>

struct reconciler_pass;

enum job_object {
    JOB_OBJECT_SECRET = 1,
    JOB_OBJECT_SERVICE = 2,
    JOB_OBJECT_GROUP = 4,
    JOB_OBJECT_SERVERS = 8,
    JOB_OBJECTS = 15, /* all of them */
};

/* Which objects to request now, as a set of enum job_object. *wait_ms: time until the next check,
 * -1 = when something changes. For a job that wants pods and whose spec was prepared. */
int job_objects_due(const struct reconciler_pass *pass, double *wait_ms);

/* Send the requests for this set as requests of the pass. */
void job_objects_make(struct reconciler_pass *pass, int objects);

/* The same for the Secret before pods are made, unless it was asked for a moment ago. */
void job_objects_check_secret(struct reconciler_pass *pass);

/* Does the Secret that is recorded hold what pods of this job need now? */
bool job_objects_has_secret(const struct reconciler_pass *pass);

/* The digest of the Secret's content as far as it is known: made or found by this controller, else
 * what the status says. "" = not known. Borrowed. */
const char *job_objects_secret_digest(const struct reconciler_pass *pass);

/* The address of the servers' Service: the recorded one, else that of the Service in the cache. ""
 * = not known. Borrowed. */
const char *job_objects_server_address(const struct reconciler_pass *pass);

#endif
