/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleetjob-controller: one loop, on which requests, watches, hubs and probes take turns.
 *
 *   configuration ─▶ hub address ─▶ identity ─▶ reconciler ─▶ leads: hub server, installation
 *
 * SIGTERM and SIGINT give the lease back and end it. Exit codes: 0 ended as asked, 1 the lease was
 * lost or something needed is missing, 2 wrong usage.
 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#include "controller/command_line.h"
#include "controller/fleetjob/gone_jobs.h"
#include "controller/fleetjob/install_identity.h"
#include "controller/fleetjob/installation.h"
#include "controller/fleetjob/leaf_certificate.h"
#include "controller/fleetjob/reconciler.h"
#include "controller/machinery/event_recorder.h"
#include "controller/machinery/metrics.h"
#include "controller/machinery/probe_server.h"
#include "controller/metrics_page.h"
#include "controller/metrics_server.h"
#include "controller/refusal_log.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/log.h"
#include "libfleet/base/memory.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "libfleet/kube/meta.h"
#include "libfleet/kube/rest.h"

#define RETRY_MS 2000.0 /* between attempts to get what the start needs */
#define SIGNALS  2

struct program {
    struct command_line arguments;
    uv_loop_t loop;
    uv_signal_t signals[SIGNALS];
    struct kube_config config;
    struct kube_io *io;
    struct metrics_page page;
    struct event_recorder *events;
    struct probe_server *probes;
    struct metrics_server *metrics_server; /* NULL: /metrics is the probe server's */
    char identity_text[256];               /* of this process, for the Lease */
    struct install_identity identity;
    struct install_identity_load *identity_load;
    struct kube_rest_call *call; /* reads the Service */
    struct kube_call *timer;     /* before it is tried again */
    char *hub_address;
    cJSON *service;                       /* the hub's; NULL without one */
    struct leaf_certificate *certificate; /* while this replica leads */
    struct gone_jobs *gone_jobs;          /* while this replica leads */
    struct installation *installation;    /* while this replica leads */
    struct reconciler *reconciler;        /* NULL before, and after its end */
    struct hub_server *hub_server;        /* while this replica leads */
    struct refusal_log refusals;          /* of the hub's */
    bool is_stopping;
    int exit_code;
};

/* ---- the end --------------------------------------------------------------------------------- */

static void on_trouble(void *user, const char *what, const struct fleet_error *err)
{
    (void)user;
    fleet_log_warning(what, FLEET_STR("err", err->text));
}

/* About one job, or about none. */
static void on_job_trouble(void *user, const char *what, const char *job,
                           const struct fleet_error *err)
{
    (void)user;
    if (job)
        fleet_log_warning(what, FLEET_STR("job", job), FLEET_STR("err", err->text));
    else
        fleet_log_warning(what, FLEET_STR("err", err->text));
}

static void give_up(struct program *p, const char *what, const struct fleet_error *err)
{
    fleet_log_error(what, FLEET_STR("err", err->text));
    p->exit_code = 1;
    uv_stop(&p->loop);
}

static void on_end(void *user, enum manager_end end)
{
    struct program *p = user;

    if (end == MANAGER_LEASE_LOST) {
        fleet_log_error("Lost the lease", FLEET_STR("lease", p->arguments.lease));
        p->exit_code = 1;
    }
    uv_stop(&p->loop);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct program *p = handle->data;

    fleet_log_info("Ending", FLEET_INT("signal", number));
    if (p->is_stopping || !p->reconciler) {
        uv_stop(&p->loop);
        return;
    }
    p->is_stopping = true;
    reconciler_stop(p->reconciler);
}

/* ---- leading --------------------------------------------------------------------------------- */

static void on_refused(void *user, const struct hub_server_refusal *refusal)
{
    struct program *p = user;

    refusal_log_add(&p->refusals, refusal);
}

static bool is_gone(void *user, const char *job_uid, const char *job_name)
{
    return gone_jobs_ask(((struct program *)user)->gone_jobs, job_uid, job_name);
}

static bool leads(void *user)
{
    const struct program *p = user;

    return p->reconciler && reconciler_is_leading(p->reconciler);
}

/* The jobs' Secrets are written with the address that was read at the start. */
static void on_moved(void *user, const struct fleet_error *err)
{
    give_up(user, "Hub has another address: the controller must begin anew", err);
}

