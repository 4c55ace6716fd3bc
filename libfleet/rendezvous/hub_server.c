/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One lws context for all jobs. The listening socket is ours, not lws' (hub_accept.c).
 *
 * `serve_http` checks a connection at its HTTP upgrade (subprotocol, path, token); then the
 * connection is a `struct session` that `serve_session` serves. A hub's answers go through one
 * queue for each job (hub_server_apply): an event's handler may call the hub again while an answer
 * is being carried out, and the queue keeps actions in the order in which they were decided.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include <libwebsockets.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/limits.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/hub_server_internal.h"
#include "libfleet/rendezvous/tls_identity.h"

#define CONNECTIONS_MAX       8192
#define HANDSHAKES_MAX        1024
#define SOURCE_HANDSHAKES_MAX 256
#define SOURCE_RATE           256.0 /* handshakes a second: a tenth of one processor's work */
#define SOURCE_BURST          1024.0
#define CROWD_RATE            500.0 /* handshakes a second in all: a fifth of one processor */
#define CROWD_BURST           2048.0
#define CROWD_SOURCE_MAX      32.0
#define HANDSHAKE_GRACE_MS    1000.0
#define HANDSHAKE_TIMEOUT_MS  5000.0
#define HELLO_TIMEOUT_MS      10000.0
#define REAP_TURNS            5       /* of the loop after the last socket, for lws' own handles */
#define NAMESPACE_RATE        10000.0 /* reads a second */
#define NAMESPACE_BURST       20000.0

void hub_server_token(const void *install_key, size_t install_key_size, const char *job_uid,
                      char out[FLEET_SHA256_HEX_SIZE])
{
    uint8_t mac[FLEET_SHA256_SIZE];

    fleet_hmac_sha256(install_key, install_key_size, job_uid, strlen(job_uid), mac);
    fleet_hex_encode(mac, sizeof(mac), out);
}

/* ---- words ----------------------------------------------------------------------------------- */

void hub_server_refuse(struct hub_server *server, enum hub_refusal kind, const char *job_uid,
                       const char *peer, const char *reason)
{
    const struct hub_server_job *job = fleet_map_get(&server->jobs, job_uid);
    struct hub_server_refusal refusal = {.kind = kind,
                                         .job_uid = job_uid,
                                         .job = job ? job->name : "",
                                         .peer = peer,
                                         .reason = reason};

    server->stats.refused[kind]++;
    if (server->refused)
        server->refused(server->user, &refusal);
}

void hub_server_stats(const struct hub_server *server, struct hub_server_stats *out)
{
    *out = server->stats;
    out->handshakes = hub_admission_count(server->admission);
    out->held_bytes = server->held_bytes;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer);

static void set_timer(struct hub_server_job *job)
{
    double wait_ms = hub_deadline(job->hub) - fleet_monotonic_ms();

    if (isinf(wait_ms)) {
        uv_timer_stop(&job->timer);
        return;
    }
    uv_update_time(job->timer.loop);
    uv_timer_start(&job->timer, on_timer, wait_ms > 0 ? (uint64_t)ceil(wait_ms) : 0, 0);
}

static void carry_out(struct hub_server_job *job, const struct hub_action *action)
{
    struct session *session = hub_session_of(job->server, action->connection);
    struct hub_output out = {0};

    switch (action->type) {
    case HUB_SEND:
        if (session && session->job == job)
            hub_session_queue(session, action->text);
        break;
    case HUB_CLOSE:
        if (session && session->job == job) {
            if (action->is_refusal)
                hub_server_refuse(job->server, HUB_REFUSED_MESSAGE, job->job_uid, session->peer,
                                  action->reason);
            hub_session_close(session, action->reason);
        }
        break;
    case HUB_RECORD:
        if (!job->handlers.record || job->handlers.record(job->handlers.user, &action->record)) {
            hub_record_done(job->hub, action->record.generation, fleet_monotonic_ms(), &out);
            hub_output_move(&job->pending, &out);
        }
        break;
    case HUB_EVENT:
        if (job->handlers.event)
            job->handlers.event(job->handlers.user, action->event);
        break;
    }
}

