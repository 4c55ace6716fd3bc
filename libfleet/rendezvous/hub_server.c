/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One lws context for all jobs. The listening socket is ours, not lws': so at most ACCEPTS_MAX
 * connections are taken a turn of the loop, none while there are as many as allowed, and whatever
 * else the loop does is never kept waiting by a crowd of agents.
 *
 * A connection is checked at its HTTP upgrade (subprotocol, path, token) by `serve_http`, then is a
 * `struct session` served by `serve_session`. What a hub answers goes through one queue a job
 * (hub_server_apply), because an event's handler may call the hub again while an answer is being
 * carried out: actions are carried out in the order in which they were decided.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include <libwebsockets.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/hub_server_internal.h"
#include "libfleet/rendezvous/tls_identity.h"

#define ACCEPTS_MAX      10
#define BACKLOG          1024
#define CONNECTIONS_MAX  8192
#define HELLO_TIMEOUT_MS 10000.0
#define REAP_TURNS       5 /* of the loop after the last socket, for lws' own handles */

void hub_server_token(const void *install_key, size_t install_key_size, const char *job_uid,
                      char out[FLEET_SHA256_HEX_SIZE])
{
    uint8_t mac[FLEET_SHA256_SIZE];

    fleet_hmac_sha256(install_key, install_key_size, job_uid, strlen(job_uid), mac);
    fleet_hex_encode(mac, sizeof(mac), out);
}

/* ---- jobs -------------------------------------------------------------------------------------- */

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

static void append_pending(struct hub_output *to, struct hub_output *from)
{
    size_t count = to->count + from->count;

    if (count > to->capacity) {
        to->capacity = 2 * count;
        to->items = realloc(to->items, to->capacity * sizeof(*to->items));
        fleet_assert(to->items != NULL);
    }
    if (from->count > 0)
        memcpy(to->items + to->count, from->items, from->count * sizeof(*from->items));
    to->count = count;
    free(from->items); /* what the items own has moved */
    *from = (struct hub_output){0};
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
                hub_session_tell_refused(job->server, job->job_uid, session->peer, action->reason);
            hub_session_close(session, action->reason);
        }
        break;
    case HUB_RECORD:
        if (!job->handlers.record || job->handlers.record(job->handlers.user, &action->record)) {
            hub_record_done(job->hub, action->record.generation, fleet_monotonic_ms(), &out);
            append_pending(&job->pending, &out);
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
    append_pending(&job->pending, out);
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

void hub_server_record_done(struct hub_server_job *job, struct generation generation)
{
    struct hub_output out = {0};

    hub_record_done(job->hub, generation, fleet_monotonic_ms(), &out);
    hub_server_apply(job, &out);
}

void hub_server_record_failed(struct hub_server_job *job, struct generation generation)
{
    struct hub_output out = {0};

    hub_record_failed(job->hub, generation, fleet_monotonic_ms(), &out);
    hub_server_apply(job, &out);
}

struct hub *hub_server_hub(struct hub_server_job *job)
{
    return job->hub;
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
    free(timer->data);
}

void hub_server_remove(struct hub_server_job *job)
{
    struct hub_server *server = job->server;

    fleet_assert(!job->is_applying);
    for (size_t slot = 0; slot < server->connections_max; slot++)
        if (server->slots[slot] && server->slots[slot]->job == job)
            hub_session_close(server->slots[slot], "the job is not hosted here any more");
    fleet_map_remove(&server->jobs, job->job_uid);
    hub_output_release(&job->pending);
    hub_free(job->hub);
    job->hub = NULL;
    uv_close((uv_handle_t *)&job->timer, free_job);
}

/* ---- accepting --------------------------------------------------------------------------------- */

static void on_acceptable(uv_poll_t *listener, int status, int events);

/* Stop accepting while there is no room, go on when there is. */
void hub_server_gate(struct hub_server *server)
{
    bool is_full = server->socket_count >= server->connections_max;

    if (server->is_freed || is_full == server->is_paused)
        return;
    server->is_paused = is_full;
    if (is_full)
        uv_poll_stop(&server->listener);
    else
        uv_poll_start(&server->listener, UV_READABLE, on_acceptable);
}

static void on_acceptable(uv_poll_t *listener, int status, int events)
{
    struct hub_server *server = listener->data;

    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS_MAX && server->socket_count < server->connections_max; i++) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct lws *wsi;
        if (fd < 0)
            break;
        server->socket_count++;
        /* A restart is a few small messages one after the other: none may wait 40 ms for an ACK. */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        wsi = lws_adopt_socket_vhost(server->vhost, fd);
        if (wsi) /* until the upgrade; lws itself waits for ever for the first byte of TLS */
            lws_set_timeout(wsi, PENDING_TIMEOUT_SSL_ACCEPT,
                            (int)ceil(server->hello_timeout_ms / 1000));
        else
            server->socket_count--; /* lws has closed it */
    }
    hub_server_gate(server);
}

