/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The watch selects pods by the label (WELLKNOWN_LABEL_JOB_UID), so a pod without its
 * label looks deleted. Its worker still trains, so it must not be replaced.
 *
 *   leaves the cache, no deletion seen ─▶ GET ── 404, another UID, deleted ──▶ it is gone
 *                                             └─ still there ──▶ PATCH its labels: the watch brings
 *                                                                it back
 *
 * Until the answer comes, the pod is expected (expectations.h), and no pass runs over the job. If a
 * policy of the cluster removes the label repeatedly, an Event reports it, and the label is put
 * back at growing intervals.
 *
 * A controller that starts finds such a pod by its name, since the status counts the attempts of
 * each worker. If the status is lost, too, it lists the pods of the namespace once.
 */
#include "controller/fleetjob/pod_labels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/machinery/event_recorder.h"
#include "controller/machinery/expectations.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"

#define MEMORY_MS   60000.0 /* if a label is removed again within this time, it is restored later */
#define DELAY_MS    1000.0  /* the first delay; each further one is twice as long */
#define DELAY_COUNT 6       /* how often the delay doubles */

#define TAKEN_AGAIN \
    "it is removed again; exempt labels of " WELLKNOWN_GROUP " from your admission policy"

/* A pod that is being read, or whose labels are being restored or were restored. */
struct pod_query {
    struct pod_query *next, **previous;
    struct reconciler *reconciler;
    struct kube_rest_call *call;
    struct kube_call *timer;          /* when it is read again, or forgotten */
    int times;                        /* how often its labels were restored */
    bool is_doubted;                  /* it has left the cache again during a request */
    char *key, *job_uid, *namespace_; /* of the job */
    char *name, *uid;                 /* of the pod */
    int index, attempt;
};

static struct pod_query *new_query(const struct reconciler_job *job, const char *name,
                                   const char *uid, int index, int attempt)
{
    struct reconciler *r = job->reconciler;
    struct pod_query *query = calloc(1, sizeof(*query));

    fleet_assert(query);
    *query = (struct pod_query){.next = r->queries,
                                .previous = &r->queries,
                                .reconciler = r,
                                .key = strdup(job->key),
                                .job_uid = strdup(job->uid),
                                .namespace_ = strdup(job->namespace_),
                                .name = strdup(name),
                                .uid = strdup(uid),
                                .index = index,
                                .attempt = attempt};
    fleet_assert(query->key && query->job_uid && query->namespace_ && query->name && query->uid);
    if (r->queries)
        r->queries->previous = &query->next;
    r->queries = query;
    return query;
}

static void free_query(struct pod_query *query)
{
    *query->previous = query->next;
    if (query->next)
        query->next->previous = query->previous;
    kube_rest_cancel(&query->call);
    kube_cancel(query->reconciler->io, &query->timer);
    free(query->key);
    free(query->job_uid);
    free(query->namespace_);
    free(query->name);
    free(query->uid);
    free(query);
}

void pod_labels_forget(struct reconciler *r)
{
    while (r->queries)
        free_query(r->queries);
}

static struct pod_query *find_query(const struct reconciler *r, const char *uid)
{
    struct pod_query *query = r->queries;

    while (query && strcmp(query->uid, uid) != 0)
        query = query->next;
    return query;
}

/* The job that the pod belongs to; NULL if it is gone. */
static struct reconciler_job *find_job(const struct pod_query *query)
{
    struct reconciler_job *job = fleet_map_get(&query->reconciler->jobs, query->key);