void hub_server_apply(struct hub_server_job *job, struct hub_output *out)
{
    hub_output_move(&job->pending, out);
    if (job->is_applying)
        return;
    job->is_applying = true;
    while (job->done < job->pending.count) {
        struct hub_action action = job->pending.items[job->done++];
        carry_out(job, &action); /* a copy: handlers may make the list move */
    }
    hub_output_release(&job->pending);
    job->done = 0;
    job->is_applying = false;
    set_timer(job);
}

static void on_timer(uv_timer_t *timer)
{
    struct hub_server_job *job = timer->data;
    struct hub_output out = {0};

    hub_tick(job->hub, fleet_monotonic_ms(), &out);
    hub_server_apply(job, &out);
}

void hub_server_answer_record(struct hub_server_job *job, struct fleet_generation generation,
                              bool is_done)
{
    struct hub_output out = {0};

    if (is_done)
        hub_record_done(job->hub, generation, fleet_monotonic_ms(), &out);
    else
        hub_record_failed(job->hub, generation, fleet_monotonic_ms(), &out);
    hub_server_apply(job, &out);
}

struct hub *hub_server_hub(struct hub_server_job *job)
{
    return job->hub;
}

static struct hub_tenant *use_tenant(struct hub_server *server, const char *namespace_)
{
    struct hub_tenant *tenant;

    if (!namespace_[0])
        return NULL;
    tenant = fleet_map_get(&server->tenants, namespace_);
    if (!tenant) {
        tenant = calloc(1, sizeof(*tenant));
        fleet_assert(tenant != NULL);
        tenant->share = (struct hub_share){.connections_max = server->namespace_connections_max,
                                           .held_bytes_max = server->namespace_bytes_max,
                                           .rate = NAMESPACE_RATE,
                                           .burst = NAMESPACE_BURST};
        fleet_map_insert(&server->tenants, namespace_, tenant);
    }
    tenant->jobs++;
    return tenant;
}

static void leave_tenant(struct hub_server_job *job)
{
    if (!job->tenant || --job->tenant->jobs > 0)
        return;
    free(fleet_map_remove(&job->server->tenants, job->namespace_));
    job->tenant = NULL;
}

int hub_server_add(struct hub_server *server, const char *job_uid, struct hub *hub,
                   const struct hub_server_handlers *handlers, struct hub_server_job **out_job,
                   struct fleet_error *err)
{
    struct hub_server_job *job;

    if (strlen(job_uid) > MESSAGE_UID_MAX || job_uid[0] == '\0')
        return fleet_error(err, -EINVAL, "job uid \"%.80s\": must have 1 to %d bytes", job_uid,
                           MESSAGE_UID_MAX);
    if (fleet_map_get(&server->jobs, job_uid))
        return fleet_error(err, -EEXIST, "job %s is hosted already", job_uid);
    job = calloc(1, sizeof(*job));
    fleet_assert(job != NULL);
    job->server = server;
    job->hub = hub;
    job->handlers = *handlers;
    job->name = fleet_dup_or_empty(handlers->name);
    job->namespace_ = fleet_dup_or_empty(handlers->namespace_);
    job->handlers.name = job->handlers.namespace_ = NULL; /* borrowed for this call */
    job->share.held_bytes_max = server->job_bytes_max;
    job->tenant = use_tenant(server, job->namespace_);
    (void)snprintf(job->job_uid, sizeof(job->job_uid), "%s", job_uid);
    uv_timer_init(server->listener.loop, &job->timer);
    job->timer.data = job;
    fleet_map_set(&server->jobs, job_uid, job);
    set_timer(job);
    *out_job = job;
    return 0;
}

static void free_job(uv_handle_t *timer)
{
    struct hub_server_job *job = timer->data;

    free(job->name);
    free(job->namespace_);
    free(job);
}

void hub_server_remove(struct hub_server_job *job)
{
    struct hub_server *server = job->server;

    fleet_assert(!job->is_applying);
    for (size_t slot = 0; slot < server->connections_max; slot++)
        if (server->slots[slot] && server->slots[slot]->job == job)
            hub_session_close(server->slots[slot], "the job is not hosted here any more");
    leave_tenant(job);
    fleet_map_remove(&server->jobs, job->job_uid);
    hub_output_release(&job->pending);
    hub_free(job->hub);
    job->hub = NULL;
    uv_close((uv_handle_t *)&job->timer, free_job);
}

