/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   read Service ──▶ (make, mend) ──▶ apply EndpointSlice ──▶ read Secret ──▶ (make, free) ──▶ wait
 *        ▲                                                                                       │
 *        └───────────────────────────────────────────────────────────────────────────────────────┘
 *
 * A failure is logged, and tried again in the next round.
 */
#include "controller/fleetjob/installation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/job_service.h"
#include "controller/machinery/leader_io.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"

struct installation {
    struct installation_options options;
    struct leader_io *led;
    struct kube_io *io; /* of `led` */
    struct kube_rest_call *call;
    struct kube_call *timer;
    cJSON *service; /* as last seen */
    cJSON *owner;   /* a reference to it */
    bool has_moved;
};

static void report(const struct installation *in, const char *what, const struct fleet_error *err)
{
    if (in->options.may_write(in->options.user))
        in->options.on_trouble(in->options.user, what, err);
}

static void check_service(void *user);

static void wait_for_next(struct installation *in)
{
    in->timer = kube_after(in->io, INSTALLATION_PERIOD_MS, check_service, in);
}

static struct kube_rest_request on_service(const struct installation *in, enum kube_verb verb)
{
    return (struct kube_rest_request){.verb = verb,
                                      .resource = &kube_services,
                                      .namespace_ = in->options.namespace_,
                                      .name = in->options.service,
                                      .field_manager = WELLKNOWN_FIELD_MANAGER,
                                      .urgent = true};
}

static struct kube_rest_request on_secret(const struct installation *in, enum kube_verb verb)
{
    return (struct kube_rest_request){.verb = verb,
                                      .resource = &kube_secrets,
                                      .namespace_ = in->options.namespace_,
                                      .name = in->options.identity_secret,
                                      .field_manager = WELLKNOWN_FIELD_MANAGER};
}

/* ---- the identity ---------------------------------------------------------------------------- */

static void on_secret_written(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct installation *in = user;

    (void)object;
    in->call = NULL;
    if (err)
        report(in, "Install identity was not repaired", err);
    wait_for_next(in);
}

/* Make the Secret from this process's memory, because the Secrets of all jobs use this identity. */
static void make_secret(struct installation *in)
{
    FLEET_AUTO_JSON cJSON *secret = install_identity_build(
        in->options.namespace_, in->options.identity_secret, in->options.identity);
    struct kube_rest_request request = on_secret(in, KUBE_CREATE);

    request.name = NULL;
    request.body = secret;
    in->call = kube_rest_start(in->io, &request, on_secret_written, in);
}

/* Remove the owner reference: an earlier version set the Service as its owner. */
static void free_secret(struct installation *in, const cJSON *found)
{
    FLEET_AUTO_JSON cJSON *patch = fleet_json_new_object();
    cJSON *metadata = fleet_json_set_object(patch, "metadata");
    struct kube_rest_request request = on_secret(in, KUBE_MERGE_PATCH);

    fleet_json_set_string(metadata, "uid", fleet_json_text_at(found, "metadata.uid"));
    fleet_json_set_null(metadata, "ownerReferences");
    request.body = patch;
    in->call = kube_rest_start(in->io, &request, on_secret_written, in);
}

static void on_secret_read(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct installation *in = user;

    in->call = NULL;
    if (err && kube_is_not_found(err)) {
        make_secret(in);
    } else if (!err && fleet_json_at(object, "metadata.ownerReferences[0]")) {
        free_secret(in, object);
    } else {
        if (err)
            report(in, "Install identity was not read", err);
        wait_for_next(in);
    }
}

static void check_secret(struct installation *in)
{
    struct kube_rest_request request = on_secret(in, KUBE_GET);

    in->call = kube_rest_start(in->io, &request, on_secret_read, in);
}

/* ---- the EndpointSlice ----------------------------------------------------------------------- */

static void on_slice_written(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct installation *in = user;

    (void)object;
    in->call = NULL;
    if (err)
        report(in, "EndpointSlice was not written", err);
    check_secret(in);
}

/* Publish the address to which the agents of all jobs connect. Applying an equal slice changes
 * nothing. */
static void apply_slice(struct installation *in)
{
    FLEET_AUTO_JSON cJSON *slice =
        job_service_endpoint_slice(in->options.namespace_, in->options.service, in->owner,
                                   in->options.address, in->options.port);
    struct kube_rest_request request = {.verb = KUBE_APPLY,
                                        .resource = &kube_endpoint_slices,
                                        .namespace_ = in->options.namespace_,
                                        .name = fleet_json_text_at(slice, "metadata.name"),
                                        .body = slice,
                                        .field_manager = WELLKNOWN_FIELD_MANAGER,
                                        .force = true,
                                        .urgent = true};

    in->call = kube_rest_start(in->io, &request, on_slice_written, in);
}

/* ---- the Service ----------------------------------------------------------------------------- */

static void note_service(struct installation *in, const cJSON *service)
{
    struct kube_meta meta;

    if (kube_meta_view(service, &meta, NULL) < 0)
        return;
    cJSON_Delete(in->service);
    cJSON_Delete(in->owner);
    in->service = fleet_json_copy(service);
    in->owner = kube_owner_reference("v1", "Service", &meta);
    fleet_assert(in->service && in->owner);
}

static cJSON *build_ports(const struct installation *in)
{
    cJSON *ports = fleet_json_new_list(), *port = fleet_json_add_object(ports);
    fleet_json_set_string(port, "name", "hub");
    fleet_json_set_string(port, "protocol", "TCP");
    fleet_json_set_number(port, "port", in->options.port);
    return ports;
}

