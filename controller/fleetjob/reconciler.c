/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A look at a job goes through:
 *
 *   is all seen that was done? ─no─▶ wait
 *        │yes
 *   observe ─▶ is it prepared? ─no─▶ prepare.c ─▶ look again
 *                  │yes, or that was refused a moment ago
 *              reconcile ─▶ apply.c ─▶ done
 */
#include "controller/fleetjob/reconciler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/apply.h"
#include "controller/fleetjob/internal_error.h"
#include "controller/fleetjob/job_objects.h"
#include "controller/fleetjob/job_search.h"
#include "controller/fleetjob/pod_labels.h"
#include "controller/fleetjob/prepare.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/fleetjob/reconciler_watch.h"
#include "controller/fleetjob/status.h"
#include "controller/machinery/expectations.h"
#include "controller/machinery/leader_io.h"
#include "controller/machinery/metrics.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/kube/rest.h"

#define CURRENT_MS 1000.0
/* wait this long for overdue pods while the cache is not live */
#define STALE_MS 300000.0

/* A line of the log; `job` is NULL if it is about the controller itself. */
static void tell(const struct reconciler *r, const char *what, const char *job,
                 const struct fleet_error *err)
{
    if (r->options.on_trouble)
        r->options.on_trouble(r->options.user, what, job, err);
}

void reconciler_job_trouble(const struct reconciler *r, const char *what, const char *job,
                            const struct fleet_error *err)
{
    tell(r, what, job, err);
}

/* ---- a look ---------------------------------------------------------------------------------- */

/* Wait until the cache has everything that this job has written and made. Returns when to begin
 * another pass; -1 = now. */
static double must_wait(const struct reconciler_job *job)
{
    const struct reconciler *r = job->reconciler;
    double now_ms = kube_now_ms(r->io), due_ms;

    if (!status_writer_is_current(job->writer, now_ms))
        return CURRENT_MS;
    due_ms = expectations_due_ms(r->expectations, job->key);
    if (now_ms >= due_ms && now_ms < due_ms + STALE_MS &&
        !manager_is_live(r->manager, r->pods_informer))
        return CURRENT_MS; /* the pod may exist */
    if (!expectations_are_met(r->expectations, job->key, now_ms)) {
        due_ms = expectations_due_ms(r->expectations, job->key);
        return isinf(due_ms) ? CURRENT_MS : fmax(due_ms - now_ms, 0);
    }
    return -1;
}

/* The result of a pass in its first turn of the event loop. */
struct judgement {
    struct reconciler_pass *pass;
    const struct projection_job *cached;
    void (*next)(
        struct reconciler_pass *pass); /* prepare_run, apply_run; reconciler_end after an error */
};

static int observe_job(struct reconciler_pass *pass, const struct projection_job *cached,
                       double error_ms)
{
    struct reconciler_job *job = pass->job;
    struct reconciler *r = job->reconciler;
    struct observe_input input = {.job = cached,
                                  .pods = manager_store(r->manager, r->pods_informer),
                                  .hub = hub_host_view(job->host),
                                  .gone_uids = (const char *const *)job->gone_uids,
                                  .gone_count = job->gone_count,
                                  .is_first = !job->has_decided,
                                  .taken = job->taken,
                                  .taken_count = job->taken_count,
                                  .pod_errors = error_ms > 0 ? &job->pod_errors : NULL,
                                  .said = &job->pod_events,
                                  .refusal = job->refusal.text,
                                  .refusal_kind = job->refusal.kind,
                                  .refused = job->refused,
                                  .refused_count = job->refused_count,
                                  .vanished = job->vanished,
                                  .vanished_count = job->vanished_count,
                                  .plan = &job->plan,
                                  .encrypts_data = r->options.encrypts_data,
                                  .now_wall_ms = kube_wall_ms(r->io)};
    int rc;

    if (job->found.was_searched || job->found.broken) {
        observe_plan_release(&job->plan);
        job->plan = job->found;
        job->found = (struct observe_plan){0};
    }
    rc = observe(&input, &pass->observation, &pass->err);

    if (rc < 0)
        return rc;
    pass->observation.secret_digest = job_objects_secret_digest(pass);
    pass->observation.observed.server_address = job_objects_server_address(pass);
    return 0;
}

/* Until a refused object is due again, or the address of the servers is known, the job continues
 * without new pods. */
