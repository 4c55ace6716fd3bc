/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   create pod ── 409 ──▶ get ── ours, as we would make it ──▶ done
 *                              └ anybody else's ──▶ the next look takes the next attempt
 *
 * If a recorded pod has not been seen, nothing else is written or made before it is known what
 * became of it:
 *
 *   get ── ours ──▶ the next look comes when the cache has it, too
 *        └ 404 ──▶ it has vanished; the next look replaces it
 *
 * Of many pods CREATES_AT_ONCE are on their way, so that a job of thousands holds up no other one,
 * needs no memory for bodies that wait, and stops when one is refused, the job changes or the lease
 * is lost.
 */
#include "controller/fleetjob/apply_pods.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/job_objects.h"
#include "controller/fleetjob/job_secret.h"
#include "controller/fleetjob/pod_builder.h"
#include "controller/fleetjob/pod_labels.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/machinery/expectations.h"
#include "controller/machinery/metrics.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_name.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"

#define CONFLICT_MS 200.0 /* until the cache has the newer state, probably */
#define CREATES_AT_ONCE \
    64 /* more than the requests in flight (http.h), so that a free slot there
                            * is filled at once */

/* Does this process still lead, and does the job of this pass still exist? */
bool apply_may_act(const struct reconciler_pass *pass)
{
    const struct reconciler *r = pass->job->reconciler;
    const struct projection_job *cached =
        store_get(manager_store(r->manager, r->jobs_informer), pass->job->key);

    return manager_is_leading(r->manager) && cached && strcmp(cached->uid, pass->job->uid) == 0;
}

/* The node of the predecessor. If the node caused the failure, another node is better. */
static const char *last_node(const struct reconciler_pass *pass, int index, int attempt)
{
    const struct reconciler *r = pass->job->reconciler;
    const struct store *pods = manager_store(r->manager, r->pods_informer);
    const struct store_entry *entry;

    if (attempt == 0)
        return NULL;
    for (entry = store_first(pods, PROJECTION_POD_BY_JOB, pass->job->uid); entry;
         entry = store_next(entry, PROJECTION_POD_BY_JOB)) {
        const struct projection_pod *pod = store_object(entry);
        if (pod->index == index && pod->attempt == attempt - 1)
            return pod->node;
    }
    return NULL;
}

static struct pod_builder_request describe_pod(const struct reconciler_pass *pass)
{
    const struct reconciler_options *options = &pass->job->reconciler->options;

    return (struct pod_builder_request){
        .job = &pass->observation.job,
        .runtime_image = options->runtime_image,
        .cuda_image = options->cuda_image,
        .pull_policy = options->pull_policy,
        .has_json_logs = options->has_json_logs,
        .hub_address = options->hub_address,
        .gang = pass->job->gang,
        .server_address = job_objects_server_address(pass),
        .encrypts = job_secret_encrypts(&pass->observation.job, options->encrypts_data),
        .worker_bytes = pass->observation.plan->worker_bytes};
}

cJSON *apply_build_pod(const struct reconciler_pass *pass, int index, int attempt)
{
    FLEET_AUTO_FREE char *secret = job_secret_name(&pass->observation.job);
    struct pod_builder_request request = describe_pod(pass);

    request.index = index;
    request.attempt = attempt;
    request.secret = secret;
    request.avoid_node = last_node(pass, index, attempt);
    return pod_builder_build(&request);
}

void apply_digest_pod(const struct reconciler_pass *pass, uint8_t out[FLEET_SHA256_SIZE])
{
    static char name[] = "any-job", uid[] = "any-uid";
    struct fleetjob job = pass->observation.job; /* borrows all of it */
    struct pod_builder_request request = describe_pod(pass);
    FLEET_AUTO_JSON cJSON *pod = NULL;
    FLEET_AUTO_FREE char *text = NULL;

    job.metadata.name = name;
    job.metadata.uid = uid;
    request.job = &job;
    request.secret = name;
    pod = pod_builder_build(&request);
    text = fleet_json_print(pod);
    fleet_sha256(text, strlen(text), out);
}

