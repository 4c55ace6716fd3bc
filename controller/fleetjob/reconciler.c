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

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/job_objects.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_internal.h"
#include "controller/machinery/event_recorder.h"
#include "controller/machinery/led_io.h"
#include "controller/machinery/metrics.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"

#define CURRENT_MS      1000.0 /* look again, should the cache's word not come */
#define REST_MS_PER_POD 0.02   /* between two looks: about thirty times what one takes */
#define TROUBLE_TRIES   3      /* attempts that fail before an Event reports it */
/* so long overdue pods are waited for while the cache is not live */
#define STALE_MS 300000.0
#define GONE_MAX 4096 /* vanished pods that are remembered for a hub */

void reconciler_trouble(const struct reconciler *r, const char *what, const char *job,
                        const struct fleet_error *err)
{
    if (r->options.on_trouble)
        r->options.on_trouble(r->options.user, what, job, err);
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
        return; /* nobody could write it, or read it */
    event_recorder_record(job->reconciler->options.events, &about,
                          is_warning ? EVENT_WARNING : EVENT_NORMAL, reason, "Reconcile", "%s",
                          text);
}

void reconciler_event(const struct reconciler_pass *pass, bool is_warning, const char *reason,
                      const char *text)
{
    reconciler_job_event(pass->job, pass->observation.job.metadata.resource_version, is_warning,
                         reason, text);
}

void reconciler_refuse(struct reconciler_pass *pass, const struct fleet_error *err)
{
    struct reconciler_job *job = pass->job;
    const struct reconciler *r = job->reconciler;
    int64_t generation = pass->observation.job.metadata.generation;
    double now_ms = kube_now_ms(r->io);
    bool is_news;

    if (pass->is_refused)
        return; /* one of many pods is enough */
    pass->is_refused = true;
    is_news = refusal_note(&job->refusal, err->text, generation, now_ms, kube_random(r->io));
    if (!kube_is_retryable(err) || job->refusal.count >= TROUBLE_TRIES)
        reconciler_event(pass, true, WELLKNOWN_EVENT_CREATE_REFUSED, err->text);
    if (is_news)
        reconciler_trouble(r, "Create refused", job->key, err);
    reconciler_requeue(pass, refusal_wait_ms(&job->refusal, generation, now_ms));
}

void reconciler_requeue(struct reconciler_pass *pass, double after_ms)
{
    if (after_ms >= 0 && (pass->requeue_after_ms < 0 || after_ms < pass->requeue_after_ms))
        pass->requeue_after_ms = after_ms;
}

/* ---- requests of a pass ---------------------------------------------------------------------- */

static void on_request_done(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct reconciler_request *request = user;

    request->call = NULL;
    request->done(request, object, err);
}

void reconciler_resend(struct reconciler_request *request, const struct kube_rest_request *what,
                       void (*done)(struct reconciler_request *, const cJSON *,
                                    const struct fleet_error *))
{
    request->done = done;
    request->call =
        kube_rest_start(request->pass->job->reconciler->io, what, on_request_done, request);
}

struct reconciler_request *reconciler_send(
    struct reconciler_pass *pass, const struct kube_rest_request *what, cJSON *body, char *name,
    void (*done)(struct reconciler_request *, const cJSON *, const struct fleet_error *))
{
    struct reconciler_request *request = calloc(1, sizeof(*request));
    struct kube_rest_request full = *what;

    fleet_assert(request);
    *request = (struct reconciler_request){.next = pass->requests,
                                           .previous = &pass->requests,
                                           .pass = pass,
                                           .body = body,
                                           .name = name,
                                           .resource = what->resource};
    if (pass->requests)
        pass->requests->previous = &request->next;
    pass->requests = request;
    pass->pending++;
    full.body = body;
    reconciler_resend(request, &full, done);
    return request;
}

