/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Connections from accept until their token is checked, as long as the peer is not known. A turn of
 * the loop begins at most ACCEPTS_MAX handshakes, so that many connections do not delay the other
 * work of the loop.
 *
 *   accepted ── hub_admission ──▶ handshake ── token is right ──▶ connection (hub_session.c)
 *       └─ refused ──▶ closed ◀── overdue, or replaced ──┘
 *
 * The keeper is a timer that runs while there is something to watch: overdue handshakes,
 * connections to accept after a lack of descriptors, and memory to give back after many connections
 * have ended.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/rendezvous/hub_server_internal.h"

#define ACCEPTS_MAX  32   /* handshakes begun in a turn of the loop … */
#define REFUSALS_MAX 512  /* … and refused connections, which cost little */
#define BACKLOG      4096 /* if it is full, clients try again a second later */
#define KEEPER_MS    250
#define TRIM_CLOSED  128 /* ended connections after which memory is given back */
#define QUIET_TURNS  4   /* turns of the keeper without an end: the flood is over */

void hub_accept_peer_name(const struct sockaddr_storage *address, socklen_t size, char out[64])
{
    char host[48] = "?", port[8] = "?";

    (void)getnameinfo((const struct sockaddr *)address, size, host, sizeof(host), port,
                      sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    (void)snprintf(out, 64, "%s:%s", host, port);
}

/* ---- handshakes ------------------------------------------------------------------------------ */

static const char *reason_of(enum hub_refusal kind)
{
    switch (kind) {
    case HUB_REFUSED_HANDSHAKE_TIME:
        return "the handshake was not complete in time";
    case HUB_REFUSED_HANDSHAKES:
        return "too many open handshakes";
    case HUB_REFUSED_SOURCE:
        return "too many open handshakes of this address";
    default:
        return "this address begins too many connections a second";
    }
}

/* Close a connection whose handshake is open. */
static void give_up(struct hub_server *server, struct hub_handshake *handshake,
                    enum hub_refusal kind)
{
    struct lws *wsi = handshake->user;
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);
    char peer[64];

    (void)getpeername(lws_get_socket_fd(wsi), (struct sockaddr *)&address, &size);
    hub_accept_peer_name(&address, size, peer);
    lws_set_opaque_user_data(wsi, NULL);
    hub_admission_end(server->admission, handshake);
    hub_server_refuse(server, kind, "", peer, reason_of(kind));
    lws_set_timeout(wsi, PENDING_TIMEOUT_SSL_ACCEPT, LWS_TO_KILL_SYNC);
}

void hub_accept_finish(struct hub_server *server, struct lws *wsi)
{
    struct hub_handshake *handshake = lws_get_opaque_user_data(wsi);

    if (!handshake)
        return;
    lws_set_opaque_user_data(wsi, NULL);
    hub_admission_end(server->admission, handshake);
}

/* ---- the keeper ------------------------------------------------------------------------------ */

static void on_acceptable(uv_poll_t *listener, int status, int events);

/* Stop accepting while there is no room for a connection, and go on later. */
static void gate(struct hub_server *server)
{
    bool must_wait = server->is_out_of_memory ||
                     server->socket_count >= server->connections_max + server->handshakes_max;

    if (server->is_freed || must_wait == server->is_paused)
        return;
    server->is_paused = must_wait;
    if (must_wait)
        uv_poll_stop(&server->listener);
    else
        uv_poll_start(&server->listener, UV_READABLE, on_acceptable);
}

/*
 * Give memory back to the system. The C library keeps memory that is freed in the middle of its
 * heap, and after a flood that may be most of the heap. This takes some milliseconds, so it waits
 * until no connection has ended for a while.
 */
static void give_memory_back(struct hub_server *server)
{
    server->quiet_turns =
        server->closed_count == server->closed_before ? server->quiet_turns + 1 : 0;
    server->closed_before = server->closed_count;
    if (server->quiet_turns < QUIET_TURNS)
        return;
    if (server->closed_count >= TRIM_CLOSED)
        (void)malloc_trim(0);
    server->closed_count = server->closed_before = 0;
}

static void on_keeper(uv_timer_t *keeper)
{
    struct hub_server *server = keeper->data;
    struct hub_handshake *overdue;

    while ((overdue = hub_admission_overdue(server->admission, fleet_monotonic_ms())))
        give_up(server, overdue, HUB_REFUSED_HANDSHAKE_TIME);
    server->is_out_of_memory = false;
    gate(server);
    give_memory_back(server);
    if (hub_admission_count(server->admission) == 0 && server->closed_count == 0)
        uv_timer_stop(keeper);
}