static void forget_pod(const struct reconciler_request *r, enum expectation_kind kind)
{
    const struct reconciler_job *job = r->pass->job;

    (void)expectations_meet(job->reconciler->expectations, job->key, kind, r->name);
}

/* The next pass uses the next attempt and records it first, because a pod of that name may vanish
 * before any replica has seen it. */
static void note_taken(struct reconciler_pass *pass, int index, int attempt)
{
    struct reconciler_job *job = pass->job;
    size_t i = 0;

    while (i < job->taken_count && job->taken[i].index != index)
        i++;
    if (i == job->taken_count) {
        job->taken = fleet_grow(job->taken, job->taken_count, sizeof(*job->taken));
        job->taken_count++;
    }
    job->taken[i] = (struct observed_attempt){index, attempt};
    reconciler_requeue(pass, CONFLICT_MS);
}

/* The pod does not exist and will not appear: its attempt number is free. */
static void note_refused(struct reconciler_job *job, int index, int attempt)
{
    job->refused = fleet_grow(job->refused, job->refused_count, sizeof(*job->refused));
    job->refused[job->refused_count++] = (struct observed_attempt){index, attempt};
}

static void create_pod(struct reconciler_pass *pass, const struct action_create *create);

/* Is the decision of this pass still valid? */
static bool may_create(const struct reconciler_pass *pass)
{
    const struct reconciler *r = pass->job->reconciler;
    const struct projection_job *cached =
        store_get(manager_store(r->manager, r->jobs_informer), pass->job->key);

    return apply_may_act(pass) && cached->generation == pass->observation.job.metadata.generation &&
           !pass->has_failed && !pass->is_refused && !pass->job->is_doomed;
}

/* Start as many of the next creates as may be in flight, or drop the rest. */
static void create_pods(struct reconciler_pass *pass, bool go_on)
{
    const struct actions *actions = &pass->actions;

    while (go_on && pass->next_create < actions->create_count && pass->creating < CREATES_AT_ONCE)
        create_pod(pass, &actions->creates[pass->next_create++]);
    for (; !go_on && pass->next_create < actions->create_count; pass->next_create++)
        note_refused(pass->job, actions->creates[pass->next_create].index,
                     actions->creates[pass->next_create].attempt);
}

/* Start the next ones before this one counts as ended: the pass ends when none is in flight. */
static void finish_create(struct reconciler_request *r, const struct fleet_error *err)
{
    r->pass->creating--;
    create_pods(r->pass, !err && may_create(r->pass));
    reconciler_finish(r, err);
}

/* Name collision: is this the pod that we wanted to create? The watch does not show a pod that has
 * lost its labels. Such a pod also counts, even if its image has become a digest since. */
static void on_pod_read(struct reconciler_request *r, const cJSON *object,
                        const struct fleet_error *err)
{
    struct reconciler_pass *pass = r->pass;
    bool is_deleting = object && fleet_json_at(object, "metadata.deletionTimestamp");

    if (err && !kube_is_not_found(err)) {
        finish_create(r, err);
        return;
    }
    if (!err && kube_meta_is_controlled_by(object, pass->job->uid) && !is_deleting &&
        (!pod_labels_are_seen(object) ||
         strcmp(pod_builder_hash(object), pod_builder_hash(r->body)) == 0)) {
        pass->created += !r->is_replacement; /* we made it, but the answer was lost */
        pod_labels_restore(pass->job, object);
        finish_create(r, NULL);
        return;
    }
    forget_pod(r, EXPECT_CREATED);
    note_taken(pass, r->index, r->attempt);
    finish_create(r, NULL);
}

/* The server failed, or the connection broke before the answer: the pod may exist. */
static void on_doubtful_pod_read(struct reconciler_request *r, const cJSON *object,
                                 const struct fleet_error *err)
{
    (void)object;
    if (err && kube_is_not_found(err))
        forget_pod(r, EXPECT_CREATED);
    finish_create(r, NULL); /* the pass has already failed and will be repeated */
}

