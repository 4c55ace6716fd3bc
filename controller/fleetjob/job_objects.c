/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/job_objects.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/gang.h"
#include "controller/fleetjob/job_secret.h"
#include "controller/fleetjob/job_service.h"
#include "controller/fleetjob/pod_builder.h"
#include "controller/fleetjob/prepare.h"
#include "controller/fleetjob/projection.h"
#include "controller/fleetjob/reconciler_pass.h"
#include "controller/machinery/ratelimiter.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"

/* a pod may take this long to start before the controller checks its objects */
#define START_MS 10000.0
/* interval of checks while pods do not start; it doubles */
#define RETRY_MIN_MS      30000.0
#define RETRY_MAX_MS      300000.0
#define SECRET_MS         60000.0 /* a Secret that was read is assumed to exist this long */
#define SERVICE_RETRY_MS  10000.0 /* between attempts, and for the cache; doubles */
#define SERVICE_RETRY_MAX 600000.0

static struct kube_rest_request make_request(const struct reconciler_pass *pass,
                                             enum kube_verb verb,
                                             const struct kube_resource *resource, const char *name)
{
    return (struct kube_rest_request){.verb = verb,
                                      .resource = resource,
                                      .namespace_ = pass->job->namespace_,
                                      .name = name,
                                      .propagation = verb == KUBE_DELETE ? "Background" : NULL,
                                      .field_manager = WELLKNOWN_FIELD_MANAGER};
}

/* Create the object of the request, after another one with its name was deleted. */
static void create_instead(struct reconciler_request *r,
                           void (*done)(struct reconciler_request *, const cJSON *,
                                        const struct fleet_error *))
{
    struct kube_rest_request create = make_request(r->pass, KUBE_CREATE, r->resource, NULL);

    create.body = r->body;
    reconciler_resend(r, &create, done);
}

/* ---- the Secret ------------------------------------------------------------------------------ */

const char *job_objects_secret_digest(const struct reconciler_pass *pass)
{
    const char *recorded = pass->observation.job.status.secret_digest;

    return pass->job->secret_digest[0] ? pass->job->secret_digest : recorded ? recorded : "";
}

/* Does the recorded Secret have the same content as this one? */
static bool is_recorded(const struct reconciler_pass *pass, const cJSON *secret)
{
    char digest[FLEET_SHA256_HEX_SIZE];

    job_secret_digest(secret, digest);
    return strcmp(job_objects_secret_digest(pass), digest) == 0;
}

static void on_secret_made(struct reconciler_request *r, const cJSON *object,
                           const struct fleet_error *err)
{
    (void)object;
    if (!err)
        job_secret_digest(r->body, r->pass->job->secret_digest);
    reconciler_finish(r, err);
}

static void on_secret_deleted(struct reconciler_request *r, const cJSON *object,
                              const struct fleet_error *err)
{
    (void)object;
    if (err && !kube_is_not_found(err))
        reconciler_finish(r, err);
    else
        create_instead(r, on_secret_made);
}

static void on_secret_created(struct reconciler_request *r, const cJSON *object,
                              const struct fleet_error *err)
{
    struct kube_rest_request delete = make_request(r->pass, KUBE_DELETE, &kube_secrets, r->name);

    if (!err || kube_is_terminating(err) || kube_is_unreachable(err)) {
        on_secret_made(r, object, err);
    } else if (is_recorded(r->pass, r->body)) {
        on_secret_made(r, NULL, NULL);
    } else if (kube_is_already_exists(err)) {
        r->pass->is_status_lost = job_objects_secret_digest(r->pass)[0] == '\0';
        reconciler_resend(r, &delete, on_secret_deleted);
    } else {
        reconciler_finish(r, err);
    }
}

static cJSON *build_secret(const struct reconciler_pass *pass)
{
    const struct reconciler_options *options = &pass->job->reconciler->options;
    const struct install_identity *identity = options->identity;
    char token[FLEET_SHA256_HEX_SIZE];

    hub_server_token(identity->key, sizeof(identity->key), pass->job->uid, token);
    return job_secret_build(&pass->observation.job, options->hub_address, token,
                            identity->ca.certificate_pem, options->encrypts_data);
}

bool job_objects_has_secret(const struct reconciler_pass *pass)
{
    FLEET_AUTO_JSON cJSON *secret = build_secret(pass);

    return is_recorded(pass, secret);
}

static void make_secret(struct reconciler_pass *pass)
{
    struct kube_rest_request request = make_request(pass, KUBE_CREATE, &kube_secrets, NULL);

    request.only_metadata = true;
    pass->job->secret_at_ms = kube_now_ms(pass->job->reconciler->io);
    (void)reconciler_send(pass, &request, build_secret(pass),
                          job_secret_name(&pass->observation.job), on_secret_created);
}