static void decide(struct reconciler_pass *pass, double refused_ms)
{
    struct observation *o = &pass->observation;

    o->observed.is_blocked =
        refused_ms > 0 || (o->job.spec.has_server && !o->observed.server_address[0]);
    if (refused_ms > 0)
        reconciler_requeue(pass, refused_ms);
    reconcile(&o->observed, &pass->actions);
    observe_complete(o, &pass->actions);
}

/* Pure, except that it changes the pass and the plan of its job; guarded. All functions that read
 * borrowed objects run in here (1). */
static void judge(void *user)
{
    struct judgement *j = user;
    struct reconciler_pass *pass = j->pass;
    struct reconciler_job *job = pass->job;
    const struct reconciler_options *options = &job->reconciler->options;
    double now_ms = kube_now_ms(job->reconciler->io), objects_ms = -1, error_ms = 0, refused_ms;

    if (job->pod_errors.count > 0 && job->prepared_generation == j->cached->generation)
        error_ms = job->pod_errors_until_ms - now_ms;
    if (observe_job(pass, j->cached, error_ms) < 0) {
        pass->has_failed = true;
        j->next = reconciler_end;
        return;
    }
    if (options->on_decide)
        options->on_decide(options->user, job->key);
    refused_ms = refusal_wait_ms(&job->refusal, j->cached->generation, now_ms);
    if (refused_ms <= 0 && prepare_is_needed(pass, &objects_ms)) {
        j->next = prepare_run;
    } else {
        if (error_ms > 0)
            reconciler_requeue(pass, error_ms);
        reconciler_requeue(pass, objects_ms);
        decide(pass, refused_ms);
        j->next = apply_run;
    }
    observe_forget_borrowed(&pass->observation);
}

/* Away from the loop; the pass that follows has its result. */
static void search_if_needed(const struct reconciler_pass *pass,
                             const struct projection_job *cached)
{
    const struct reconciler *r = pass->job->reconciler;
    const struct observation *o = &pass->observation;

    if (o->searches && o->job.metadata.deleted_wall_ms == 0 && !status_is_terminal(&o->job.status))
        job_search_want(r->search, pass->job->key, cached, r->options.encrypts_data,
                        o->job.status.started_wall_ms > 0);
}

static void on_found(void *user, const char *key, struct observe_plan *plan)
{
    struct reconciler *r = user;
    struct reconciler_job *job = fleet_map_get(&r->jobs, key);

    fleet_assert(job); /* job_search_forget() */
    observe_plan_release(&job->found);
    job->found = *plan;
    *plan = (struct observe_plan){0};
    manager_enqueue(r->manager, key);
}

static void look(struct reconciler_job *job, const struct projection_job *cached)
{
    struct reconciler_pass *pass = calloc(1, sizeof(*pass));
    struct judgement j = {.pass = pass, .cached = cached};
    char text[256];

    fleet_assert(pass);
    pass->job = job;
    pass->requeue_after_ms = -1;
    job->pass = pass;
    if (!fleet_assert_guard(judge, &j, text, sizeof(text))) {
        internal_error_end(pass, text);
        return;
    }
    job->internal_errors = 0;
    search_if_needed(pass, cached);
    j.next(pass);
}