static void keep_installation(struct program *p)
{
    struct installation_options options = {.io = p->io,
                                           .namespace_ = p->arguments.namespace_,
                                           .service = p->arguments.hub_service,
                                           .address = p->arguments.pod_address,
                                           .port = hub_server_port(p->hub_server),
                                           .identity_secret = p->arguments.identity_secret,
                                           .identity = &p->identity,
                                           .may_write = leads,
                                           .on_moved = on_moved,
                                           .on_trouble = on_trouble,
                                           .user = p};

    p->installation = installation_new(&options, p->service);
}

static int renew_certificate(void *user, const struct tls_identity *leaf, struct fleet_error *err)
{
    struct program *p = user;
    int rc = hub_server_renew(p->hub_server, leaf->certificate_pem, leaf->key_pem, err);

    if (rc == 0)
        fleet_log_info("Renewed the hub's certificate");
    return rc;
}

static int open_server(struct program *p, struct fleet_error *err)
{
    struct leaf_certificate_options certificate = {.io = p->io,
                                                   .name = TLS_IDENTITY_HUB_NAME,
                                                   .ca = &p->identity.ca,
                                                   .warns_of_ca = true,
                                                   .renew = renew_certificate,
                                                   .on_trouble = on_trouble,
                                                   .user = p};
    struct hub_server_config config = {.loop = &p->loop,
                                       .port = p->arguments.hub_port,
                                       .install_key = p->identity.key,
                                       .install_key_size = sizeof(p->identity.key),
                                       .is_gone = is_gone,
                                       .refused = on_refused,
                                       .user = p};
    int rc = leaf_certificate_new(&certificate, &p->certificate, err);

    if (rc < 0)
        return rc;
    p->gone_jobs = gone_jobs_new(p->io, p->arguments.watched, p->arguments.watched_count);
    config.certificate_pem = leaf_certificate_get(p->certificate)->certificate_pem;
    config.key_pem = leaf_certificate_get(p->certificate)->key_pem;
    return hub_server_new(&config, &p->hub_server, err);
}

static int open_network(void *user, struct hub_network *out, struct fleet_error *err)
{
    struct program *p = user;
    int rc = open_server(p, err);

    if (rc < 0) {
        p->exit_code = 1;
        return rc;
    }
    *out = hub_host_server_network(p->hub_server);
    fleet_log_info("Leading", FLEET_STR("identity", p->identity_text),
                   FLEET_INT("hubPort", hub_server_port(p->hub_server)));
    keep_installation(p);
    return 0;
}

/* ---- beginning ------------------------------------------------------------------------------- */

static void start_reconciler(struct program *p)
{
    struct leader_election_options election = {.namespace_ = p->arguments.namespace_,
                                               .name = p->arguments.lease,
                                               .identity = p->identity_text};
    struct reconciler_options reconciler = {.io = p->io,
                                            .metrics = p->page.metrics,
                                            .has_job_metrics = p->arguments.has_job_metrics,
                                            .election = p->arguments.no_election ? NULL : &election,
                                            .namespaces = p->arguments.watched,
                                            .namespace_count = p->arguments.watched_count,
                                            .runtime_image = p->arguments.runtime_image,
                                            .has_json_logs = p->arguments.is_json,
                                            .pull_policy = p->arguments.pull_policy,
                                            .hub_address = p->hub_address,
                                            .identity = &p->identity,
                                            .events = p->events,
                                            .open_network = open_network,
                                            .on_end = on_end,
                                            .on_trouble = on_job_trouble,
                                            .user = p};

    p->reconciler = reconciler_new(&reconciler);
}

static void print_metrics(void *user, struct fleet_strbuf *out);

/* Its certificate needs the identity. */
static int open_metrics_server(struct program *p, struct fleet_error *err)
{
    struct metrics_server_options options = {.io = p->io,
                                             .requests = p->page.scrapes,
                                             .port = p->arguments.metrics_port,
                                             .name = p->arguments.metrics_name,
                                             .ca = &p->identity.ca,
                                             .certificate_folder = p->arguments.metrics_certificate,
                                             .print = print_metrics,
                                             .on_trouble = on_trouble,
                                             .user = p};

    return p->arguments.has_metrics_auth
               ? metrics_server_new(&p->loop, &options, &p->metrics_server, err)
               : 0;
}

