/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/reconciler_job.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/job_search.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_hub.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/machinery/event_recorder.h"
#include "controller/machinery/expectations.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

#define GONE_MAX 4096 /* number of vanished pods that are remembered for a hub */

void reconciler_free_job(struct reconciler_job *job)
{
    if (job->pass)
        reconciler_free_pass(job->pass);
    hub_host_free(job->host);
    status_writer_free(job->writer);
    observe_plan_release(&job->plan);
    observe_plan_release(&job->found);
    pod_events_forget(&job->pod_events);
    for (size_t i = 0; i < job->gone_count; i++)
        free(job->gone_uids[i]);
    free(job->gone_uids);
    fleet_errors_release(&job->pod_errors);
    free(job->taken);
    refusal_clear(&job->refusal);
    free(job->refused);
    free(job->vanished);
    free(job->key);
    free(job->namespace_);
    free(job->name);
    free(job->uid);
    free(job);
}

static struct reconciler_job *new_job(struct reconciler *r, const char *key, const char *uid)
{
    struct reconciler_job *job = calloc(1, sizeof(*job));
    const char *slash = strchr(key, '/');
    struct hub_host_handlers handlers;

    fleet_assert(job && slash);
    job->reconciler = r;
    job->key = strdup(key);
    job->namespace_ = strndup(key, (size_t)(slash - key));
    job->name = strdup(slash + 1);
    job->uid = strdup(uid);
    fleet_assert(job->key && job->namespace_ && job->name && job->uid);
    handlers = reconciler_hub_handlers(job);
    job->host = hub_host_new(&r->network, uid, r->epoch, &handlers);
    job->writer = status_writer_new(r->io, job->namespace_, job->name, uid);
    (void)fleet_map_set(&r->jobs, key, job);
    return job;
}

void reconciler_forget_job(struct reconciler *r, const char *key)
{
    struct reconciler_job *job = fleet_map_remove(&r->jobs, key);

    expectations_forget(r->expectations, key);
    job_search_forget(r->search, key);
    if (!job)
        return;
    hub_host_end(job->host);
    reconciler_free_job(job);
}

struct reconciler_job *reconciler_find_job(struct reconciler *r, const char *key,
                                           const struct projection_job *cached)
{
    struct reconciler_job *job = fleet_map_get(&r->jobs, key);

    if (job && strcmp(job->uid, cached->uid) != 0) {
        reconciler_forget_job(r, key);
        job = NULL;
    }
    if (!job)
        job = new_job(r, key, cached->uid);
    status_writer_seen(job->writer, cached->resource_version);
    return job;
}

void reconciler_job_event(const struct reconciler_job *job, const char *resource_version,
                          bool is_warning, const char *reason, const char *text)
{
    struct event_object about = {.api_version = WELLKNOWN_API_VERSION,
                                 .kind = WELLKNOWN_KIND,
                                 .namespace_ = job->namespace_,
                                 .name = job->name,
                                 .uid = job->uid,
                                 .resource_version = resource_version ? resource_version : ""};

    if (job->is_doomed)
        return; /* it could not be written or read */
    event_recorder_record(job->reconciler->options.events, &about,
                          is_warning ? EVENT_WARNING : EVENT_NORMAL, reason, "Reconcile", "%s",
                          text);
}

void reconciler_remember_gone(struct reconciler_job *job, const char *uid)
{
    if (job->gone_count == GONE_MAX)
        return;
    job->gone_uids = fleet_grow(job->gone_uids, job->gone_count, sizeof(*job->gone_uids));
    job->gone_uids[job->gone_count] = fleet_dup_text(uid);
    job->gone_count++;
}

void reconciler_note_vanished(struct reconciler_job *job, int index, int attempt)
{
    size_t i = 0;

    while (i < job->vanished_count && job->vanished[i].index != index)
        i++;
    if (i == job->vanished_count) {
        job->vanished = fleet_grow(job->vanished, i, sizeof(*job->vanished));
        job->vanished[job->vanished_count++] = (struct observed_vanished){.index = index};
    }
    reconcile_note_vanished(&job->vanished[i], attempt, kube_wall_ms(job->reconciler->io));
}

void reconciler_pod_gone(struct reconciler_job *job, const char *uid, int index, int attempt)
{
    reconciler_remember_gone(job, uid);
    reconciler_note_vanished(job, index, attempt);
}
