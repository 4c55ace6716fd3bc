/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/reconciler_hub.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_job.h"
#include "controller/machinery/manager.h"
#include "controller/machinery/store.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/rest.h"

static void on_record_written(void *user, struct fleet_generation generation,
                              enum status_writer_result result)
{
    struct reconciler_job *job = user;

    if (!manager_is_leading(job->reconciler->manager))
        return; /* only the leader may apply the majority rule */
    if (result == STATUS_WRITER_RECORDED)
        hub_host_answer_record(job->host, generation, true);
    else if (result == STATUS_WRITER_OUTDATED)
        hub_host_drop(job->host); /* the next pass makes a hub from the status */
    else
        hub_host_answer_record(job->host, generation, false);
    manager_enqueue(job->reconciler->manager, job->key);
}

/*
 * The cache is current again: another hub has recorded a generation that our older hub does not
 * know.
 */
static bool is_outdated(const struct reconciler_job *job, const struct hub_record *record)
{
    const struct projection_job *cached = store_get(
        manager_store(job->reconciler->manager, job->reconciler->jobs_informer), job->key);
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_generation there = {0};

    if (!cached || fleet_json_parse(cached->text, cached->size, SIZE_MAX, &json, NULL) < 0)
        return false;
    (void)fleet_json_opt_int(json, "status.rendezvous.epoch", &there.epoch, NULL);
    (void)fleet_json_opt_int(json, "status.rendezvous.generation", &there.counter, NULL);
    return there.epoch < record->generation.epoch &&
           fleet_generation_compare(there, hub_host_recorded(job->host)) > 0;
}

static bool on_hub_record(void *user, const struct hub_record *record)
{
    struct reconciler_job *job = user;
    struct fleet_lineage lineage = hub_host_lineage(job->host, record);

    if (!manager_is_leading(job->reconciler->manager))
        return false; /* another leader will make generations; this process ends soon */
    if (is_outdated(job, record)) {
        manager_enqueue(job->reconciler->manager, job->key); /* the pass replaces the hub */
        return false;
    }
    status_writer_record(job->writer, record, &lineage, hub_host_recorded(job->host),
                         on_record_written, job);
    return false;
}

/* Delete an evicted worker's pod. Its job may be gone before the answer. */
struct eviction {
    const struct reconciler *reconciler;
    char *job; /* key */
};

static void on_evicted_deleted(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct eviction *eviction = user;

    (void)object;
    if (err && !kube_is_not_found(err))
        reconciler_job_trouble(eviction->reconciler, "Evicted worker was not deleted",
                               eviction->job, err);
    free(eviction->job);
    free(eviction);
}

/* Delete its pod. The controller then replaces the worker like any other missing one. */
static void evict(const struct reconciler_job *job, const char *pod_uid)
{
    struct reconciler *r = job->reconciler;
    const struct store *pods = manager_store(r->manager, r->pods_informer);
    const struct store_entry *entry;
    struct eviction *eviction;

    for (entry = store_first(pods, PROJECTION_POD_BY_JOB, job->uid); entry;
         entry = store_next(entry, PROJECTION_POD_BY_JOB)) {
        const struct projection_pod *pod = store_object(entry);
        struct kube_rest_request request = {.verb = KUBE_DELETE,
                                            .resource = &kube_pods,
                                            .namespace_ = job->namespace_,
                                            .name = pod->name,
                                            .uid = pod->uid};
        if (strcmp(pod->uid, pod_uid) != 0 || !manager_is_leading(r->manager))
            continue;
        eviction = calloc(1, sizeof(*eviction));
        fleet_assert(eviction);
        eviction->reconciler = r;
        eviction->job = fleet_dup_text(job->key);
        (void)kube_rest_start(r->io, &request, on_evicted_deleted, eviction);
        return;
    }
}

static void on_hub_event(void *user, const struct hub_event *event, bool is_step)
{
    struct reconciler_job *job = user;
    struct reconciler *r = job->reconciler;

    if (event->type == HUB_EVENT_ISOLATED)
        evict(job, event->pod_uid);
    if (is_step && kube_now_ms(r->io) < status_pace_due_ms(&job->pace))
        manager_enqueue_at(r->manager, job->key, status_pace_due_ms(&job->pace));
    else
        manager_enqueue(r->manager, job->key);
}

static bool leads_since(void *user, double since_ms)
{
    const struct reconciler_job *job = user;

    return manager_leads_since(job->reconciler->manager, since_ms);
}

struct hub_host_handlers reconciler_hub_handlers(struct reconciler_job *job)
{
    return (struct hub_host_handlers){.record = on_hub_record,
                                      .event = on_hub_event,
                                      .leads_since = leads_since,
                                      .namespace_ = job->namespace_,
                                      .name = job->key,
                                      .user = job};
}
