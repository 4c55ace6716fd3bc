/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Carries out actions as requests and commands. Writes the status first. Only if that succeeds, it
 * emits events, instructs the hub and makes or deletes pods.
 *
 * The cache of a new leader may be old: its watch may have broken without an error. A status write
 * that rests on an old state is refused. If a first decision writes nothing, the leader reads the
 * job before it makes or deletes a pod or hosts a hub: the job may be deleted, over or resized.
 */
#include "controller/fleetjob/apply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/apply_pods.h"
#include "controller/fleetjob/job_objects.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/machinery/metrics.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"

#define CONFLICT_MS   200.0 /* until the cache has the newer state, probably */
#define SUPERSEDED_MS 500.0 /* until the Lease has been renewed, probably */

/* ---- the job --------------------------------------------------------------------------------- */

static void on_job_deleted(struct reconciler_request *r, const cJSON *object,
                           const struct fleet_error *err)
{
    (void)object;
    reconciler_finish(r, err && (kube_is_not_found(err) || kube_is_conflict(err)) ? NULL : err);
}

static void delete_job(struct reconciler_pass *pass)
{
    struct kube_rest_request request = {.verb = KUBE_DELETE,
                                        .resource = &projection_fleetjobs,
                                        .namespace_ = pass->job->namespace_,
                                        .name = pass->job->name,
                                        .uid = pass->job->uid,
                                        .propagation = "Background"};

    (void)reconciler_send(pass, &request, NULL, NULL, on_job_deleted);
}

/* ---- the hub --------------------------------------------------------------------------------- */

static void command_hub(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;
    const struct actions *actions = &pass->actions;
    struct fleet_error err;

    if (job->secret_digest[0]) /* this replica wrote the status, or has a hub from it */
        hub_host_note_moved(job->host);
    if (hub_host_apply(job->host, actions, job->plan.digest, &err) < 0) {
        pass->has_failed = true;
        pass->err = err;
    }
    if (hub_host_is_superseded(job->host))
        reconciler_requeue(pass, SUPERSEDED_MS);
    for (size_t i = 0; i < job->gone_count; i++) {
        if (i >= pass->observation.observed.gone_count) /* vanished since */
            hub_host_gone(job->host, job->gone_uids[i]);
        free(job->gone_uids[i]);
    }
    job->gone_count = 0;
}

/* ---- together -------------------------------------------------------------------------------- */

/* Counted here and not in reconcile(), because the server may have refused some writes. */
static void report_created(const struct reconciler_pass *pass)
{
    char text[64];

    if (pass->created == 0)
        return;
    (void)snprintf(text, sizeof(text), "Created %d worker%s", pass->created,
                   pass->created == 1 ? "" : "s");
    reconciler_event(pass, false, WELLKNOWN_EVENT_CREATED_PODS, text);
}

static void settle(struct reconciler_pass *pass)
{
    report_created(pass);
    if (!pass->is_refused && !pass->has_failed && !pass->observation.observed.is_blocked)
        refusal_clear(&pass->job->refusal);
    reconciler_end(pass);
}

/* The actions that need not wait for the pods that are being looked for. */
static void look_first(struct reconciler_pass *pass)
{
    if (!apply_may_act(pass)) {
        reconciler_end(pass);
        return;
    }
    reconciler_requeue(pass, 0);
    command_hub(pass);
    for (size_t i = 0; i < pass->actions.look_count; i++)
        apply_look_for_pod(pass, &pass->actions.looks[i]);
    reconciler_then(pass, reconciler_end);
}

static void act(struct reconciler_pass *pass)
{
    const struct actions *actions = &pass->actions;

    if (actions->look_count > 0) {
        look_first(pass);
        return;
    }
    if (!apply_may_act(pass)) {
        reconciler_end(pass);
        return;
    }
    pass->job->has_decided = true;
    reconciler_requeue(pass, (double)actions->requeue_after_ms);
    pod_events_ask(pass);
    command_hub(pass);
    for (size_t i = 0; i < actions->delete_count; i++)
        apply_delete_pod(pass, actions->deletes[i].name, actions->deletes[i].at_once);
    if (!pass->observation.observed.is_blocked) /* else they still are */
        pass->job->refused_count = 0;
    if (actions->create_count > 0 || actions->server_create_count > 0)
        job_objects_check_secret(pass);
    for (size_t i = 0; i < actions->server_create_count; i++)
        apply_create_server(pass, actions->server_creates[i]);
    apply_create_pods(pass);
    if (actions->delete_job)
        delete_job(pass);
    reconciler_then(pass, settle);
}

static bool has_effect(const struct reconciler_pass *pass)
{
    const struct actions *actions = &pass->actions;

    return actions->create_count > 0 || actions->server_create_count > 0 ||
           actions->delete_count > 0 || actions->look_count > 0 ||
           (actions->hub.is_wanted && !hub_host_hub(pass->job->host));
}