/* ---- life cycle ------------------------------------------------------------------------------ */

static int make_context(struct hub_server *server, const struct hub_server_config *config,
                        struct fleet_error *err)
{
    void *loops[] = {config->loop};
    struct lws_context_creation_info info = {
        .options = LWS_SERVER_OPTION_LIBUV | LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT |
                   LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_DISABLE_OS_CA_CERTS |
                   LWS_SERVER_OPTION_UV_NO_SIGSEGV_SIGFPE_SPIN,
        .foreign_loops = loops,
        .port = CONTEXT_PORT_NO_LISTEN_SERVER,
        .protocols = server->protocols,
        .server_ssl_cert_mem = config->certificate_pem,
        .server_ssl_cert_mem_len = (unsigned)strlen(config->certificate_pem),
        .server_ssl_private_key_mem = config->key_pem,
        .server_ssl_private_key_mem_len = (unsigned)strlen(config->key_pem),
        .provided_client_ssl_ctx = server->unused,
        .alpn = "http/1.1",
        .vhost_name = TLS_IDENTITY_HUB_NAME,
        .timeout_secs = (unsigned)ceil(server->hello_timeout_ms / 1000),
        .user = server,
    };

    lws_set_log_level(0, NULL); /* this library reports by `refused` and errors */
    server->context = lws_create_context(&info);
    if (!server->context)
        return fleet_error(err, -EIO,
                           "start the hub's server: libwebsockets with libuv refused "
                           "(is its libuv plug-in installed?)");
    server->vhost = lws_create_vhost(server->context, &info);
    if (!server->vhost)
        return fleet_error(err, -EIO, "start the hub's server: libwebsockets refused the vhost");
    return 0;
}

static size_t or_default(size_t value, size_t otherwise)
{
    return value > 0 ? value : otherwise;
}

static void set_limits(struct hub_server *server, const struct hub_server_config *config)
{
    struct hub_admission_limits limits = {
        .handshakes_max = or_default(config->handshakes_max, HANDSHAKES_MAX),
        .source_handshakes_max = or_default(config->source_handshakes_max, SOURCE_HANDSHAKES_MAX),
        .source_rate = SOURCE_RATE,
        .source_burst = SOURCE_BURST,
        .crowd_rate = CROWD_RATE,
        .crowd_burst = CROWD_BURST,
        .crowd_source_max = CROWD_SOURCE_MAX,
        .grace_ms = HANDSHAKE_GRACE_MS,
        .timeout_ms =
            config->handshake_timeout_ms > 0 ? config->handshake_timeout_ms : HANDSHAKE_TIMEOUT_MS};
    uint64_t seed;

    fleet_random_bytes(&seed, sizeof(seed));
    server->handshakes_max = limits.handshakes_max;
    server->admission = hub_admission_new(&limits, seed);
    server->namespace_connections_max =
        or_default(config->namespace_connections_max, (server->connections_max * 3 + 3) / 4);
    server->job_bytes_max = or_default(config->job_bytes_max, FLEET_HUB_JOB_BYTES);
    server->namespace_bytes_max =
        or_default(config->namespace_bytes_max, FLEET_HUB_NAMESPACE_BYTES);
    server->held_bytes_max = or_default(config->bytes_max, FLEET_HUB_BYTES);
}

int hub_server_new(const struct hub_server_config *config, struct hub_server **out_server,
                   struct fleet_error *err)
{
    struct hub_server *server;
    int rc;