static void on_reconcile(void *user, const char *key)
{
    struct reconciler *r = user;
    const struct projection_job *cached =
        store_get(manager_store(r->manager, r->jobs_informer), key);
    struct reconciler_job *job;
    double wait_ms;

    if (!cached) {
        reconciler_forget_job(r, key);
        manager_done(r->manager, key, NULL, -1);
        return;
    }
    job = reconciler_find_job(r, key, cached);
    if (job->is_doomed) {
        manager_done(r->manager, key, NULL, -1);
        return;
    }
    wait_ms = fmax(job->internal_retry_ms, job->rest_until_ms) - kube_now_ms(r->io);
    if (wait_ms <= 0)
        wait_ms = must_wait(job);
    if (wait_ms >= 0)
        manager_done(r->manager, key, NULL, wait_ms);
    else if (hub_host_defect(job->host))
        internal_error_drop_hub(job);
    else
        look(job, cached);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void on_leading(void *user, int64_t epoch)
{
    struct reconciler *r = user;
    struct fleet_error err;

    r->epoch = epoch > 0 ? epoch : 1;
    if (r->options.open_network(r->options.user, &r->network, &err) == 0)
        return;
    tell(r, "Hub could not be opened", NULL, &err);
    manager_stop(r->manager);
}

static void on_end(void *user, enum manager_end end)
{
    struct reconciler *r = user;

    r->options.on_end(r->options.user, end);
}

static void on_trouble(void *user, const char *what, const char *key, const struct fleet_error *err)
{
    tell(user, what, key, err);
}

static void add_metrics(struct reconciler *r)
{
    struct metrics *m = r->options.metrics;

    r->pods_created =
        metrics_counter(m, "fleetjob_pods_created_total", "Number of worker pods created.", "");
    r->pods_deleted =
        metrics_counter(m, "fleetjob_pods_deleted_total", "Number of worker pods deleted.", "");
    r->status_writes = metrics_counter(m, "fleetjob_status_writes_total",
                                       "Number of status writes, by result.", "result");
    r->restarts = metrics_counter(m, "fleetjob_restarts_total",
                                  "Number of restarts of FleetJobs, by cause.", "cause");
    r->internal_errors = metrics_counter(
        m, "fleetjob_internal_errors_total",
        "Number of passes and hubs of jobs that a defect of the controller ended. The FleetJob "
        "has the condition InternalError.",
        "");
    job_metrics_init(&r->job_metrics, m, r->options.has_job_metrics);
}

static bool may_write(void *user)
{
    return manager_is_leading(((struct reconciler *)user)->manager); /* (3) */
}

struct reconciler *reconciler_new(const struct reconciler_options *options)
{
    struct reconciler *r = calloc(1, sizeof(*r));
    struct manager_options manager = {.io = options->io,
                                      .metrics = options->metrics,
                                      .election = options->election,
                                      .reconcile = on_reconcile,
                                      .on_leading = on_leading,
                                      .on_end = on_end,
                                      .on_trouble = on_trouble,
                                      .user = r};
    struct informer_options jobs = {.resource = &projection_fleetjobs,
                                    .kind = &projection_job_kind,
                                    .namespaces = options->namespaces,
                                    .namespace_count = options->namespace_count,
                                    .on_change = reconciler_job_changed,
                                    .user = r};
    struct informer_options pods = {.resource = &kube_pods,
                                    .kind = &projection_pod_kind,
                                    .namespaces = options->namespaces,
                                    .namespace_count = options->namespace_count,
                                    .label_selector = WELLKNOWN_LABEL_JOB_UID,
                                    .on_change = reconciler_pod_changed,
                                    .user = r};

    struct informer_options services = {.resource = &kube_services,
                                        .kind = &projection_service_kind,
                                        .namespaces = options->namespaces,
                                        .namespace_count = options->namespace_count,
                                        .label_selector = WELLKNOWN_LABEL_JOB,
                                        .on_change = reconciler_service_changed,
                                        .user = r};

    fleet_assert(r);
    r->options = *options;
    r->led = leader_io_new(options->io, may_write, r);
    r->io = leader_io_kube(r->led);
    r->expectations = expectations_new();
    r->search = job_search_new(&(struct job_search_options){
        .io = options->io, .background = options->background, .on_found = on_found, .user = r});
    add_metrics(r);
    r->manager = manager_new(&manager);
    r->jobs_informer = manager_add_informer(r->manager, &jobs);
    r->pods_informer = manager_add_informer(r->manager, &pods);
    r->services_informer = manager_add_informer(r->manager, &services);
    manager_start(r->manager);
    return r;
}

void reconciler_stop(struct reconciler *r)
{
    manager_stop(r->manager);
}

void reconciler_free(struct reconciler *r)
{
    const struct fleet_map_entry *entry;

    if (!r)
        return;
    for (size_t i = 0; (entry = fleet_map_next(&r->jobs, &i));)
        reconciler_free_job(entry->value);
    fleet_map_release(&r->jobs);
    job_search_free(r->search);
    pod_labels_forget(r);
    manager_free(r->manager);
    expectations_free(r->expectations);
    leader_io_free(r->led);
    free(r);
}

void reconciler_collect(struct reconciler *r)
{
    manager_collect(r->manager);
    job_metrics_show(&r->job_metrics, manager_is_leading(r->manager));
}

bool reconciler_has_synced(const struct reconciler *r)
{
    return manager_has_synced(r->manager);
}

bool reconciler_is_leading(const struct reconciler *r)
{
    return manager_is_leading(r->manager);
}
