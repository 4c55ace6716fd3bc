/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Before the first pods of a generation of the spec: make the objects that they need
 * (job_objects.h), and create a pod as a dry run. So a template that the API server refuses is an
 * error of the spec, before there are pods.
 *
 *   find gang schedulers ──▶ Secret, Service, PodGroup ──▶ Pod, dry run ── 400, 422: a wrong spec
 *                                                                      └ else: go on
 *
 * The dry run is strict, because the API server would silently drop an unknown field (a misspelt
 * limit). A job that says the same as one before needs none (tried_pods.h). Pods are created
 * without that check, which costs the server time.
 *
 * If one of them is refused (quota, admission) or fails, the job goes on without new pods, and the
 * preparation is repeated when refusal.h says so. When all is done, only objects that were deleted
 * since are made again.
 */
#include "controller/fleetjob/prepare.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/apply_pods.h"
#include "controller/fleetjob/gang.h"
#include "controller/fleetjob/job_objects.h"
#include "controller/fleetjob/pod_errors.h"
#include "controller/fleetjob/pod_labels.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"

static bool wants_pods(const struct reconciler_pass *pass)
{
    const struct observation *o = &pass->observation;

    return !o->searches && o->errors.count == 0 && o->job.metadata.deleted_wall_ms == 0 &&
           !o->job.spec.run_policy.suspend && !status_is_terminal(&o->job.status);
}

/* Pods that the API server has called invalid are tried again after this time. */
static bool is_prepared(const struct reconciler_pass *pass)
{
    return pass->job->prepared_generation == pass->observation.job.metadata.generation &&
           pass->job->pod_errors.count == 0;
}

bool prepare_is_needed(struct reconciler_pass *pass, double *wait_ms)
{
    *wait_ms = -1;
    pass->objects = 0;
    if (!wants_pods(pass))
        return false;
    pass->objects = is_prepared(pass) ? job_objects_due(pass, wait_ms) : JOB_OBJECTS;
    return pass->objects != 0;
}

/* ---- the pods -------------------------------------------------------------------------------- */

#define TRIED_WAIT_MS 50.0    /* while another job's dry run of the same pod is under way */
#define POD_ERROR_MS  60000.0 /* then pods are tried again: admission may accept them now */

void prepare_refuse_pods(struct reconciler_job *job)
{
    fleet_assert(job->pod_errors.count > 0);
    job->pod_errors_until_ms = kube_now_ms(job->reconciler->io) + POD_ERROR_MS;
}

static void note_tried(const struct reconciler_pass *pass, enum tried_pods_answer answer)
{
    struct reconciler *r = pass->job->reconciler;
    uint8_t digest[FLEET_SHA256_SIZE];

    apply_digest_pod(pass, digest);
    tried_pods_set(&r->tried_pods, digest, answer, kube_now_ms(r->io));
}

static enum tried_pods_answer tried(const struct reconciler_pass *pass)
{
    const struct reconciler *r = pass->job->reconciler;
    uint8_t digest[FLEET_SHA256_SIZE];

    apply_digest_pod(pass, digest);
    return tried_pods_get(&r->tried_pods, digest, kube_now_ms(r->io));
}

static void note_answer(struct reconciler_request *r, const struct fleet_error *err)
{
    struct reconciler_job *job = r->pass->job;

    if (err && kube_is_invalid(err)) {
        pod_errors_explain(&r->pass->observation.job, r->body, err, &job->pod_errors);
        prepare_refuse_pods(job);
        reconciler_finish(r, NULL);
        return;
    }
    reconciler_finish(r, err && kube_is_retryable(err) ? err : NULL);
}

static void on_pod_tried(struct reconciler_request *r, const cJSON *object,
                         const struct fleet_error *err)
{
    (void)object;
    note_tried(r->pass, err ? TRIED_PODS_UNKNOWN : TRIED_PODS_VALID);
    note_answer(r, err);
}

static void on_server_tried(struct reconciler_request *r, const cJSON *object,
                            const struct fleet_error *err)
{
    (void)object;
    note_answer(r, err);
}

static void try_pod(struct reconciler_pass *pass, cJSON *pod,
                    void (*done)(struct reconciler_request *, const cJSON *,
                                 const struct fleet_error *))
{
    struct kube_rest_request request = {.verb = KUBE_CREATE,
                                        .resource = &kube_pods,
                                        .namespace_ = pass->job->namespace_,
                                        .only_metadata = true,
                                        .field_manager = WELLKNOWN_FIELD_MANAGER,
                                        .dry_run = true,
                                        .field_validation = "Strict"};

    (void)reconciler_send(pass, &request, pod, NULL, done);
}