void job_objects_check_secret(struct reconciler_pass *pass)
{
    const struct reconciler_job *job = pass->job;

    if (kube_now_ms(job->reconciler->io) >= job->secret_at_ms + SECRET_MS)
        make_secret(pass);
}

/* ---- the Service ----------------------------------------------------------------------------- */

/* The Service of that name, if its labels assign it to a job; NULL = none. Takes `name`. */
static const struct projection_service *find_named(const struct reconciler_job *job, char *name)
{
    FLEET_AUTO_FREE char *own = name;
    FLEET_AUTO_FREE char *key = kube_meta_key(job->namespace_, own);
    const struct reconciler *r = job->reconciler;

    return store_get(manager_store(r->manager, r->services_informer), key);
}

static const struct projection_service *find_service(const struct reconciler_job *job)
{
    return find_named(job, pod_builder_service_name(job->name));
}

static bool is_of_job(const struct projection_service *service, const struct reconciler_job *job)
{
    return service && service->owner_uid && strcmp(service->owner_uid, job->uid) == 0;
}

static bool has_service(const struct reconciler_job *job)
{
    return is_of_job(find_service(job), job);
}

/* Made only if the user asks for names. For every Service with a selector, the cluster writes the
 * addresses of all its pods, and the scheduler spreads them over nodes. */
static bool wants_service(const struct reconciler_pass *pass)
{
    return pass->observation.job.spec.worker.hostnames;
}

/* No pod waits for the Service: the names of pods are for users. */
static void on_service_made(struct reconciler_request *r, const cJSON *object,
                            const struct fleet_error *err)
{
    (void)object;
    if (err && !kube_is_already_exists(err)) /* otherwise it belongs to another object */
        reconciler_job_trouble(r->pass->job->reconciler, "Service was not made", r->pass->job->key,
                               err);
    reconciler_finish(r, err && kube_is_terminating(err) ? err : NULL);
}

static void on_service_deleted(struct reconciler_request *r, const cJSON *object,
                               const struct fleet_error *err)
{
    if (err && !kube_is_not_found(err))
        on_service_made(r, object, err);
    else
        create_instead(r, on_service_made);
}

static void make_service(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;
    const struct projection_service *there = find_service(job);
    char *name = pod_builder_service_name(job->name);
    struct kube_rest_request delete = make_request(pass, KUBE_DELETE, &kube_services, name);
    struct kube_rest_request create = make_request(pass, KUBE_CREATE, &kube_services, NULL);
    struct reconciler_request *r;

    job->service_tries++;
    job->service_at_ms =
        kube_now_ms(job->reconciler->io) +
        ratelimiter_delay_ms(SERVICE_RETRY_MS, SERVICE_RETRY_MAX, job->service_tries, 0);
    if (!there || !there->is_ours) {
        (void)reconciler_send(pass, &create, job_service_build(&pass->observation.job), name,
                              on_service_made);
        return;
    }
    delete.uid = there->uid;
    r = reconciler_send(pass, &delete, NULL, name, on_service_deleted);
    r->body = job_service_build(&pass->observation.job);
}

/* ---- the Service of the servers -------------------------------------------------------------- */

static bool wants_servers(const struct reconciler_pass *pass)
{
    return pass->observation.job.spec.has_server;
}

/* NULL = it is not in the cache, or belongs to another object. */
static const struct projection_service *find_servers(const struct reconciler_job *job)
{
    const struct projection_service *service = find_named(job, pod_builder_servers_name(job->name));

    return is_of_job(service, job) ? service : NULL;
}

const char *job_objects_server_address(const struct reconciler_pass *pass)
{
    const char *recorded = pass->observation.job.status.servers.address;
    const struct projection_service *service;

    if (!wants_servers(pass))
        return "";
    service = find_servers(pass->job);
    return recorded && recorded[0] ? recorded : service ? service->address : "";
}

static void on_servers_made(struct reconciler_request *r, const cJSON *object,
                            const struct fleet_error *err)
{
    (void)object;
    reconciler_finish(r, err);
}

static void on_servers_deleted(struct reconciler_request *r, const cJSON *object,
                               const struct fleet_error *err)
{
    (void)object;
    if (err && !kube_is_not_found(err))
        reconciler_finish(r, err);
    else
        create_instead(r, on_servers_made);
}