static void load_identity(void *user);

static void on_identity(void *user, struct install_identity *identity,
                        const struct fleet_error *err)
{
    struct program *p = user;
    struct fleet_error own;

    p->identity_load = NULL;
    if (err) {
        on_trouble(p, "Install identity was not loaded", err);
        p->timer = kube_after(p->io, RETRY_MS, load_identity, p);
        return;
    }
    p->identity = *identity;
    if (open_metrics_server(p, &own) < 0)
        give_up(p, "Could not start", &own);
    else
        start_reconciler(p);
}

static void load_identity(void *user)
{
    struct program *p = user;

    p->timer = NULL;
    p->identity_load = install_identity_start(p->io, p->arguments.namespace_,
                                              p->arguments.identity_secret, on_identity, p);
}

static void read_service(void *user);

/* Its address is read once and passed to the jobs. While this replica leads, the Service keeps it
 * (installation.h). */
static void on_service(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct program *p = user;
    struct fleet_strbuf address = {0};
    struct fleet_error own;
    const char *ip = "";

    p->call = NULL;
    if (err) {
        on_trouble(p, "Hub's Service was not read", err);
        p->timer = kube_after(p->io, RETRY_MS, read_service, p);
        return;
    }
    (void)fleet_json_opt_string(object, "spec.clusterIP", &ip, NULL);
    if (!ip[0] || strcmp(ip, "None") == 0) {
        (void)fleet_error(&own, -EINVAL, "Service %s/%s has no cluster IP", p->arguments.namespace_,
                          p->arguments.hub_service);
        give_up(p, "Hub has no address", &own);
        return;
    }
    fleet_strbuf_appendf(&address, strchr(ip, ':') ? "[%s]:%lld" : "%s:%lld", ip,
                         (long long)p->arguments.hub_port);
    p->hub_address = fleet_strbuf_take(&address);
    p->service = fleet_json_copy(object);
    load_identity(p);
}

static void read_service(void *user)
{
    struct program *p = user;
    struct kube_rest_request request = {.verb = KUBE_GET,
                                        .resource = &kube_services,
                                        .namespace_ = p->arguments.namespace_,
                                        .name = p->arguments.hub_service};

    p->timer = NULL;
    p->call = kube_rest_start(p->io, &request, on_service, p);
}

static void begin(struct program *p)
{
    if (p->arguments.hub_service) {
        read_service(p);
        return;
    }
    p->hub_address = fleet_dup_text(p->arguments.hub_address);
    load_identity(p);
}

/* ---- probes ---------------------------------------------------------------------------------- */

static void print_metrics(void *user, struct fleet_strbuf *out)
{
    struct program *p = user;
    struct metrics_page_parts parts = {.reconciler = p->reconciler,
                                       .hub_server = p->hub_server,
                                       .ca_pem = p->identity.ca.certificate_pem};

    if (p->certificate)
        parts.certificate_pem = leaf_certificate_get(p->certificate)->certificate_pem;
    metrics_page_print(&p->page, &parts, out);
}

static int answer_metrics(struct program *p, struct fleet_strbuf *body, const char **content_type)
{
    if (p->arguments.has_metrics_auth) { /* a token must not travel in clear */
        fleet_strbuf_appendf(body, "/metrics needs a bearer token: use https:// and port %d\n",
                             p->arguments.metrics_port);
        return 404;
    }
    print_metrics(p, body);
    *content_type = METRICS_CONTENT_TYPE;
    return 200;
}