/* ---- life cycle -------------------------------------------------------------------------------- */

/* A listening socket, and its port in *out_port. -errno. */
static int open_listener(const char *address, int port, int *out_port, struct fleet_error *err)
{
    struct addrinfo hints = {.ai_family = address ? AF_UNSPEC : AF_INET6,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    struct sockaddr_storage bound;
    socklen_t bound_size = sizeof(bound);
    char service[16];
    int fd, rc = 0, on = 1, off = 0;

    (void)snprintf(service, sizeof(service), "%d", port);
    rc = getaddrinfo(address, service, &hints, &found);
    if (rc != 0)
        return fleet_error(err, -EINVAL, "listen on %s port %d: %s", address ? address : "*", port,
                           gai_strerror(rc));
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && found->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &bound_size) < 0) {
        rc = -errno;
        if (fd >= 0)
            close(fd);
        freeaddrinfo(found);
        return fleet_error(err, rc, "listen on %s port %d: %s", address ? address : "*", port,
                           strerror(-rc));
    }
    freeaddrinfo(found);
    *out_port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                  : ((struct sockaddr_in *)&bound)->sin_port);
    return fd;
}

/* Without IPv6 in the kernel, "all" means all of IPv4. */
static int open_any_listener(const char *address, int port, int *out_port, struct fleet_error *err)
{
    int fd = open_listener(address, port, out_port, err);

    if (fd == -EAFNOSUPPORT && !address)
        fd = open_listener("0.0.0.0", port, out_port, err);
    return fd;
}

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

int hub_server_new(const struct hub_server_config *config, struct hub_server **out_server,
                   struct fleet_error *err)
{
    struct hub_server *server;
    int fd, port, rc;

    rc = tls_identity_check(config->certificate_pem, config->key_pem, err);
    if (rc < 0)
        return fleet_error_wrap(err, "start the hub's server");
    fd = open_any_listener(config->address, config->port, &port, err);
    if (fd < 0)
        return fleet_error_wrap(err, "start the hub's server");

    server = calloc(1, sizeof(*server));
    fleet_assert(server != NULL);
    *server = (struct hub_server){
        .protocols = {{.name = "http", .callback = hub_session_http, .rx_buffer_size = 4096},
                      {.name = MESSAGE_PROTOCOL,
                       .callback = hub_session_websocket,
                       .per_session_data_size = sizeof(struct session),
                       .rx_buffer_size = 16384}},
        .listen_fd = fd,
        .port = port,
        .install_key_size = config->install_key_size,
        .connections_max = config->connections_max ? config->connections_max : CONNECTIONS_MAX,
        .hello_timeout_ms =
            config->hello_timeout_ms > 0 ? config->hello_timeout_ms : HELLO_TIMEOUT_MS,
        .refused = config->refused,
        .user = config->user,
    };
    fleet_assert(server->connections_max < 1u << HUB_SERVER_SLOT_BITS);
    server->slots = calloc(server->connections_max, sizeof(struct session *));
    server->install_key = malloc(config->install_key_size + 1);
    server->unused = SSL_CTX_new(TLS_client_method());
    fleet_assert(server->slots != NULL && server->install_key != NULL && server->unused != NULL);
    memcpy(server->install_key, config->install_key, config->install_key_size);

    uv_poll_init(config->loop, &server->listener, fd);
    server->listener.data = server;
    uv_timer_init(config->loop, &server->reaper);
    server->reaper.data = server;
    rc = make_context(server, config, err);
    if (rc < 0) {
        hub_server_free(server);
        return rc;
    }
    uv_poll_start(&server->listener, UV_READABLE, on_acceptable);
    *out_server = server;
    return 0;
}

static void free_server(uv_handle_t *reaper)
{
    struct hub_server *server = reaper->data;

    close(server->listen_fd);
    SSL_CTX_free(server->unused);
    fleet_strbuf_release(&server->scratch);
    free(server->install_key);
    free(server->slots);
    free(server);
}

static void on_listener_closed(uv_handle_t *listener)
{
    struct hub_server *server = listener->data;

    uv_close((uv_handle_t *)&server->reaper, free_server);
}

/*
 * On a loop that is not its own lws lets go in two steps: the first lws_context_destroy() closes
 * its handles, which takes some turns; the second one, when they are closed, frees the context.
 */
static void reap(uv_timer_t *reaper)
{
    struct hub_server *server = reaper->data;

    if (server->socket_count > 0 || ++server->reap_count < REAP_TURNS)
        return;
    if (server->context)
        lws_context_destroy(server->context);
    uv_timer_stop(reaper);
    uv_close((uv_handle_t *)&server->listener, on_listener_closed);
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
    server->is_freed = true;
    uv_poll_stop(&server->listener);
    if (server->context)
        lws_context_destroy(server->context);
    uv_timer_start(&server->reaper, reap, 0, 1);
}

int hub_server_port(const struct hub_server *server)
{
    return server->port;
}
