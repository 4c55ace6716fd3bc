/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A broken invariant of one job ends that job's pass, not the process of all jobs
 * (docs/decisions/one-job-one-failure.md).
 *
 *   decide ── an assertion fails ──▶ leave the pass and its plan as they are ──▶ forget what is remembered of the job
 *                                            ──▶ condition InternalError, Event, log, metric ──▶ a new pass after RETRY
 *
 *  (1) What the pass was changing is never read again, and not freed: it may be inconsistent. It stays in a list, so
 *      that a tool for leaks can tell it from one. The back-off bounds how much that can become.
 *  (2) Nothing that is shared between jobs changes while a pass decides, so nothing shared can be inconsistent.
 *  (3) The hub of the job is kept the first time, so that training goes on. If the next pass breaks, too, the hub may
 *      be the cause, and is made anew from the status.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/pass.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_internal.h"
#include "controller/machinery/metrics.h"
#include "controller/machinery/ratelimiter.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"

#define RETRY_MIN_MS 1000.0
#define RETRY_MAX_MS 300000.0
#define HUB_KEPT_MAX 1 /* failures in a row through which a hub is kept */

struct abandoned { /* (1) */
    struct abandoned *next;
    struct reconciler_pass *pass;
    struct observe_plan plan;
};

static struct abandoned *all_abandoned;

static void abandon(struct reconciler_pass *pass)
{
    struct abandoned *item = calloc(1, sizeof(*item));

    fleet_assert(item);
    *item = (struct abandoned){.next = all_abandoned, .pass = pass, .plan = pass->job->plan};
    all_abandoned = item;
    pass->job->plan = (struct observe_plan){0};
    pass->job->pass = NULL;
}

/* All but the identity of the job, its writer and its hub; the API server has the rest. */
static void forget(struct reconciler_job *job)
{
    job->prepared_generation = 0;
    job->secret_digest[0] = '\0';
    job->taken_count = job->refused_count = job->vanished_count = 0;
    fleet_errors_release(&job->pod_errors);
    refusal_clear(&job->refusal);
    if (job->internal_errors > HUB_KEPT_MAX)
        hub_host_drop(job->host);
}

/* ---- the condition ---------------------------------------------------------------------------- */

struct report { /* what is written, made within a guard of its own */
    const struct reconciler_job *job;
    const char *text;
    cJSON *json;
    struct fleetjob before;
    struct fleetjob_status after;
    bool is_changed;
};

static void make_report(void *user)
{
    struct report *report = user;
    const struct reconciler *r = report->job->reconciler;
    const struct projection_job *cached =
        store_get(manager_store(r->manager, r->jobs_informer), report->job->key);
    struct observed in = {.job = &report->before};
    struct pass pass = {.in = &in, .status = &report->after, .now = kube_wall_ms(r->io)};
    struct fleet_errors ignored = {0};

    if (!cached || fleet_json_parse(cached->text, cached->size, PROJECTION_JOB_SIZE_MAX,
                                    &report->json, NULL) < 0)
        return;
    (void)fleetjob_decode(report->json, &report->before, &ignored);
    fleet_errors_release(&ignored);
    fleetjob_status_copy(&report->before.status, &report->after);
    report->is_changed = status_set(&pass, WELLKNOWN_CONDITION_INTERNAL_ERROR, true,
                                    WELLKNOWN_REASON_INVARIANT_BROKEN, report->text);
}

static void release_report(struct report *report)
{
    fleetjob_release(&report->before);
    fleetjob_status_release(&report->after);
    cJSON_Delete(report->json);
}

/* Written or not: the next pass comes when it is time. */
static void on_told(void *user, const struct fleet_error *err)
{
    struct reconciler_job *job = user;

    if (err)
        reconciler_trouble(job->reconciler, "Condition InternalError was not written", err);
    manager_done(job->reconciler->manager, job->key, NULL,
                 job->internal_retry_ms - kube_now_ms(job->reconciler->io));
}

static void tell(struct reconciler_job *job, const char *text)
{
    struct report report = {.job = job, .text = text};
    struct reconciler *r = job->reconciler;
    struct fleet_error err;
    char ignored[256];

    (void)fleet_error(&err, -1, "FleetJob %s: %s", job->key, text);
    reconciler_trouble(r, "Internal error", &err);
    metric_add(r->internal_errors, 1);
    if (!fleet_assert_guard(make_report, &report, ignored, sizeof(ignored))) {
        on_told(job, NULL); /* the log and the metric have it */
        return;
    }
    reconciler_job_event(job, report.before.metadata.resource_version, true,
                         WELLKNOWN_EVENT_INTERNAL_ERROR, text);
    if (report.is_changed)
        status_writer_write(job->writer, NULL, &report.before.status,
                            fleet_json_at(report.json, "status"), &report.after, on_told, job);
    else
        on_told(job, NULL);
    release_report(&report);
}

void internal_error_end(struct reconciler_pass *pass, const char *text)
{
    struct reconciler_job *job = pass->job;
    const struct reconciler *r = job->reconciler;

    abandon(pass);
    job->internal_errors++;
    job->internal_retry_ms =
        kube_now_ms(r->io) +
        ratelimiter_delay_ms(RETRY_MIN_MS, RETRY_MAX_MS, job->internal_errors, kube_random(r->io));
    forget(job);
    tell(job, text);
}