static void copy_member(cJSON *to, const cJSON *from, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(from, key);

    if (value)
        fleet_json_set(to, key, fleet_json_copy(value));
}

/*
 * Make the Service as it was, with the keys that mark it as part of a Helm release. `address` "":
 * any.
 */
static cJSON *build_service(const struct installation *in, const char *address)
{
    cJSON *service = fleet_json_new_object();
    cJSON *metadata = fleet_json_set_object(service, "metadata");
    cJSON *spec = fleet_json_set_object(service, "spec");
    const cJSON *before = fleet_json_at(in->service, "metadata");

    fleet_json_set_string(service, "apiVersion", "v1");
    fleet_json_set_string(service, "kind", "Service");
    fleet_json_set_string(metadata, "name", in->options.service);
    fleet_json_set_string(metadata, "namespace", in->options.namespace_);
    fleet_json_set(spec, "ports", build_ports(in));
    copy_member(metadata, before, "labels");
    copy_member(metadata, before, "annotations");
    if (address[0])
        fleet_json_set_string(spec, "clusterIP", address);
    return service;
}

static void on_moved(struct installation *in, const char *address)
{
    struct fleet_error err;

    if (in->has_moved || !in->options.on_moved)
        return;
    in->has_moved = true;
    (void)fleet_error(&err, -EADDRNOTAVAIL, "Service %s/%s has the address %s now, not %s",
                      in->options.namespace_, in->options.service, address,
                      fleet_json_text_at(in->service, "spec.clusterIP"));
    in->options.on_moved(in->options.user, &err);
}

/* The Service exists: the controller has made or read it. */
static void take_service(struct installation *in, const cJSON *service)
{
    const char *address = fleet_json_text_at(service, "spec.clusterIP");

    if (strcmp(address, fleet_json_text_at(in->service, "spec.clusterIP")) != 0)
        on_moved(in, address);
    note_service(in, service);
}

static void on_service_written(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct installation *in = user;

    in->call = NULL;
    if (err)
        report(in, "Hub's Service was not repaired", err);
    else
        take_service(in, object);
    apply_slice(in);
}

static void make_service(struct installation *in, const char *address, kube_rest_done *done)
{
    FLEET_AUTO_JSON cJSON *service = build_service(in, address);
    struct kube_rest_request request = on_service(in, KUBE_CREATE);

    request.name = NULL;
    request.body = service;
    in->call = kube_rest_start(in->io, &request, done, in);
}

static void on_service_made(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct installation *in = user;

    if (err && kube_is_invalid(err)) /* another Service has its address */
        make_service(in, "", on_service_written);
    else
        on_service_written(in, object, err);
}

/* Is the Service wrong? With another port, agents cannot connect. With a selector, Kubernetes
 * writes other endpoints. */
static bool is_right(const struct installation *in, const cJSON *service)
{
    int64_t port = 0;

    (void)fleet_json_opt_int(service, "spec.ports[0].port", &port, NULL);
    return port == in->options.port && !fleet_json_at(service, "spec.ports[1]") &&
           cJSON_GetArraySize(fleet_json_at(service, "spec.selector")) == 0;
}

static void mend_service(struct installation *in, const cJSON *found)
{
    FLEET_AUTO_JSON cJSON *patch = fleet_json_new_object();
    cJSON *metadata = fleet_json_set_object(patch, "metadata");
    cJSON *spec = fleet_json_set_object(patch, "spec");
    struct kube_rest_request request = on_service(in, KUBE_MERGE_PATCH);

    fleet_json_set_string(metadata, "uid", fleet_json_text_at(found, "metadata.uid"));
    fleet_json_set_null(spec, "selector");
    fleet_json_set(spec, "ports", build_ports(in));
    request.body = patch;
    in->call = kube_rest_start(in->io, &request, on_service_written, in);
}

static void on_service_read(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct installation *in = user;

    in->call = NULL;
    if (err && kube_is_not_found(err)) {
        make_service(in, fleet_json_text_at(in->service, "spec.clusterIP"), on_service_made);
    } else if (!err && !fleet_json_at(object, "metadata.deletionTimestamp") &&
               !is_right(in, object)) {
        mend_service(in, object);
    } else {
        if (err)
            report(in, "Hub's Service was not read", err);
        else
            take_service(in, object);
        apply_slice(in);
    }
}

static void check_service(void *user)
{
    struct installation *in = user;
    struct kube_rest_request request = on_service(in, KUBE_GET);

    in->timer = NULL;
    if (!in->options.may_write(in->options.user))
        wait_for_next(in);
    else if (in->options.service)
        in->call = kube_rest_start(in->io, &request, on_service_read, in);
    else
        check_secret(in);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct installation *installation_new(const struct installation_options *options,
                                      const cJSON *service)
{
    struct installation *in = calloc(1, sizeof(*in));

    fleet_assert(in && (!options->service || service));
    in->options = *options;
    in->led = leader_io_new(options->io, options->may_write, options->user);
    in->io = leader_io_kube(in->led);
    if (service)
        note_service(in, service);
    if (options->service)
        in->timer = kube_after(in->io, 0, check_service, in);
    else
        wait_for_next(in);
    return in;
}

void installation_free(struct installation *in)
{
    if (!in)
        return;
    kube_rest_cancel(&in->call);
    kube_cancel(in->io, &in->timer);
    leader_io_free(in->led);
    cJSON_Delete(in->service);
    cJSON_Delete(in->owner);
    free(in);
}
