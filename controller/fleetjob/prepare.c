/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Before the first pods of a generation of the spec: the Secret and the Service that they need, and a
 * create that changes nothing, so that a template which the API server will not have is refused as a
 * part of the spec, before there are pods.
 *
 *   Secret   create ── 409: it is ours, because its name holds our UID ──▶ patch
 *   Service  create ── 409 ──▶ get ── ours: fine · of a job before us: take it over · else: leave it
 *   PodGroup of the gang scheduler that there is, if any: create ── 409 ──▶ patch
 *   Pod      create, dry run ── 400, 422: what is wrong with the spec · else: whatever comes, comes
 *
 * If one of them is refused (quota, admission) or fails, the job is looked after without new pods, and this is tried
 * again when refusal.h says so.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/gang.h"
#include "controller/fleetjob/job_secret.h"
#include "controller/fleetjob/job_service.h"
#include "controller/fleetjob/pass.h"
#include "controller/fleetjob/reconciler_internal.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"

bool prepare_is_needed(const struct reconciler_pass *pass)
{
    const struct observation *o = &pass->observation;

    return o->errors.count == 0 && o->job.metadata.deleted_wall_ms == 0 &&
           !o->job.spec.run_policy.suspend && !status_is_terminal(&o->job.status) &&
           (pass->job->prepared_generation != o->job.metadata.generation || pass->job->pod_error);
}

static struct kube_rest_request make_request(const struct reconciler_pass *pass,
                                             enum kube_verb verb,
                                             const struct kube_resource *resource, const char *name)
{
    return (struct kube_rest_request){.verb = verb,
                                      .resource = resource,
                                      .namespace_ = pass->job->namespace_,
                                      .name = name,
                                      .field_manager = WELLKNOWN_FIELD_MANAGER};
}

/* ---- the Secret ------------------------------------------------------------------------------- */

static void on_secret_patched(struct reconciler_request *r, const cJSON *object,
                              const struct fleet_error *err)
{
    (void)object;
    reconciler_finish(r, err);
}

static void on_secret_created(struct reconciler_request *r, const cJSON *object,
                              const struct fleet_error *err)
{
    struct kube_rest_request patch =
        make_request(r->pass, KUBE_MERGE_PATCH, &kube_secrets, r->name);

    (void)object;
    if (err && kube_is_already_exists(err)) {
        patch.body = r->body;
        reconciler_resend(r, &patch, on_secret_patched);
        return;
    }
    reconciler_finish(r, err);
}

static void make_secret(struct reconciler_pass *pass)
{
    const struct reconciler_options *options = &pass->job->reconciler->options;
    const struct install_identity *identity = options->identity;
    struct kube_rest_request request = make_request(pass, KUBE_CREATE, &kube_secrets, NULL);
    char token[FLEET_SHA256_HEX_SIZE];

    hub_server_token(identity->key, sizeof(identity->key), pass->job->uid, token);
    (void)reconciler_send(pass, &request,
                          job_secret_build(&pass->observation.job, options->hub_address, token,
                                           identity->ca.certificate_pem),
                          job_secret_name(&pass->observation.job), on_secret_created);
}

/* ---- the Service ------------------------------------------------------------------------------ */

/* Nothing waits for it: names of pods are for people. */
static void on_service_done(struct reconciler_request *r, const cJSON *object,
                            const struct fleet_error *err)
{
    (void)object;
    if (err)
        reconciler_trouble(r->pass->job->reconciler, "Service was not made", err);
    reconciler_finish(r, NULL);
}

static void on_service_read(struct reconciler_request *r, const cJSON *object,
                            const struct fleet_error *err)
{
    struct kube_rest_request patch =
        make_request(r->pass, KUBE_MERGE_PATCH, &kube_services, r->name);
    const cJSON *owner = object ? kube_meta_controller(object) : NULL;
    const char *kind = "";

    (void)fleet_json_opt_string(owner, "kind", &kind, NULL);
    if (err || kube_meta_is_controlled_by(object, r->pass->job->uid) ||
        strcmp(kind, WELLKNOWN_KIND) != 0) {
        reconciler_finish(r, NULL); /* there, or a stranger's: the job runs without it */
        return;
    }
    patch.body = r->body;
    reconciler_resend(r, &patch, on_service_done);
}

static void on_service_created(struct reconciler_request *r, const cJSON *object,
                               const struct fleet_error *err)
{
    struct kube_rest_request get = make_request(r->pass, KUBE_GET, &kube_services, r->name);

    if (err && kube_is_already_exists(err)) {
        reconciler_resend(r, &get, on_service_read);
        return;
    }
    on_service_done(r, object, err);
}

static void make_service(struct reconciler_pass *pass)
{
    struct kube_rest_request request = make_request(pass, KUBE_CREATE, &kube_services, NULL);
    cJSON *service = job_service_build(&pass->observation.job);
    const char *name = "";

    (void)fleet_json_opt_string(service, "metadata.name", &name, NULL);
    (void)reconciler_send(pass, &request, service, strdup(name), on_service_created);
}

