/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/startup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"

#define RETRY_MS 2000.0 /* between two attempts */

struct startup {
    struct startup_options options;
    struct startup_result result; /* as far as known */
    struct install_identity_load *load;
    struct kube_rest_call *call; /* reads the Service */
    struct kube_call *timer;     /* delay before a read is repeated */
};

static void load_identity(void *user);

static void on_identity(void *user, struct install_identity *identity,
                        const struct fleet_error *err)
{
    struct startup *s = user;
    struct startup_result result = s->result;

    s->load = NULL;
    if (err) {
        s->options.on_trouble(s->options.user, "Install identity was not loaded", err);
        s->timer = kube_after(s->options.io, RETRY_MS, load_identity, s);
        return;
    }
    result.identity = *identity;
    s->result = (struct startup_result){0};
    s->options.on_ready(s->options.user, &result);
}

static void load_identity(void *user)
{
    struct startup *s = user;

    s->timer = NULL;
    s->load = install_identity_start(s->options.io, s->options.namespace_,
                                     s->options.identity_secret, on_identity, s);
}

static void read_service(void *user);

/* The Service's address is read once and given to the jobs. While this replica leads,
 * installation.h keeps that address. */
static void on_service(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct startup *s = user;
    struct fleet_strbuf address = {0};
    struct fleet_error own;
    const char *ip = "";

    s->call = NULL;
    if (err) {
        s->options.on_trouble(s->options.user, "Hub's Service was not read", err);
        s->timer = kube_after(s->options.io, RETRY_MS, read_service, s);
        return;
    }
    (void)fleet_json_opt_string(object, "spec.clusterIP", &ip, NULL);
    if (!ip[0] || strcmp(ip, "None") == 0) {
        (void)fleet_error(&own, -EINVAL, "Service %s/%s has no cluster IP", s->options.namespace_,
                          s->options.hub_service);
        s->options.on_failed(s->options.user, "Hub has no address", &own);
        return;
    }
    fleet_strbuf_appendf(&address, strchr(ip, ':') ? "[%s]:%lld" : "%s:%lld", ip,
                         (long long)s->options.hub_port);
    s->result.hub_address = fleet_strbuf_take(&address);
    s->result.service = fleet_json_copy(object);
    load_identity(s);
}

static void read_service(void *user)
{
    struct startup *s = user;
    struct kube_rest_request request = {.verb = KUBE_GET,
                                        .resource = &kube_services,
                                        .namespace_ = s->options.namespace_,
                                        .name = s->options.hub_service};

    s->timer = NULL;
    s->call = kube_rest_start(s->options.io, &request, on_service, s);
}

struct startup *startup_new(const struct startup_options *options)
{
    struct startup *s = calloc(1, sizeof(*s));

    fleet_assert(s);
    s->options = *options;
    if (options->hub_service) {
        read_service(s);
        return s;
    }
    s->result.hub_address = fleet_dup_text(options->hub_address);
    load_identity(s);
    return s;
}

void startup_free(struct startup *s)
{
    if (!s)
        return;
    install_identity_cancel(&s->load);
    kube_rest_cancel(&s->call);
    kube_cancel(s->options.io, &s->timer);
    free(s->result.hub_address);
    cJSON_Delete(s->result.service);
    free(s);
}