/* ---- gang schedulers ------------------------------------------------------------------------- */

#define GANG_SEEN_MS 60000.0 /* how long the list of found gang schedulers stays valid */

static void on_gang_asked(struct reconciler_request *r, const cJSON *object,
                          const struct fleet_error *err)
{
    struct reconciler *reconciler = r->pass->job->reconciler;

    (void)object;
    for (int s = GANG_NONE + 1; s < GANG_SCHEDULERS; s++)
        if (r->resource == gang_discovery((enum gang_scheduler)s))
            reconciler->has_gang[s] = err == NULL;
    reconciler->gang_until_ms = kube_now_ms(reconciler->io) + GANG_SEEN_MS;
    reconciler_finish(r, NULL); /* absent or unknown: the job does not depend on it */
}

/* Find the cluster's gang schedulers. */
static void ask_for_gangs(struct reconciler_pass *pass)
{
    struct reconciler *r = pass->job->reconciler;

    if (!gang_is_auto(&pass->observation.job) || kube_now_ms(r->io) < r->gang_until_ms)
        return;
    for (int s = GANG_NONE + 1; s < GANG_SCHEDULERS; s++) {
        struct kube_rest_request request = {.verb = KUBE_LIST,
                                            .resource = gang_discovery((enum gang_scheduler)s)};
        (void)reconciler_send(pass, &request, NULL, NULL, on_gang_asked);
    }
}

/* ---- together -------------------------------------------------------------------------------- */

/*
 * The pass ends here in any case, because its observation is older than the answers. If the server
 * refused or failed, the next passes make no new pods until the next try is due. If the server did
 * not answer, the status cannot be written either, and the manager repeats the pass.
 */
static void finish(struct reconciler_pass *pass)
{
    if (pass->has_failed && tried(pass) == TRIED_PODS_ASKED)
        note_tried(pass, TRIED_PODS_UNKNOWN); /* it did not come to that: another job may ask */
    if (pass->has_failed && kube_is_unreachable(&pass->err)) {
        reconciler_end(pass);
        return;
    }
    if (pass->has_failed) {
        reconciler_refuse(pass, &pass->err);
        pass->has_failed = false;
    } else {
        pass->job->prepared_generation = pass->observation.job.metadata.generation;
    }
    pass->requeue_after_ms = 0;
    reconciler_end(pass);
}

static void try_pods(struct reconciler_pass *pass)
{
    pass->next = NULL;
    if (!pass->has_failed && pass->is_status_lost)
        pod_labels_search(pass);
    if (!pass->has_failed && pass->job->pod_errors.count == 0 && tried(pass) != TRIED_PODS_VALID)
        try_pod(pass, apply_build_pod(pass, 0, 0), on_pod_tried);
    if (!pass->has_failed && pass->job->pod_errors.count == 0 &&
        pass->observation.job.spec.server.template_) /* else it has been tried */
        try_pod(pass, apply_build_server(pass, 0), on_server_tried);
    reconciler_then(pass, finish);
}

/* If pods have already started with the recorded Secret, it need not be read. */
static bool is_secret_needed(const struct reconciler_pass *pass)
{
    const struct observed *in = &pass->observation.observed;

    for (size_t i = 0; i < in->pod_count; i++)
        if (in->pods[i].phase == OBSERVED_RUNNING && job_objects_has_secret(pass))
            return false;
    return true;
}

static void make_objects(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;

    pass->next = NULL; /* do not finish before all of these are sent */
    job->gang = gang_choose(&pass->observation.job, job->reconciler->has_gang);
    if (!is_secret_needed(pass))
        pass->objects &= ~JOB_OBJECT_SECRET;
    job_objects_make(pass, pass->objects);
    reconciler_then(pass, try_pods);
}

void prepare_run(struct reconciler_pass *pass)
{
    pass->is_repair = is_prepared(pass);
    if (pass->is_repair) { /* some of the objects were deleted */
        job_objects_make(pass, pass->objects);
        reconciler_then(pass, finish);
        return;
    }
    switch (tried(pass)) {
    case TRIED_PODS_VALID:
        break;
    case TRIED_PODS_UNKNOWN:
        note_tried(pass, TRIED_PODS_ASKED); /* this pass will ask, in try_pods() */
        break;
    case TRIED_PODS_ASKED: /* by another job: its answer serves this one, too */
        pass->requeue_after_ms = TRIED_WAIT_MS;
        reconciler_end(pass);
        return;
    }
    fleet_errors_release(&pass->job->pod_errors);
    ask_for_gangs(pass);
    reconciler_then(pass, make_objects);
}