static void read_doubtful_pod(struct reconciler_request *r, const struct kube_rest_request *get,
                              const struct fleet_error *err)
{
    if (!r->pass->has_failed) {
        r->pass->has_failed = true;
        r->pass->err = *err;
    }
    reconciler_resend(r, get, on_doubtful_pod_read);
}

/* May the server have made the pod despite this error? */
static bool may_be_done(const struct fleet_error *err)
{
    return kube_is_retryable(err) && !kube_was_not_sent(err) && !kube_is_too_many_requests(err);
}

static void on_pod_created(struct reconciler_request *r, const cJSON *object,
                           const struct fleet_error *err)
{
    struct reconciler_pass *pass = r->pass;
    struct kube_rest_request get = {.verb = KUBE_GET,
                                    .resource = &kube_pods,
                                    .namespace_ = pass->job->namespace_,
                                    .name = r->name};

    if (err && kube_is_already_exists(err)) {
        reconciler_resend(r, &get, on_pod_read);
        return;
    }
    if (err && may_be_done(err)) {
        read_doubtful_pod(r, &get, err);
        return;
    }
    pass->created += !err && !r->is_replacement;
    if (!err) {
        metric_add(pass->job->reconciler->pods_created, 1);
        pod_labels_restore(pass->job, object); /* an admission webhook may have removed them */
    } else
        forget_pod(r, EXPECT_CREATED);
    if (err && !kube_is_terminating(err) && (kube_is_forbidden(err) || kube_is_invalid(err))) {
        reconciler_refuse(pass, err);
        note_refused(pass->job, r->index, r->attempt);
        err = NULL; /* reported, and repeated when it is due; not a failure of the pass */
    }
    finish_create(r, err);
}

static void create_pod(struct reconciler_pass *pass, const struct action_create *create)
{
    struct reconciler_job *job = pass->job;
    struct kube_rest_request request = {.verb = KUBE_CREATE,
                                        .resource = &kube_pods,
                                        .namespace_ = job->namespace_,
                                        .only_metadata = true,
                                        .field_manager = WELLKNOWN_FIELD_MANAGER,
                                        .field_validation = "Ignore"}; /* prepare.c was strict */
    char *name = worker_name_build(job->name, create->index, create->attempt);
    struct reconciler_request *r;

    expectations_note(job->reconciler->expectations, job->key, EXPECT_CREATED, name,
                      kube_now_ms(job->reconciler->io));
    r = reconciler_send(pass, &request, apply_build_pod(pass, create->index, create->attempt), name,
                        on_pod_created);
    pass->creating++;
    r->index = create->index;
    r->attempt = create->attempt;
    r->is_replacement = create->is_replacement;
}

/* ---- servers --------------------------------------------------------------------------------- */

static void on_server_created(struct reconciler_request *r, const cJSON *object,
                              const struct fleet_error *err)
{
    struct reconciler_pass *pass = r->pass;

    (void)object;
    if (!err)
        metric_add(pass->job->reconciler->pods_created, 1);
    if (err && !may_be_done(err))
        forget_pod(r, EXPECT_CREATED);
    if (err)
        note_refused(pass->job, r->index, -1);
    if (err && !kube_is_terminating(err) &&
        (kube_is_forbidden(err) || kube_is_invalid(err) || kube_is_already_exists(err))) {
        reconciler_refuse(pass, err);
        err = NULL; /* reported, and repeated when it is due; not a failure of the pass */
    }
    reconciler_finish(r, err);
}

cJSON *apply_build_server(const struct reconciler_pass *pass, int index)
{
    FLEET_AUTO_FREE char *secret = job_secret_name(&pass->observation.job);
    struct pod_builder_request request = describe_pod(pass);

    request.index = index;
    request.secret = secret;
    return pod_builder_build_server(&request);
}