static void wake_keeper(struct hub_server *server)
{
    if (!server->is_freed && !uv_is_active((uv_handle_t *)&server->keeper))
        uv_timer_start(&server->keeper, on_keeper, KEEPER_MS, KEEPER_MS);
}

void hub_accept_closed(struct hub_server *server, struct lws *wsi)
{
    hub_accept_finish(server, wsi);
    if (server->socket_count > 0)
        server->socket_count--;
    server->closed_count++;
    wake_keeper(server);
    gate(server);
}

/* ---- accepting ------------------------------------------------------------------------------- */

/* May this one begin a handshake? NULL: no, and the refusal is reported. */
static struct hub_handshake *admit(struct hub_server *server,
                                   const struct sockaddr_storage *address, socklen_t size)
{
    struct hub_handshake *victim, *handshake;
    enum hub_refusal why;
    char peer[64];

    handshake =
        hub_admission_begin(server->admission, address, fleet_monotonic_ms(), &victim, &why);
    if (victim)
        give_up(server, victim, why);
    if (!handshake) {
        hub_accept_peer_name(address, size, peer);
        hub_server_refuse(server, why, "", peer, reason_of(why));
    }
    return handshake;
}

/* False: it was refused, and is closed. */
static bool take_connection(struct hub_server *server, int fd,
                            const struct sockaddr_storage *address, socklen_t size)
{
    struct hub_handshake *handshake = admit(server, address, size);

    server->stats.accepted++;
    if (!handshake) {
        /* Reset: a connection that lingers in TIME_WAIT would cost the kernel memory for a
         * minute. */
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1},
                         sizeof(struct linger));
        (void)close(fd);
        return false;
    }
    server->socket_count++;
    /* A restart is a few small messages in a row. Without TCP_NODELAY each may wait 40 ms for an
     * ACK. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    handshake->user = lws_adopt_socket_vhost(server->vhost, fd);
    wake_keeper(server);
    if (handshake->user) {
        lws_set_opaque_user_data(handshake->user, handshake);
    } else { /* lws has closed it */
        hub_admission_end(server->admission, handshake);
        server->socket_count--;
    }
    return true;
}

static void on_acceptable(uv_poll_t *listener, int status, int events)
{
    struct hub_server *server = listener->data;
    int begun = 0;

    (void)status;
    (void)events;
    for (int i = 0; i < REFUSALS_MAX && begun < ACCEPTS_MAX && !server->is_paused; i++) {
        struct sockaddr_storage address = {0};
        socklen_t size = sizeof(address);
        int fd = accept4(server->listen_fd, (struct sockaddr *)&address, &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            begun += take_connection(server, fd, &address, size);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            struct hub_handshake *oldest = hub_admission_oldest(server->admission);
            if (oldest)
                give_up(server, oldest, HUB_REFUSED_HANDSHAKES);
            server->is_out_of_memory = true; /* until the keeper's next turn */
            wake_keeper(server);
        } else {
            return;
        }
        gate(server);
    }
}

/* ---- life cycle ------------------------------------------------------------------------------ */

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

int hub_accept_open(struct hub_server *server, const char *address, int port,
                    struct fleet_error *err)
{
    int fd = open_listener(address, port, &server->port, err);

    if (fd == -EAFNOSUPPORT && !address) /* the kernel has no IPv6: listen on all IPv4 addresses */
        fd = open_listener("0.0.0.0", port, &server->port, err);
    server->listen_fd = fd;
    return fd < 0 ? fd : 0;
}

void hub_accept_init(struct hub_server *server, struct uv_loop_s *loop)
{
    uv_poll_init(loop, &server->listener, server->listen_fd);
    server->listener.data = server;
    uv_timer_init(loop, &server->keeper);
    server->keeper.data = server;
}

void hub_accept_start(struct hub_server *server)
{
    uv_poll_start(&server->listener, UV_READABLE, on_acceptable);
}

void hub_accept_stop(struct hub_server *server)
{
    uv_poll_stop(&server->listener);
    uv_timer_stop(&server->keeper);
}

static void on_keeper_closed(uv_handle_t *keeper)
{
    struct hub_server *server = keeper->data;

    server->accept_is_closed(server);
}

static void on_listener_closed(uv_handle_t *listener)
{
    struct hub_server *server = listener->data;

    (void)close(server->listen_fd);
    uv_close((uv_handle_t *)&server->keeper, on_keeper_closed);
}

void hub_accept_close(struct hub_server *server, void (*closed)(struct hub_server *server))
{
    server->accept_is_closed = closed;
    uv_close((uv_handle_t *)&server->listener, on_listener_closed);
}