/* One of a job before us, or orphaned by it, is replaced. */
static void make_servers(struct reconciler_pass *pass)
{
    struct reconciler_job *job = pass->job;
    const struct projection_service *there = find_named(job, pod_builder_servers_name(job->name));
    char *name = pod_builder_servers_name(job->name);
    struct kube_rest_request delete = make_request(pass, KUBE_DELETE, &kube_services, name);
    struct kube_rest_request create = make_request(pass, KUBE_CREATE, &kube_services, NULL);
    cJSON *body = job_service_build_servers(&pass->observation.job,
                                            pass->observation.job.status.servers.address);

    job->servers_tries++;
    job->servers_at_ms =
        kube_now_ms(job->reconciler->io) +
        ratelimiter_delay_ms(SERVICE_RETRY_MS, SERVICE_RETRY_MAX, job->servers_tries, 0);
    if (!there || !there->is_ours) {
        (void)reconciler_send(pass, &create, body, name, on_servers_made);
        return;
    }
    delete.uid = there->uid;
    reconciler_send(pass, &delete, NULL, name, on_servers_deleted)->body = body;
}

/* ---- the gang -------------------------------------------------------------------------------- */

/* A job that names its gang scheduler needs the group; a job with gang Auto does not. If the group
 * existed before, it is only requested again. */
static void on_group_refused(struct reconciler_request *r, const struct fleet_error *err)
{
    struct reconciler_job *job = r->pass->job;
    bool is_repair = r->pass->is_repair;

    if (is_repair || gang_is_auto(&r->pass->observation.job)) {
        reconciler_job_trouble(job->reconciler, "PodGroup was not made", job->key, err);
        job->gang = is_repair ? job->gang : GANG_NONE;
    } else {
        fleet_errors_add(&job->pod_errors, "spec.runPolicy.scheduling.gang",
                         "no PodGroup of %s can be made: %s", gang_name(job->gang), err->text);
        prepare_refuse_pods(job);
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

    if (job->gang == GANG_NONE)
        return;
    request = make_request(pass, KUBE_CREATE, gang_resource(job->gang), NULL);
    (void)reconciler_send(pass, &request, gang_build(&pass->observation.job, job->gang),
                          gang_group_name(&pass->observation.job), on_group_created);
}

/* ---- which of them --------------------------------------------------------------------------- */

static void wait_for(double *wait_ms, double ms)
{
    if (*wait_ms < 0 || ms < *wait_ms)
        *wait_ms = ms > 0 ? ms : 0;
}

/* Check the objects that pods may be waiting for. */
static int wanted_by_pods(const struct reconciler_pass *pass, double *wait_ms)
{
    const struct observed *in = &pass->observation.observed;
    int wanted = 0;

    for (size_t i = 0; i < in->pod_count; i++) {
        const struct observed_pod *pod = &in->pods[i];
        double left_ms = START_MS - (double)(in->now_wall_ms - pod->created_wall_ms);
        int object = pod->is_scheduled              ? JOB_OBJECT_SECRET
                     : pass->job->gang != GANG_NONE ? JOB_OBJECT_GROUP
                                                    : 0;
        if (pod->phase != OBSERVED_PENDING || pod->is_deleting || !object)
            continue;
        if (left_ms > 0)
            wait_for(wait_ms, left_ms);
        else
            wanted |= object;
    }
    return wanted;
}

int job_objects_due(const struct reconciler_pass *pass, double *wait_ms)
{
    struct reconciler_job *job = pass->job;
    double now_ms = kube_now_ms(job->reconciler->io);
    int due = 0, wanted;

    *wait_ms = -1;
    wanted = wanted_by_pods(pass, wait_ms);
    if (!wanted)
        job->retries = 0;
    else if (job->retries > 0 && now_ms < job->retry_at_ms)
        wait_for(wait_ms, job->retry_at_ms - now_ms);
    else
        due |= wanted;
    if (!wants_service(pass) || has_service(job))
        job->service_tries = 0;
    else if (job->service_tries > 0 && now_ms < job->service_at_ms)
        wait_for(wait_ms, job->service_at_ms - now_ms);
    else
        due |= JOB_OBJECT_SERVICE;
    if (!wants_servers(pass) || find_servers(job))
        job->servers_tries = 0;
    else if (job->servers_tries > 0 && now_ms < job->servers_at_ms)
        wait_for(wait_ms, job->servers_at_ms - now_ms);
    else
        due |= JOB_OBJECT_SERVERS;
    return due;
}

void job_objects_make(struct reconciler_pass *pass, int objects)
{
    struct reconciler_job *job = pass->job;

    if (objects & (JOB_OBJECT_SECRET | JOB_OBJECT_GROUP)) {
        job->retries++;
        job->retry_at_ms = kube_now_ms(job->reconciler->io) +
                           ratelimiter_delay_ms(RETRY_MIN_MS, RETRY_MAX_MS, job->retries, 0);
    }
    if (objects & JOB_OBJECT_SECRET)
        make_secret(pass);
    if ((objects & JOB_OBJECT_SERVICE) && wants_service(pass) && !has_service(job))
        make_service(pass);
    if ((objects & JOB_OBJECT_SERVERS) && wants_servers(pass) && !find_servers(job))
        make_servers(pass);
    if (objects & JOB_OBJECT_GROUP)
        make_group(pass);
}
