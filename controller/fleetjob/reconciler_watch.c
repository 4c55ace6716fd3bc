/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/reconciler_watch.h"

#include <string.h>

#include "controller/fleetjob/pod_labels.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_job.h"
#include "controller/machinery/expectations.h"
#include "controller/machinery/manager.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/kube/meta.h"

void reconciler_job_changed(void *user, const char *key, const void *before, const void *after)
{
    struct reconciler *r = user;
    const struct projection_job *cached = after;
    struct reconciler_job *job = fleet_map_get(&r->jobs, key);

    job_metrics_change(&r->job_metrics, key, before, after);
    if (job && cached && strcmp(job->uid, cached->uid) == 0)
        status_writer_seen(job->writer, cached->resource_version);
    manager_enqueue(r->manager, key);
}

static bool is_up(const struct projection_pod *pod)
{
    return pod && !pod->is_deleting &&
           (pod->phase == OBSERVED_PENDING || pod->phase == OBSERVED_RUNNING);
}

static bool is_worker(const struct projection_pod *pod)
{
    return pod->index >= 0 && pod->index < FLEETJOB_REPLICAS_MAX;
}

static void note_change(struct reconciler_job *job, const struct projection_pod *before,
                        const struct projection_pod *after, bool was_asked)
{
    if (!after && is_up(before) && !was_asked) {
        pod_labels_doubt(job, before);
        return;
    }
    if (!after)
        reconciler_remember_gone(job, before->uid);
    if (is_up(before) && (!after || after->is_deleting)) /* its agent has not ended */
        reconciler_note_vanished(job, before->index, before->attempt);
}

void reconciler_pod_changed(void *user, const char *key, const void *before, const void *after)
{
    struct reconciler *r = user;
    const struct projection_pod *pod = after ? after : before;
    const char *slash = strchr(key, '/');
    FLEET_AUTO_FREE char *namespace_ = strndup(key, slash ? (size_t)(slash - key) : 0);
    FLEET_AUTO_FREE char *owner = NULL;
    struct reconciler_job *job;
    bool was_asked = false;

    if (!pod->owner_uid || !pod->owner_name[0])
        return;
    fleet_assert(namespace_);
    owner = kube_meta_key(namespace_, pod->owner_name);
    job = fleet_map_get(&r->jobs, owner);
    if (job && strcmp(job->uid, pod->owner_uid) != 0)
        job = NULL;
    if (after)
        (void)expectations_meet(r->expectations, owner, EXPECT_CREATED, pod->name);
    if (!after || pod->is_deleting)
        was_asked = expectations_meet(r->expectations, owner, EXPECT_DELETED, pod->name);
    if (job && is_worker(pod))
        note_change(job, before, after, was_asked);
    manager_enqueue(r->manager, owner);
}

/* Only the deletion of a Service matters, and the address of the servers' Service. */
void reconciler_service_changed(void *user, const char *key, const void *before, const void *after)
{
    struct reconciler *r = user;
    const struct projection_service *service = after ? after : before, *old = before;
    const char *slash = strchr(key, '/');
    FLEET_AUTO_FREE char *namespace_ = strndup(key, slash ? (size_t)(slash - key) : 0);
    FLEET_AUTO_FREE char *job = NULL;

    if ((after && old && strcmp(service->address, old->address) == 0) ||
        (after && strcmp(service->address, "None") == 0) || !service->job_name[0])
        return;
    fleet_assert(namespace_);
    job = kube_meta_key(namespace_, service->job_name);
    if (fleet_map_get(&r->jobs, job))
        manager_enqueue(r->manager, job);
}
