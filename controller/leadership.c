/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/leadership.h"

#include <stdlib.h>

#include "controller/fleetjob/gone_jobs.h"
#include "controller/fleetjob/installation.h"
#include "controller/fleetjob/leaf_certificate.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/log.h"
#include "libfleet/rendezvous/hub_server.h"

struct leadership {
    struct leadership_options options;
    struct leaf_certificate *certificate;
    struct gone_jobs *gone_jobs;
    struct hub_server *hub_server;
    struct installation *installation;
};

static void on_refused(void *user, const struct hub_server_refusal *refusal)
{
    struct leadership *l = user;

    refusal_log_add(l->options.refusals, refusal);
}

static bool is_gone(void *user, const char *job_uid, const char *job_name)
{
    return gone_jobs_ask(((struct leadership *)user)->gone_jobs, job_uid, job_name);
}

static void keep_installation(struct leadership *l)
{
    const struct command_line *arguments = l->options.arguments;
    struct installation_options options = {.io = l->options.io,
                                           .namespace_ = arguments->namespace_,
                                           .service = arguments->hub_service,
                                           .address = arguments->pod_address,
                                           .port = hub_server_port(l->hub_server),
                                           .identity_secret = arguments->identity_secret,
                                           .identity = l->options.identity,
                                           .may_write = l->options.leads,
                                           .on_moved = l->options.on_moved,
                                           .on_trouble = l->options.on_trouble,
                                           .user = l->options.user};

    l->installation = installation_new(&options, l->options.service);
}

static void on_trouble(void *user, const char *what, const struct fleet_error *err)
{
    const struct leadership *l = user;

    l->options.on_trouble(l->options.user, what, err);
}

static int renew_certificate(void *user, const struct tls_identity *leaf, struct fleet_error *err)
{
    struct leadership *l = user;
    int rc = hub_server_renew(l->hub_server, leaf->certificate_pem, leaf->key_pem, err);

    if (rc == 0)
        fleet_log_info("Renewed the hub's certificate");
    return rc;
}

static int open_server(struct leadership *l, struct fleet_error *err)
{
    const struct command_line *arguments = l->options.arguments;
    struct leaf_certificate_options certificate = {.io = l->options.io,
                                                   .name = TLS_IDENTITY_HUB_NAME,
                                                   .ca = &l->options.identity->ca,
                                                   .warns_of_ca = true,
                                                   .renew = renew_certificate,
                                                   .on_trouble = on_trouble,
                                                   .user = l};
    struct hub_server_config config = {.loop = l->options.loop,
                                       .port = arguments->hub_port,
                                       .install_key = l->options.identity->key,
                                       .install_key_size = sizeof(l->options.identity->key),
                                       .is_gone = is_gone,
                                       .refused = on_refused,
                                       .user = l};
    int rc = leaf_certificate_new(&certificate, &l->certificate, err);

    if (rc < 0)
        return rc;
    l->gone_jobs = gone_jobs_new(l->options.io, arguments->watched, arguments->watched_count);
    config.certificate_pem = leaf_certificate_get(l->certificate)->certificate_pem;
    config.key_pem = leaf_certificate_get(l->certificate)->key_pem;
    return hub_server_new(&config, &l->hub_server, err);
}

int leadership_new(const struct leadership_options *options, struct leadership **out,
                   struct fleet_error *err)
{
    struct leadership *l = calloc(1, sizeof(*l));
    int rc;

    fleet_assert(l);
    l->options = *options;
    if ((rc = open_server(l, err)) < 0) {
        leadership_free(l);
        return rc;
    }
    keep_installation(l);
    *out = l;
    return 0;
}

void leadership_free(struct leadership *l)
{
    if (!l)
        return;
    installation_free(l->installation);
    leaf_certificate_free(l->certificate);
    hub_server_free(l->hub_server);
    gone_jobs_free(l->gone_jobs);
    free(l);
}

struct hub_network leadership_network(const struct leadership *l)
{
    return hub_host_server_network(l->hub_server);
}

const struct hub_server *leadership_hub_server(const struct leadership *l)
{
    return l ? l->hub_server : NULL;
}

const char *leadership_certificate_pem(const struct leadership *l)
{
    return l ? leaf_certificate_get(l->certificate)->certificate_pem : NULL;
}