static void free_request(struct reconciler_request *request)
{
    *request->previous = request->next;
    if (request->next)
        request->next->previous = request->previous;
    kube_rest_cancel(&request->call);
    cJSON_Delete(request->body);
    free(request->name);
    free(request);
}

void reconciler_finish(struct reconciler_request *request, const struct fleet_error *err)
{
    struct reconciler_pass *pass = request->pass;

    if (err && kube_is_terminating(err)) {
        pass->job->is_doomed = true; /* it will vanish by itself, with all that it has */
        err = NULL;
    }
    if (err && !pass->has_failed) {
        pass->has_failed = true;
        pass->err = *err;
    }
    free_request(request);
    if (--pass->pending == 0 && pass->next)
        pass->next(pass);
}

void reconciler_then(struct reconciler_pass *pass, void (*next)(struct reconciler_pass *pass))
{
    pass->next = next;
    if (pass->pending == 0)
        next(pass);
}

static void free_pass(struct reconciler_pass *pass)
{
    while (pass->requests)
        free_request(pass->requests);
    observe_release(&pass->observation);
    actions_release(&pass->actions);
    free(pass);
}

/* A thousand pods that start cause thousands of events: one look for many of them is enough, and it
 * costs more the more pods there are. Small jobs do not rest. */
static double rest_ms(const struct reconciler_pass *pass)
{
    double ms = (double)pass->observation.observed.pod_count * REST_MS_PER_POD;

    return ms >= 1 ? ms : 0;
}

