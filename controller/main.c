/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleetjob-controller: one loop, on which requests, watches, hubs and probes take turns.
 *
 *   configuration ─▶ hub address, identity ─▶ reconciler ─▶ leads: hub server, installation
 *                    (startup.c)                             (leadership.c)
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
#include "controller/fleetjob/reconciler.h"
#include "controller/leadership.h"
#include "controller/machinery/background.h"
#include "controller/machinery/event_recorder.h"
#include "controller/machinery/metrics.h"
#include "controller/machinery/probe_server.h"
#include "controller/metrics_page.h"
#include "controller/metrics_server.h"
#include "controller/refusal_log.h"
#include "controller/startup.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/line_writer.h"
#include "libfleet/base/log.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "libfleet/rendezvous/hub_server.h"

#define LOG_FLUSH_MS 1000.0 /* for the last lines of the log */
#define SIGNALS      2

struct program {
    struct command_line arguments;
    uv_loop_t loop;
    uv_signal_t signals[SIGNALS];
    struct kube_config config;
    struct kube_io *io;
    struct metrics_page page;
    struct event_recorder *events;
    struct background *background;
    struct probe_server *probes;
    struct metrics_server *metrics_server; /* NULL: the probe server serves /metrics */
    char identity_text[256];               /* identity of this process in the Lease */
    struct startup *startup;
    struct startup_result start;   /* all zero until it is known */
    struct reconciler *reconciler; /* NULL before its start and after its end */
    struct leadership *leadership; /* NULL: this replica does not lead */
    struct refusal_log refusals;   /* of the hub's */
    bool is_stopping;
    int exit_code;
};

/* ---- the end --------------------------------------------------------------------------------- */

static void on_trouble(void *user, const char *what, const struct fleet_error *err)
{
    (void)user;
    fleet_log_warning(what, FLEET_STR("err", err->text));
}

/* Write a log line about one job, or about none. */
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

static bool leads(void *user)
{
    const struct program *p = user;

    return p->reconciler && reconciler_is_leading(p->reconciler);
}

/* All jobs' Secrets contain the address that was read at the start. */
static void on_moved(void *user, const struct fleet_error *err)
{
    give_up(user, "Hub has another address: the controller must restart", err);
}

static int open_network(void *user, struct hub_network *out, struct fleet_error *err)
{
    struct program *p = user;
    struct leadership_options options = {.loop = &p->loop,
                                         .io = p->io,
                                         .arguments = &p->arguments,
                                         .identity = &p->start.identity,
                                         .service = p->start.service,
                                         .refusals = &p->refusals,
                                         .leads = leads,
                                         .on_moved = on_moved,
                                         .on_trouble = on_trouble,
                                         .user = p};
    int rc = leadership_new(&options, &p->leadership, err);

    if (rc < 0) {
        p->exit_code = 1;
        return rc;
    }
    *out = leadership_network(p->leadership);
    fleet_log_info("Leading", FLEET_STR("identity", p->identity_text),
                   FLEET_INT("hubPort", hub_server_port(leadership_hub_server(p->leadership))));
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
                                            .cuda_image = p->arguments.cuda_image,
                                            .has_json_logs = p->arguments.is_json,
                                            .encrypts_data = p->arguments.encrypts_data,
                                            .pull_policy = p->arguments.pull_policy,
                                            .hub_address = p->start.hub_address,
                                            .identity = &p->start.identity,
                                            .events = p->events,
                                            .background = p->background,
                                            .open_network = open_network,
                                            .on_end = on_end,
                                            .on_trouble = on_job_trouble,
                                            .user = p};

    p->reconciler = reconciler_new(&reconciler);
}

static void print_metrics(void *user, struct fleet_strbuf *out);

/* The certificate of the metrics server needs the identity. */
static int open_metrics_server(struct program *p, struct fleet_error *err)
{
    struct metrics_server_options options = {.io = p->io,
                                             .requests = p->page.scrapes,
                                             .port = p->arguments.metrics_port,
                                             .name = p->arguments.metrics_name,
                                             .ca = &p->start.identity.ca,
                                             .certificate_folder = p->arguments.metrics_certificate,
                                             .print = print_metrics,
                                             .on_trouble = on_trouble,
                                             .user = p};

    return p->arguments.has_metrics_auth
               ? metrics_server_new(&p->loop, &options, &p->metrics_server, err)
               : 0;
}

static void on_ready(void *user, struct startup_result *result)
{
    struct program *p = user;
    struct fleet_error err;

    p->start = *result;
    if (open_metrics_server(p, &err) < 0)
        give_up(p, "Could not start", &err);
    else
        start_reconciler(p);
}

static void on_failed(void *user, const char *what, const struct fleet_error *err)
{
    give_up(user, what, err);
}

static void begin(struct program *p)
{
    struct startup_options options = {.io = p->io,
                                      .namespace_ = p->arguments.namespace_,
                                      .hub_service = p->arguments.hub_service,
                                      .hub_address = p->arguments.hub_address,
                                      .hub_port = p->arguments.hub_port,
                                      .identity_secret = p->arguments.identity_secret,
                                      .on_ready = on_ready,
                                      .on_failed = on_failed,
                                      .on_trouble = on_trouble,
                                      .user = p};

    p->startup = startup_new(&options);
}

/* ---- probes ---------------------------------------------------------------------------------- */

static void print_metrics(void *user, struct fleet_strbuf *out)
{
    struct program *p = user;
    struct metrics_page_parts parts = {.reconciler = p->reconciler,
                                       .hub_server = leadership_hub_server(p->leadership),
                                       .certificate_pem = leadership_certificate_pem(p->leadership),
                                       .ca_pem = p->start.identity.ca.certificate_pem};

    metrics_page_print(&p->page, &parts, out);
}

static int answer_metrics(struct program *p, struct fleet_strbuf *body, const char **content_type)
{
    if (p->arguments.has_metrics_auth) { /* tokens must not be sent in clear text */
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
    p->background = background_new(&p->loop);
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
    startup_free(p->startup);
    reconciler_free(p->reconciler);
    p->reconciler = NULL;
    leadership_free(p->leadership);
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
    free(p->background);
    metrics_page_release(&p->page);
    install_identity_release(&p->start.identity);
    kube_config_release(&p->config);
    free(p->start.hub_address);
    cJSON_Delete(p->start.service);
    free(p->arguments.watch_list);
}

/*
 * Use one heap and give freed memory back soon, so that the process is small again after a flood of
 * connections. Raise the limit of descriptors to the allowed maximum, because each member needs
 * one.
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
    struct fleet_line_writer *log;
    struct fleet_error err;
    int code = command_line_parse(argc, argv, &p.arguments);

    if (code >= 0) {
        command_line_release(&p.arguments);
        return code;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    use_system_well();
    log = fleet_line_writer_new(STDERR_FILENO, "lines of the log");
    fleet_log_to(log); /* a log that nobody reads must not stall the lease */
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
    fleet_log_to(NULL);
    fleet_line_writer_free(log, LOG_FLUSH_MS);
    return p.exit_code;
}