#define POD_ERROR_MS \
    60000.0 /* the pods are tried again then: admission may have changed its mind */

static void refuse_pods(struct reconciler_job *job, const char *text)
{
    if (job->pod_error)
        return;
    job->pod_error = strdup(text);
    fleet_assert(job->pod_error);
    job->pod_error_until_ms = kube_now_ms(job->reconciler->io) + POD_ERROR_MS;
}

/* ---- the pods --------------------------------------------------------------------------------- */

static void on_pod_tried(struct reconciler_request *r, const cJSON *object,
                         const struct fleet_error *err)
{
    struct reconciler_job *job = r->pass->job;

    (void)object;
    if (err && kube_is_invalid(err)) {
        const char *text = strstr(err->text, "422 ");
        refuse_pods(job, text ? text : err->text);
        reconciler_finish(r, NULL);
        return;
    }
    reconciler_finish(r, err && kube_is_retryable(err) ? err : NULL);
}

static void try_pod(struct reconciler_pass *pass)
{
    struct kube_rest_request request = make_request(pass, KUBE_CREATE, &kube_pods, NULL);

    request.dry_run = true;
    (void)reconciler_send(pass, &request, apply_build_pod(pass, 0, 0), NULL, on_pod_tried);
}

/* ---- the gang --------------------------------------------------------------------------------- */

#define GANG_SEEN_MS 60000.0 /* so long what was seen of gang schedulers holds */

/* A job that names its scheduler cannot do without; one that takes what there is, can. */
static void on_group_refused(struct reconciler_request *r, const struct fleet_error *err)
{
    struct reconciler_job *job = r->pass->job;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (gang_is_auto(&r->pass->observation.job)) {
        reconciler_trouble(job->reconciler, "PodGroup was not made", err);
        job->gang = GANG_NONE;
    } else {
        fleet_strbuf_appendf(&text, "runPolicy.scheduling.gang: no PodGroup of %s can be made: %s",
                             gang_name(job->gang), err->text);
        refuse_pods(job, text.text);
    }
    reconciler_finish(r, NULL);
}

static void on_group_patched(struct reconciler_request *r, const cJSON *object,
                             const struct fleet_error *err)
{
    (void)object;
    reconciler_finish(r, err);
}

static void on_group_created(struct reconciler_request *r, const cJSON *object,
                             const struct fleet_error *err)
{
    struct kube_rest_request patch =
        make_request(r->pass, KUBE_MERGE_PATCH, gang_resource(r->pass->job->gang), r->name);

    (void)object;
    if (err && kube_is_already_exists(err)) {
        patch.body = r->body;
        reconciler_resend(r, &patch, on_group_patched);
    } else if (err && (kube_is_not_found(err) || kube_is_forbidden(err) || kube_is_invalid(err))) {
        on_group_refused(r, err);
    } else {
        reconciler_finish(r, err);
    }
}

static void make_group(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;
    struct kube_rest_request request;

    job->gang = gang_choose(&pass->observation.job, job->reconciler->has_gang);
    if (job->gang == GANG_NONE)
        return;
    request = make_request(pass, KUBE_CREATE, gang_resource(job->gang), NULL);
    (void)reconciler_send(pass, &request, gang_build(&pass->observation.job, job->gang),
                          gang_group_name(&pass->observation.job), on_group_created);
}

static void on_gang_asked(struct reconciler_request *r, const cJSON *object,
                          const struct fleet_error *err)
{
    struct reconciler *reconciler = r->pass->job->reconciler;

    (void)object;
    for (int s = GANG_NONE + 1; s < GANG_SCHEDULERS; s++)
        if (r->resource == gang_discovery((enum gang_scheduler)s))
            reconciler->has_gang[s] = err == NULL;
    reconciler->gang_until_ms = kube_now_ms(reconciler->io) + GANG_SEEN_MS;
    reconciler_finish(r, NULL); /* not there, or not to be known: the job can do without */
}

/* Which gang schedulers does the cluster have? */
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

/* ---- together --------------------------------------------------------------------------------- */

/* The pass ends here in any case, because what it observed is older than the answers. If the server refused or failed,
 * the next one looks after the job without new pods until it is time to ask again. If nobody answered, nothing can be
 * recorded either: the manager tries again. */
static void finish(struct reconciler_pass *pass)
{
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
    if (!pass->has_failed && !pass->job->pod_error)
        try_pod(pass);
    reconciler_then(pass, finish);
}

static void make_objects(struct reconciler_pass *pass)
{
    pass->next = NULL; /* not before all of these are on their way */
    make_secret(pass);
    make_service(pass);
    make_group(pass);
    reconciler_then(pass, try_pods);
}

void prepare_run(struct reconciler_pass *pass)
{
    free(pass->job->pod_error);
    pass->job->pod_error = NULL;
    ask_for_gangs(pass);
    reconciler_then(pass, make_objects);
}