static void on_job_read(struct reconciler_request *r, const cJSON *object,
                        const struct fleet_error *err)
{
    struct reconciler_pass *pass = r->pass;
    const struct fleetjob_metadata *known = &pass->observation.job.metadata;
    const char *uid = "", *version = "";

    (void)fleet_json_opt_string(object, "metadata.uid", &uid, NULL);
    (void)fleet_json_opt_string(object, "metadata.resourceVersion", &version, NULL);
    pass->job->is_confirmed =
        !err && strcmp(uid, known->uid) == 0 && strcmp(version, known->resource_version) == 0;
    reconciler_finish(r, err && kube_is_not_found(err) ? NULL : err);
}

static void after_reading(struct reconciler_pass *pass)
{
    if (pass->job->is_confirmed) {
        act(pass);
        return;
    }
    reconciler_requeue(pass, CONFLICT_MS); /* decided on a stale state: begin another pass */
    reconciler_end(pass);
}

static void take_effect(struct reconciler_pass *pass)
{
    struct kube_rest_request get = {.verb = KUBE_GET,
                                    .resource = &projection_fleetjobs,
                                    .namespace_ = pass->job->namespace_,
                                    .name = pass->job->name,
                                    .only_metadata = true};

    if (pass->job->is_confirmed || !has_effect(pass)) {
        act(pass);
        return;
    }
    (void)reconciler_send(pass, &get, NULL, NULL, on_job_read);
    reconciler_then(pass, after_reading);
}

/* Restarts that this write has added to the history. */
static void count_restarts(const struct reconciler_pass *pass)
{
    const struct fleetjob_restarts *before = &pass->observation.job.status.restarts;
    const struct fleetjob_restarts *after = &pass->actions.status.restarts;
    int64_t newest =
        before->history.count > 0 ? before->history.items[before->history.count - 1].generation : 0;

    for (size_t i = 0; i < after->history.count; i++)
        if (after->history.items[i].generation > newest)
            metric_add(pass->job->reconciler->restarts, 1, after->history.items[i].cause);
}

static void on_written(void *user, const struct fleet_error *err)
{
    struct reconciler_pass *pass = user;
    struct reconciler *r = pass->job->reconciler;

    metric_add(r->status_writes, 1,
               err ? (kube_is_conflict(err) ? "conflict" : "error") : "success");
    if (err && (kube_is_conflict(err) || kube_is_not_found(err))) {
        pass->requeue_after_ms = CONFLICT_MS; /* decided on a stale state: begin another pass */
        reconciler_end(pass);
        return;
    }
    if (err) {
        pass->has_failed = true;
        pass->err = *err;
        reconciler_end(pass);
        return;
    }
    pass->job->is_confirmed = true;
    count_restarts(pass);
    for (size_t i = 0; i < pass->actions.event_count; i++)
        reconciler_event(pass, pass->actions.events[i].is_warning, pass->actions.events[i].reason,
                         pass->actions.events[i].message);
    take_effect(pass);
}

/* Important changes are written at once, the others at intervals. */
static bool may_write(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;
    double now_ms = kube_now_ms(job->reconciler->io), wait_ms = 0;

    switch (pass->actions.write) {
    case ACTION_WRITE_NOTHING:
        return false;
    case ACTION_WRITE_PROGRESS:
        wait_ms = status_pace_progress(&job->reconciler->pace, &job->pace, now_ms);
        break;
    case ACTION_WRITE_COUNTS:
        wait_ms = status_pace_after(&job->pace, STATUS_PACE_COUNTS_MS, now_ms);
        break;
    case ACTION_WRITE_START:
        wait_ms = status_pace_start(&job->reconciler->pace, &job->pace, now_ms);
        break;
    case ACTION_WRITE_NOW:
        break;
    }
    if (wait_ms > 0)
        reconciler_requeue(pass, wait_ms);
    return wait_ms <= 0;
}

static void write_status(struct reconciler_pass *pass)
{
    const struct reconciler *r = pass->job->reconciler;
    const struct projection_job *cached =
        store_get(manager_store(r->manager, r->jobs_informer), pass->job->key);
    FLEET_AUTO_JSON cJSON *json = NULL;

    if (cached)
        (void)fleet_json_parse(cached->text, cached->size, PROJECTION_JOB_SIZE_MAX, &json, NULL);
    status_pace_written(&pass->job->pace, kube_now_ms(r->io));
    status_writer_write(pass->job->writer, pass->observation.job.metadata.resource_version,
                        &pass->observation.job.status, fleet_json_at(json, "status"),
                        &pass->actions.status, on_written, pass);
}

void apply_run(struct reconciler_pass *pass)
{
    if (may_write(pass))
        write_status(pass);
    else
        take_effect(pass);
}