    rc = tls_identity_check(config->certificate_pem, config->key_pem, err);
    if (rc < 0)
        return fleet_error_wrap(err, "start the hub's server");
    server = calloc(1, sizeof(*server));
    fleet_assert(server != NULL);
    *server = (struct hub_server){
        .protocols = {{.name = "http", .callback = hub_session_http, .rx_buffer_size = 4096},
                      {.name = MESSAGE_PROTOCOL,
                       .callback = hub_session_websocket,
                       .per_session_data_size = sizeof(struct session),
                       .rx_buffer_size = 16384}},
        .install_key_size = config->install_key_size,
        .connections_max = config->connections_max ? config->connections_max : CONNECTIONS_MAX,
        .hello_timeout_ms =
            config->hello_timeout_ms > 0 ? config->hello_timeout_ms : HELLO_TIMEOUT_MS,
        .is_gone = config->is_gone,
        .refused = config->refused,
        .user = config->user,
    };
    rc = hub_accept_open(server, config->address, config->port, err);
    if (rc < 0) {
        free(server);
        return fleet_error_wrap(err, "start the hub's server");
    }
    fleet_assert(server->connections_max < 1u << HUB_SERVER_SLOT_BITS);
    set_limits(server, config);
    server->slots = calloc(server->connections_max, sizeof(struct session *));
    server->install_key = malloc(config->install_key_size + 1);
    server->unused = SSL_CTX_new(TLS_client_method());
    fleet_assert(server->slots != NULL && server->install_key != NULL && server->unused != NULL);
    memcpy(server->install_key, config->install_key, config->install_key_size);

    uv_timer_init(config->loop, &server->reaper);
    server->reaper.data = server;
    hub_accept_init(server, config->loop);
    rc = make_context(server, config, err);
    if (rc < 0) {
        hub_server_free(server);
        return rc;
    }
    hub_accept_start(server);
    *out_server = server;
    return 0;
}

int hub_server_renew(struct hub_server *server, const char *certificate_pem, const char *key_pem,
                     struct fleet_error *err)
{
    BIO *certificate_bio, *key_bio;
    X509 *certificate;
    EVP_PKEY *key;
    int rc = tls_identity_check(certificate_pem, key_pem, err);

    if (rc < 0)
        return fleet_error_wrap(err, "renew the hub's certificate");
    certificate_bio = BIO_new_mem_buf(certificate_pem, -1);
    key_bio = BIO_new_mem_buf(key_pem, -1);
    certificate = PEM_read_bio_X509(certificate_bio, NULL, NULL, NULL);
    key = PEM_read_bio_PrivateKey(key_bio, NULL, NULL, NULL);
    if (!server->tls || SSL_CTX_use_cert_and_key(server->tls, certificate, key, NULL, 1) != 1)
        rc = fleet_error(err, -EINVAL, "renew the hub's certificate: OpenSSL refused it");
    X509_free(certificate);
    EVP_PKEY_free(key);
    BIO_free(certificate_bio);
    BIO_free(key_bio);
    return rc;
}

static void free_server(uv_handle_t *reaper)
{
    struct hub_server *server = reaper->data;

    hub_admission_free(server->admission);
    SSL_CTX_free(server->unused);
    fleet_strbuf_release(&server->scratch);
    free(server->install_key);
    free(server->slots);
    free(server);
}

static void on_accept_closed(struct hub_server *server)
{
    uv_close((uv_handle_t *)&server->reaper, free_server);
}

/*
 * On a loop that belongs to the caller, lws is freed in two steps: the first lws_context_destroy()
 * closes its handles, which takes some turns of the loop; the second frees the context.
 */
static void reap(uv_timer_t *reaper)
{
    struct hub_server *server = reaper->data;

    if (server->socket_count > 0 || ++server->reap_count < REAP_TURNS)
        return;
    if (server->context)
        lws_context_destroy(server->context);
    uv_timer_stop(reaper);
    hub_accept_close(server, on_accept_closed);
}

void hub_server_free(struct hub_server *server)
{
    if (!server)
        return;
    for (;;) {
        size_t position = 0;
        const struct fleet_map_entry *entry = fleet_map_next(&server->jobs, &position);
        if (!entry)
            break;
        hub_server_remove(entry->value);
    }
    fleet_map_release(&server->jobs);
    fleet_map_release(&server->tenants); /* empty: each entry was freed with its last job */
    server->is_freed = true;
    hub_accept_stop(server);
    if (server->context)
        lws_context_destroy(server->context);
    uv_timer_start(&server->reaper, reap, 0, 1);
}

int hub_server_port(const struct hub_server *server)
{
    return server->port;
}