void reconciler_end(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;
    struct manager *manager = job->reconciler->manager;
    struct fleet_error err = pass->err;
    bool has_failed = pass->has_failed;
    double requeue_after_ms = pass->requeue_after_ms;

    job->rest_until_ms = kube_now_ms(job->reconciler->io) + rest_ms(pass);
    job->pass = NULL;
    free_pass(pass);
    manager_done(manager, job->key, has_failed ? &err : NULL, requeue_after_ms);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void free_job(struct reconciler_job *job)
{
    if (job->pass)
        free_pass(job->pass);
    hub_host_free(job->host);
    status_writer_free(job->writer);
    observe_plan_release(&job->plan);
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

static void on_record_written(void *user, struct fleet_generation generation,
                              enum status_writer_result result)
{
    struct reconciler_job *job = user;

    if (!manager_is_leading(job->reconciler->manager))
        return; /* what a majority may do while nothing can be written is the leader's alone */
    if (result == STATUS_WRITER_RECORDED)
        hub_host_answer_record(job->host, generation, true);
    else if (result == STATUS_WRITER_OUTDATED)
        hub_host_drop(job->host); /* the next look makes one from what stands there */
    else
        hub_host_answer_record(job->host, generation, false);
    manager_enqueue(job->reconciler->manager, job->key);
}

/* The cache has caught up meanwhile: another hub has recorded what ours, made before, does not
 * know. */
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
    struct fleetjob_lineage lineage[FLEETJOB_HISTORY_MAX];
    size_t count = hub_host_lineage(job->host, record, lineage);

    if (!manager_is_leading(job->reconciler->manager))
        return false; /* the leader will make generations; this process is about to end */
    if (is_outdated(job, record)) {
        manager_enqueue(job->reconciler->manager, job->key); /* which replaces the hub */
        return false;
    }
    status_writer_record(job->writer, record, lineage, count, hub_host_recorded(job->host),
                         on_record_written, job);
    return false;
}

/* The delete of an evicted worker's pod. Its job may be gone before the answer. */
struct eviction {
    const struct reconciler *reconciler;
    char *job; /* key */
};

static void on_evicted_deleted(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct eviction *eviction = user;

    (void)object;
    if (err && !kube_is_not_found(err))
        reconciler_trouble(eviction->reconciler, "Evicted worker was not deleted", eviction->job,
                           err);
    free(eviction->job);
    free(eviction);
}

/* Its pod goes; the missing worker is then made anew like any other. */
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

static struct reconciler_job *new_job(struct reconciler *r, const char *key, const char *uid)
{
    struct reconciler_job *job = calloc(1, sizeof(*job));
    const char *slash = strchr(key, '/');
    struct hub_host_handlers handlers = {
        .record = on_hub_record, .event = on_hub_event, .leads_since = leads_since, .user = job};

    fleet_assert(job && slash);
    job->reconciler = r;
    job->key = strdup(key);
    job->namespace_ = strndup(key, (size_t)(slash - key));
    job->name = strdup(slash + 1);
    job->uid = strdup(uid);
    fleet_assert(job->key && job->namespace_ && job->name && job->uid);
    handlers.namespace_ = job->namespace_;
    handlers.name = job->key;
    job->host = hub_host_new(&r->network, uid, r->epoch, &handlers);
    job->writer = status_writer_new(r->io, job->namespace_, job->name, uid);
    (void)fleet_map_set(&r->jobs, key, job);
    return job;
}

static void forget_job(struct reconciler *r, const char *key)
{
    struct reconciler_job *job = fleet_map_remove(&r->jobs, key);

    expectations_forget(r->expectations, key);
    if (!job)
        return;
    hub_host_end(job->host);
    free_job(job);
}

/* What is remembered of the job that has this name now; a predecessor's is dropped. */
static struct reconciler_job *find_job(struct reconciler *r, const char *key,
                                       const struct projection_job *cached)
{
    struct reconciler_job *job = fleet_map_get(&r->jobs, key);

    if (job && strcmp(job->uid, cached->uid) != 0) {
        forget_job(r, key);
        job = NULL;
    }
    if (!job)
        job = new_job(r, key, cached->uid);
    status_writer_seen(job->writer, cached->resource_version);
    return job;
}

/* ---- a look ---------------------------------------------------------------------------------- */

/* Not before the cache has what was written and made: when to look again, -1 = now is fine. */
static double must_wait(const struct reconciler_job *job)
{
    const struct reconciler *r = job->reconciler;
    double now_ms = kube_now_ms(r->io), due_ms;

    if (!status_writer_is_current(job->writer, now_ms))
        return CURRENT_MS;
    due_ms = expectations_due_ms(r->expectations, job->key);
    if (now_ms >= due_ms && now_ms < due_ms + STALE_MS &&
        !manager_is_live(r->manager, r->pods_informer))
        return CURRENT_MS; /* the pod is there, for all we know */
    if (!expectations_are_met(r->expectations, job->key, now_ms)) {
        due_ms = expectations_due_ms(r->expectations, job->key);
        return isinf(due_ms) ? CURRENT_MS : fmax(due_ms - now_ms, 0);
    }
    return -1;
}

/* What a pass comes to in its first turn of the loop. */
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
                                  .taken = job->taken,
                                  .taken_count = job->taken_count,
                                  .pod_errors = error_ms > 0 ? &job->pod_errors : NULL,
                                  .said = &job->pod_events,
                                  .refusal = job->refusal.text,
                                  .refused = job->refused,
                                  .refused_count = job->refused_count,
                                  .vanished = job->vanished,
                                  .vanished_count = job->vanished_count,
                                  .plan = &job->plan,
                                  .now_wall_ms = kube_wall_ms(r->io)};
    int rc = observe(&input, &pass->observation, &pass->err);

    if (rc == 0)
        pass->observation.secret_digest = job_objects_secret_digest(pass);
    return rc;
}

/* A job that waits for what was refused is looked after without new pods. */
static void decide(struct reconciler_pass *pass, double refused_ms)
{
    struct observation *o = &pass->observation;

    o->observed.is_blocked = refused_ms > 0;
    if (refused_ms > 0)
        reconciler_requeue(pass, refused_ms);
    reconcile(&o->observed, &pass->actions);
    observe_complete(o, &pass->actions);
}