    return job && strcmp(job->uid, query->job_uid) == 0 ? job : NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

bool pod_labels_are_seen(const cJSON *pod)
{
    return kube_meta_label(pod, WELLKNOWN_LABEL_JOB_UID) != NULL;
}

static void report_refused(const struct pod_query *query, const char *why)
{
    const struct reconciler_job *job = find_job(query);
    struct event_object about = {.api_version = WELLKNOWN_API_VERSION, .kind = WELLKNOWN_KIND};

    if (!job)
        return;
    about.namespace_ = job->namespace_;
    about.name = job->name;
    about.uid = job->uid;
    about.resource_version = "";
    event_recorder_record(query->reconciler->options.events, &about, EVENT_WARNING,
                          WELLKNOWN_EVENT_LABELS_REMOVED, "Reconcile",
                          "Pod %s has lost its label %s, and the controller could not put it back: "
                          "%s. The worker trains on, but is not counted",
                          query->name, WELLKNOWN_LABEL_JOB_UID, why);
}

static void read_pod(void *user);

/* The pod has lost its labels again, or they could not be put back. */
static void ask_later(struct pod_query *query)
{
    struct kube_io *io = query->reconciler->io;
    int doublings = query->times < DELAY_COUNT ? query->times : DELAY_COUNT;

    query->is_doubted = false;
    kube_cancel(io, &query->timer);
    query->timer = kube_after(io, DELAY_MS * (1 << doublings), read_pod, query);
}

static void on_forget_time(void *user)
{
    struct pod_query *query = user;

    query->timer = NULL;
    free_query(query);
}

static void on_written(void *user, const cJSON *pod, const struct fleet_error *err)
{
    struct pod_query *query = user;

    query->call = NULL;
    if (err && !kube_is_not_found(err) && !kube_is_conflict(err)) {
        report_refused(query, err->text);
        reconciler_job_trouble(query->reconciler, "Labels of a worker were not put back",
                               query->key, err);
    } else if (pod && !pod_labels_are_seen(pod)) {
        report_refused(query, TAKEN_AGAIN);
    }
    query->times++;
    if (query->is_doubted && query->times > 1)
        report_refused(query, TAKEN_AGAIN);
    if (err || query->is_doubted)
        ask_later(query);
    else
        query->timer = kube_after(query->reconciler->io, MEMORY_MS, on_forget_time, query);
}

static void write_labels(struct pod_query *query)
{
    const char *slash = strchr(query->key, '/');
    FLEET_AUTO_JSON cJSON *body = fleet_json_new_object();
    char index[16], attempt[16];
    struct kube_rest_request patch = {.verb = KUBE_MERGE_PATCH,
                                      .resource = &kube_pods,
                                      .namespace_ = query->namespace_,
                                      .name = query->name,
                                      .body = body,
                                      .field_manager = WELLKNOWN_FIELD_MANAGER};

    (void)snprintf(index, sizeof(index), "%d", query->index);
    (void)snprintf(attempt, sizeof(attempt), "%d", query->attempt);
    fleet_assert(slash);
    fleet_json_set_string(fleet_json_set_object(body, "metadata"), "uid", query->uid);
    kube_meta_set_label(body, WELLKNOWN_LABEL_JOB, slash + 1);
    kube_meta_set_label(body, WELLKNOWN_LABEL_JOB_UID, query->job_uid);
    kube_meta_set_label(body, WELLKNOWN_LABEL_INDEX, index);
    kube_meta_set_label(body, WELLKNOWN_LABEL_ATTEMPT, attempt);
    query->call = kube_rest_start(query->reconciler->io, &patch, on_written, query);
}

void pod_labels_restore(const struct reconciler_job *job, const cJSON *pod)
{
    struct kube_meta meta;
    int index, attempt;

    if (!pod || pod_labels_are_seen(pod) || kube_meta_view(pod, &meta, NULL) < 0 ||
        !worker_name_parse(meta.name, job->name, &index, &attempt) ||
        find_query(job->reconciler, meta.uid))
        return;
    write_labels(new_query(job, meta.name, meta.uid, index, attempt));
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void on_read(void *user, const cJSON *pod, const struct fleet_error *err)
{
    struct pod_query *query = user;
    struct reconciler *r = query->reconciler;
    struct reconciler_job *job = find_job(query);
    const char *uid = "";

    query->call = NULL;
    (void)fleet_json_opt_string(pod, "metadata.uid", &uid, NULL);
    if (!job) {
        free_query(query);
        return;
    }
    if (err && !kube_is_not_found(err)) {
        query->times++;
        ask_later(query);
        return;
    }
    if (!err && strcmp(uid, query->uid) == 0 && !pod_labels_are_seen(pod) &&
        !fleet_json_at(pod, "metadata.deletionTimestamp")) {
        write_labels(query);
        return;
    }
    if (err || strcmp(uid, query->uid) != 0 || fleet_json_at(pod, "metadata.deletionTimestamp")) {
        (void)expectations_meet(r->expectations, query->key, EXPECT_CREATED, query->name);
        reconciler_pod_gone(job, query->uid, query->index, query->attempt);
        manager_enqueue(r->manager, query->key);
    } /* otherwise it has its label again and will appear in the cache */
    free_query(query);
}

static void read_pod(void *user)
{
    struct pod_query *query = user;
    struct kube_rest_request get = {.verb = KUBE_GET,
                                    .resource = &kube_pods,
                                    .namespace_ = query->namespace_,
                                    .name = query->name,
                                    .urgent = true};

    query->timer = NULL;
    query->call = kube_rest_start(query->reconciler->io, &get, on_read, query);
}

void pod_labels_doubt(struct reconciler_job *job, const struct projection_pod *pod)
{
    struct reconciler *r = job->reconciler;
    struct pod_query *query = find_query(r, pod->uid);

    expectations_note(r->expectations, job->key, EXPECT_CREATED, pod->name, kube_now_ms(r->io));
    if (!query) {
        read_pod(new_query(job, pod->name, pod->uid, pod->index, pod->attempt));
        return;
    }
    query->is_doubted = query->call != NULL;
    if (query->call)
        return;
    if (query->times > 1)
        report_refused(query, TAKEN_AGAIN);
    ask_later(query);
}

/* ---- searching ------------------------------------------------------------------------------- */

#define PAGE 500 /* pods of one answer */

static void restore_found(const struct reconciler_job *job, const cJSON *pod)
{
    struct reconciler *r = job->reconciler;
    struct kube_meta meta;

    if (!kube_meta_is_controlled_by(pod, job->uid) || pod_labels_are_seen(pod) ||
        fleet_json_at(pod, "metadata.deletionTimestamp") || kube_meta_view(pod, &meta, NULL) < 0)
        return;
    expectations_note(r->expectations, job->key, EXPECT_CREATED, meta.name, kube_now_ms(r->io));
    pod_labels_restore(job, pod);
}

static void on_listed(struct reconciler_request *request, const cJSON *list,
                      const struct fleet_error *err)
{
    const char *token = "";
    const cJSON *pod;
    struct kube_rest_request next = {.verb = KUBE_LIST,
                                     .resource = &kube_pods,
                                     .namespace_ = request->pass->job->namespace_,
                                     .limit = PAGE};

    cJSON_ArrayForEach(pod, fleet_json_at(list, "items")) restore_found(request->pass->job, pod);
    (void)fleet_json_opt_string(list, "metadata.continue", &token, NULL);
    next.continue_token = token;
    if (!err && *token)
        reconciler_resend(request, &next, on_listed);
    else
        reconciler_finish(request, err);
}

void pod_labels_search(struct reconciler_pass *pass)
{
    struct kube_rest_request request = {.verb = KUBE_LIST,
                                        .resource = &kube_pods,
                                        .namespace_ = pass->job->namespace_,
                                        .limit = PAGE};

    (void)reconciler_send(pass, &request, NULL, NULL, on_listed);
}