void apply_create_server(struct reconciler_pass *pass, int index)
{
    struct reconciler_job *job = pass->job;
    struct kube_rest_request request = {.verb = KUBE_CREATE,
                                        .resource = &kube_pods,
                                        .namespace_ = job->namespace_,
                                        .only_metadata = true,
                                        .field_manager = WELLKNOWN_FIELD_MANAGER,
                                        .field_validation = "Ignore"}; /* prepare.c was strict */
    char *name = server_name_build(job->name, index);

    expectations_note(job->reconciler->expectations, job->key, EXPECT_CREATED, name,
                      kube_now_ms(job->reconciler->io));
    reconciler_send(pass, &request, apply_build_server(pass, index), name, on_server_created)
        ->index = index;
}

static void on_pod_deleted(struct reconciler_request *r, const cJSON *object,
                           const struct fleet_error *err)
{
    (void)object;
    if (err && (!kube_is_unreachable(err) || kube_was_not_sent(err)))
        forget_pod(r, EXPECT_DELETED);
    if (!err)
        metric_add(r->pass->job->reconciler->pods_deleted, 1);
    reconciler_finish(r, err && (kube_is_not_found(err) || kube_is_conflict(err)) ? NULL : err);
}

/* A pod whose agent does not answer would take its whole grace period. Two seconds suffice if its
 * kubelet still answers. */
void apply_delete_pod(struct reconciler_pass *pass, const char *name, bool at_once)
{
    static const int64_t at_once_s = PROJECTION_GRACE_GIVEN_UP_S;
    struct reconciler_job *job = pass->job;
    const struct observed *observed = &pass->observation.observed;
    struct kube_rest_request request = {.verb = KUBE_DELETE,
                                        .resource = &kube_pods,
                                        .namespace_ = job->namespace_,
                                        .name = name,
                                        .grace_period_s = at_once ? &at_once_s : NULL,
                                        .propagation = "Background"};
    char *own = strdup(name);

    fleet_assert(own);
    for (size_t i = 0; i < observed->pod_count; i++)
        if (strcmp(observed->pods[i].name, name) == 0)
            request.uid = observed->pods[i].uid;
    for (size_t i = 0; i < observed->server_count; i++)
        if (strcmp(observed->servers[i].name, name) == 0)
            request.uid = observed->servers[i].uid;
    expectations_note(job->reconciler->expectations, job->key, EXPECT_DELETED, name,
                      kube_now_ms(job->reconciler->io));
    (void)reconciler_send(pass, &request, NULL, own, on_pod_deleted);
}

/* ---- pods that are recorded and not seen ----------------------------------------------------- */

static void on_unseen_pod_read(struct reconciler_request *r, const cJSON *object,
                               const struct fleet_error *err)
{
    bool is_there = !err && kube_meta_is_controlled_by(object, r->pass->job->uid);

    if (is_there)
        pod_labels_restore(r->pass->job, object);
    else
        forget_pod(r, EXPECT_CREATED);
    if (err && !kube_is_not_found(err)) {
        reconciler_finish(r, err);
        return;
    }
    if (!is_there)
        reconciler_note_vanished(r->pass->job, r->index, r->attempt);
    reconciler_finish(r, NULL);
}

void apply_look_for_pod(struct reconciler_pass *pass, const struct observed_attempt *look)
{
    struct reconciler_job *job = pass->job;
    char *name = worker_name_build(job->name, look->index, look->attempt);
    struct kube_rest_request get = {
        .verb = KUBE_GET, .resource = &kube_pods, .namespace_ = job->namespace_, .name = name};
    struct reconciler_request *r;

    expectations_note(job->reconciler->expectations, job->key, EXPECT_CREATED, name,
                      kube_now_ms(job->reconciler->io));
    r = reconciler_send(pass, &get, NULL, name, on_unseen_pod_read);
    r->index = look->index;
    r->attempt = look->attempt;
}

void apply_create_pods(struct reconciler_pass *pass)
{
    create_pods(pass, true);
}
