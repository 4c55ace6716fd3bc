/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A broken invariant of one job ends that job's pass, or its hub, not the process of all jobs
 * (docs/decisions/one-job-one-failure.md).
 *
 *   decide ── an assertion fails ──▶ leave the pass and its plan as they are
 *             ──▶ drop the memory of the job ──▶ condition InternalError, Event, log, metric
 *             ──▶ a new pass after RETRY
 *   hub    ── an assertion fails ──▶ it does nothing any more (hub_entry.c)
 *             ──▶ dropped, its members dial again ──▶ condition, Event, log, metric
 *             ──▶ a new pass after RETRY makes it from the status
 *
 *  (1) What the pass was changing is never read again, and not freed: it may be inconsistent. It
 *      stays in a list, so that a tool for leaks does not report it. The back-off bounds how much
 *      that can become.
 *  (2) Nothing that is shared between jobs changes while a pass decides, so nothing shared can be
 *      inconsistent.
 *  (3) The hub of the job is kept the first time, so that training goes on. If the next pass
 *      breaks, too, the hub may be the cause, and is made again from the status.
 *  (4) A hub is healthy again when it has lived for CALM. One that breaks before that is made later
 *      each time.
 */
#include "controller/fleetjob/internal_error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/fleetjob/status.h"
#include "controller/machinery/metrics.h"
#include "controller/machinery/ratelimiter.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"

#define RETRY_MIN_MS 1000.0
#define RETRY_MAX_MS 300000.0
#define HUB_KEPT_MAX 1        /* the hub is kept for this many failures in a row */
#define CALM_MS      600000.0 /* longer than RETRY_MAX_MS: failures come in a row */

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

/*
 * Drop all memory except the job's identity, its writer and its hub. The API server has the rest.
 */
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

/* ---- the condition --------------------------------------------------------------------------- */

struct report { /* the status to write; it is made under a guard of its own */
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
    (void)fleetjob_decode_found(report->json, NULL, &report->before, &ignored);
    fleet_errors_release(&ignored);
    fleetjob_status_copy(&report->before.status, &report->after);
    report->is_changed = status_set(&pass, WELLKNOWN_CONDITION_INTERNAL_ERROR, true,
                                    WELLKNOWN_REASON_INVARIANT_BROKEN, report->text);
    fleet_set_text(&report->after.reason, WELLKNOWN_CONDITION_INTERNAL_ERROR);
}

static void release_report(struct report *report)
{
    fleetjob_release(&report->before);
    fleetjob_status_release(&report->after);
    cJSON_Delete(report->json);
}

/* The next pass begins when it is due, even if the write failed. */
static void on_told(void *user, const struct fleet_error *err)
{
    struct reconciler_job *job = user;

    if (err)
        reconciler_job_trouble(job->reconciler, "Condition InternalError was not written", job->key,
                               err);
    manager_done(job->reconciler->manager, job->key, NULL,
                 fmax(job->internal_retry_ms - kube_now_ms(job->reconciler->io), 0));
}

static void report(struct reconciler_job *job, const char *text)
{
    struct report report = {.job = job, .text = text};
    struct reconciler *r = job->reconciler;
    struct fleet_error err;
    char again[256];

    (void)fleet_error(&err, -1, "%s", text);
    reconciler_job_trouble(r, "Internal error", job->key, &err);
    metric_add(r->internal_errors, 1);
    if (!fleet_assert_guard(make_report, &report, again, sizeof(again))) {
        (void)fleet_error(&err, -1, "%s", again);
        on_told(job, &err); /* log and metric have already reported the first one */
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

static void try_later(struct reconciler_job *job, unsigned int failures)
{
    const struct reconciler *r = job->reconciler;

    job->internal_retry_ms =
        kube_now_ms(r->io) +
        ratelimiter_delay_ms(RETRY_MIN_MS, RETRY_MAX_MS, failures, kube_random(r->io));
}

void internal_error_end(struct reconciler_pass *pass, const char *text)
{
    struct reconciler_job *job = pass->job;

    abandon(pass);
    job->internal_errors++;
    try_later(job, job->internal_errors);
    forget(job);
    report(job, text);
}

void internal_error_drop_hub(struct reconciler_job *job)
{
    double now_ms = kube_now_ms(job->reconciler->io);
    char text[HUB_DEFECT_MAX + 8];

    (void)snprintf(text, sizeof(text), "hub: %s", hub_host_defect(job->host));
    if (now_ms >= job->hub_defect_ms + CALM_MS) /* (4) */
        job->hub_defects = 0;
    job->hub_defects++;
    job->hub_defect_ms = now_ms;
    try_later(job, job->hub_defects);
    hub_host_drop(job->host);
    report(job, text);
}