static int answer_probe(void *user, struct probe_request *request, struct fleet_strbuf *body,
                        const char **content_type)
{
    struct program *p = user;
    bool is_ready = p->reconciler && reconciler_has_synced(p->reconciler);

    if (strcmp(request->path, "/metrics") == 0)
        return answer_metrics(p, body, content_type);
    if (strcmp(request->path, "/healthz") != 0 && strcmp(request->path, "/readyz") != 0)
        return 404;
    if (strcmp(request->path, "/healthz") == 0)
        is_ready = true;
    fleet_strbuf_append(body, is_ready ? "ok\n" : "caches are not filled yet\n");
    return is_ready ? 200 : 503;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void on_event_trouble(void *user, const char *about, const struct fleet_error *err)
{
    on_job_trouble(user, "Event was not written", about, err);
}

static void name_process(struct program *p)
{
    char host[128] = "";
    uint8_t bytes[4];
    char hex[2 * sizeof(bytes) + 1];

    (void)gethostname(host, sizeof(host) - 1);
    fleet_random_bytes(bytes, sizeof(bytes));
    fleet_hex_encode(bytes, sizeof(bytes), hex);
    (void)snprintf(p->identity_text, sizeof(p->identity_text), "%s_%s", host, hex);
}

static void on_answered(void *user, const char *verb, int status)
{
    metrics_page_count(&((struct program *)user)->page, verb, status);
}

static int open_program(struct program *p, struct fleet_error *err)
{
    static const int numbers[SIGNALS] = {SIGTERM, SIGINT};
    struct event_recorder_options events = {.controller = WELLKNOWN_GROUP "/controller",
                                            .instance = p->identity_text,
                                            .on_trouble = on_event_trouble,
                                            .user = p};
    struct kube_http_options http = {.answered = on_answered, .user = p};
    struct probe_server_options probes = {
        .port = p->arguments.probe_port, .answer = answer_probe, .user = p};
    int rc;

    if ((rc = kube_config_load(p->arguments.kubeconfig, p->arguments.context, &p->config, err)) < 0)
        return rc;
    if (!p->arguments.namespace_ || !p->arguments.namespace_[0])
        p->arguments.namespace_ = p->config.namespace_;
    metrics_page_init(&p->page);
    if ((rc = kube_http_new(&p->loop, &p->config, &http, &p->io, err)) < 0 ||
        (rc = probe_server_new(&p->loop, &probes, &p->probes, err)) < 0)
        return rc;
    p->events = event_recorder_new(p->io, &events);
    for (int i = 0; i < SIGNALS; i++) {
        (void)uv_signal_init(&p->loop, &p->signals[i]);
        p->signals[i].data = p;
        (void)uv_signal_start(&p->signals[i], on_signal, numbers[i]);
    }
    return 0;
}

static void close_program(struct program *p)
{
    install_identity_cancel(&p->identity_load);
    kube_rest_cancel(&p->call);
    if (p->io)
        kube_cancel(p->io, &p->timer);
    installation_free(p->installation);
    leaf_certificate_free(p->certificate);
    reconciler_free(p->reconciler);
    hub_server_free(p->hub_server);
    gone_jobs_free(p->gone_jobs);
    refusal_log_close(&p->refusals);
    event_recorder_free(p->events);
    metrics_server_free(p->metrics_server);
    probe_server_free(p->probes);
    for (int i = 0; i < SIGNALS; i++)
        if (p->signals[i].data)
            uv_close((uv_handle_t *)&p->signals[i], NULL);
    kube_http_free(p->io);
    (void)uv_run(&p->loop, UV_RUN_DEFAULT); /* close callbacks */
    (void)uv_loop_close(&p->loop);
    metrics_page_release(&p->page);
    install_identity_release(&p->identity);
    kube_config_release(&p->config);
    free(p->hub_address);
    cJSON_Delete(p->service);
    free(p->arguments.watch_list);
}

/*
 * One heap, and what is freed goes back soon: a flood of connections must not leave the process
 * large. As many descriptors as the system allows: each member has one.
 */
static void use_system_well(void)
{
    struct rlimit files;

    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 20);
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

int main(int argc, char **argv)
{
    struct program p = {0};
    struct fleet_error err;
    int code = command_line_parse(argc, argv, &p.arguments);

    if (code >= 0) {
        command_line_release(&p.arguments);
        return code;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    use_system_well();
    fleet_log_setup(p.arguments.is_json ? FLEET_LOG_JSON : FLEET_LOG_TEXT,
                    p.arguments.is_verbose ? 2 : 0);
    name_process(&p);
    (void)uv_loop_init(&p.loop);
    refusal_log_init(&p.refusals, &p.loop, NULL);
    if (open_program(&p, &err) < 0) {
        fleet_log_error("Could not start", FLEET_STR("err", err.text));
        p.exit_code = 1;
    } else {
        begin(&p);
        (void)uv_run(&p.loop, UV_RUN_DEFAULT);
    }
    close_program(&p);
    return p.exit_code;
}