/* Pure but for the pass and the plan of its job; guarded. All that reads what was borrowed (1). */
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
        forget_job(r, key);
        manager_done(r->manager, key, NULL, -1);
        return;
    }
    job = find_job(r, key, cached);
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

/* ---- changes --------------------------------------------------------------------------------- */

static void on_job_changed(void *user, const char *key, const void *before, const void *after)
{
    struct reconciler *r = user;
    const struct projection_job *cached = after;
    struct reconciler_job *job = fleet_map_get(&r->jobs, key);

    job_metrics_change(&r->job_metrics, key, before, after);
    if (job && cached && strcmp(job->uid, cached->uid) == 0)
        status_writer_seen(job->writer, cached->resource_version);
    manager_enqueue(r->manager, key);
}

static void remember_gone(struct reconciler_job *job, const char *uid)
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

static bool is_up(const struct projection_pod *pod)
{
    return pod && !pod->is_deleting &&
           (pod->phase == OBSERVED_PENDING || pod->phase == OBSERVED_RUNNING);
}

void reconciler_pod_gone(struct reconciler_job *job, const char *uid, int index, int attempt)
{
    remember_gone(job, uid);
    reconciler_note_vanished(job, index, attempt);
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
        remember_gone(job, before->uid);
    if (is_up(before) && (!after || after->is_deleting)) /* not because its agent has ended */
        reconciler_note_vanished(job, before->index, before->attempt);
}

static void on_pod_changed(void *user, const char *key, const void *before, const void *after)
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

/* One that was deleted by hand is made again. */
static void on_service_changed(void *user, const char *key, const void *before, const void *after)
{
    struct reconciler *r = user;
    const struct projection_service *service = before;
    const char *slash = strchr(key, '/');
    FLEET_AUTO_FREE char *namespace_ = strndup(key, slash ? (size_t)(slash - key) : 0);
    FLEET_AUTO_FREE char *job = NULL;

    if (after || !service->job_name[0])
        return;
    fleet_assert(namespace_);
    job = kube_meta_key(namespace_, service->job_name);
    if (fleet_map_get(&r->jobs, job))
        manager_enqueue(r->manager, job);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void on_leading(void *user, int64_t epoch)
{
    struct reconciler *r = user;
    struct fleet_error err;

    r->epoch = epoch > 0 ? epoch : 1;
    if (r->options.open_network(r->options.user, &r->network, &err) == 0)
        return;
    reconciler_trouble(r, "Hub could not be opened", NULL, &err);
    manager_stop(r->manager);
}

static void on_end(void *user, enum manager_end end)
{
    struct reconciler *r = user;

    r->options.on_end(r->options.user, end);
}

static void on_trouble(void *user, const char *what, const char *key, const struct fleet_error *err)
{
    reconciler_trouble(user, what, key, err);
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
                                    .on_change = on_job_changed,
                                    .user = r};
    struct informer_options pods = {.resource = &kube_pods,
                                    .kind = &projection_pod_kind,
                                    .namespaces = options->namespaces,
                                    .namespace_count = options->namespace_count,
                                    .label_selector = WELLKNOWN_LABEL_JOB_UID,
                                    .on_change = on_pod_changed,
                                    .user = r};

    struct informer_options services = {.resource = &kube_services,
                                        .kind = &projection_service_kind,
                                        .namespaces = options->namespaces,
                                        .namespace_count = options->namespace_count,
                                        .label_selector = WELLKNOWN_LABEL_JOB,
                                        .on_change = on_service_changed,
                                        .user = r};

    fleet_assert(r);
    r->options = *options;
    r->led = led_io_new(options->io, may_write, r);
    r->io = led_io_kube(r->led);
    r->expectations = expectations_new();
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
        free_job(entry->value);
    fleet_map_release(&r->jobs);
    pod_labels_forget(r);
    manager_free(r->manager);
    expectations_free(r->expectations);
    led_io_free(r->led);
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
