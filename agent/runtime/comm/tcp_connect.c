/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Connects the ranks of a generation. Other clients may connect, too; they are refused.
 *
 *   dialling (lower ranks)                             accepting (higher ranks)
 *
 *   WAITING ──retry time──▶ CONNECTING                 (accept) ──▶ HELLO
 *      ▲                        │ connected: send hello               │ hello: send nonce, proof A
 *      │                        ▼                                     ▼
 *      ├──any failure──── CHALLENGE                     PROOF ──proof D is right: confirm──▶ DONE
 *      │                        │ proof A is right:       └──▶ failure, 2 s of silence: closed
 *      │                        ▼    send proof D
 *      └──any failure────── CONFIRM ──confirmed──▶ DONE
 *
 * tcp_hello.h says what hello and proofs are.
 *
 * (1) A dialler never gives up before the deadline: the other side may still be busy ending the
 *     last generation, whose key it then answers with.
 * (2) A dialler is not done before the acceptor is. An acceptor that had no processor for 2 s may
 *     close a connection whose proof D has just been sent, and the dialler must dial again then.
 * (3) An unproven connection costs one entry of a bounded list and no waiting; the oldest is
 *     dropped when the list is full.
 */
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/runtime/comm/engine.h"
#include "agent/runtime/comm/seal.h"
#include "agent/runtime/comm/tcp_address.h"
#include "agent/runtime/comm/tcp_hello.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"

#define CHALLENGE_SIZE (TCP_NONCE_SIZE + FLEET_SHA256_SIZE)
#define SILENCE_MS_MAX 2000.0 /* an accepted connection that is not proven by then is closed */
#define RETRY_MS_MIN   2.0
#define RETRY_MS_MAX   100.0
#define STRANGERS_MAX  128 /* unproven accepted connections at a time, besides the ranks' */
#define ACCEPTS_A_TURN 64  /* so that a flood of connections cannot starve the proven ones */
#define DEAD_PEER_S    3   /* a host that answers no keep-alive for so long is lost */

enum phase {
    PHASE_FREE,
    PHASE_WAITING,
    PHASE_CONNECTING,
    PHASE_CHALLENGE,
    PHASE_CONFIRM,
    PHASE_HELLO,
    PHASE_PROOF,
    PHASE_DONE,
};

struct connection {
    enum phase phase;
    int fd;
    double at_ms; /* WAITING: when to dial; HELLO, PROOF: when it is too late */
    double retry_ms;
    const char *reason; /* why the last attempt failed; static */
    struct sockaddr_storage address;
    socklen_t address_size;
    uint8_t hello[TCP_HELLO_SIZE];
    uint8_t nonce[TCP_NONCE_SIZE]; /* the acceptor's */
    uint8_t input[CHALLENGE_SIZE];
    size_t got; /* bytes of input */
};

struct connector {
    const struct comm_tcp_options *options;
    int channels;
    struct connection *connections; /* [0, rank · channels): dialled; then accepted ones */
    int connection_count;
    struct pollfd *polls;    /* [connection_count + 2] */
    struct comm_lane *lanes; /* [world · channels], without a descriptor until proven */
    int missing;
};

/* A few bytes into an empty socket buffer: all or a broken connection. */
static bool send_all(int fd, const void *data, size_t size)
{
    return send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
}

/* Read up to `size` bytes of input. 1: all there; 0: more to come; -1: closed or broken. */
static int fill_input(struct connection *connection, size_t size)
{
    while (connection->got < size) {
        ssize_t n = recv(connection->fd, connection->input + connection->got,
                         size - connection->got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0)
            return -1;
        connection->got += (size_t)n;
    }
    connection->got = 0;
    return 1;
}

/* ---- one connection -------------------------------------------------------------------------- */

static void set_socket_options(int fd)
{
    const int on = 1, seconds = 1, probes = DEAD_PEER_S;

    /* All of these make things faster or failures sooner; without them things still work. Not
     * TCP_USER_TIMEOUT: it also ends connections to a live rank that computes and does not read. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

static void close_connection(struct connection *connection)
{
    if (connection->fd >= 0)
        (void)close(connection->fd);
    connection->fd = -1;
    connection->got = 0;
    connection->phase = PHASE_FREE;
}

static void retry_later(struct connection *connection, const char *reason, double now)
{
    close_connection(connection);
    connection->reason = reason;
    connection->phase = PHASE_WAITING;
    connection->at_ms = now + connection->retry_ms;
    connection->retry_ms = fmin(2 * connection->retry_ms, RETRY_MS_MAX);
}

static struct seal *seal_of(const struct connector *c, const struct connection *connection,
                            bool is_dialler)
{
    uint8_t keys[2][FLEET_SHA256_SIZE];
    struct seal *seal;

    if (!c->options->encrypts)
        return NULL;
    tcp_hello_prove(c->options->key, connection->hello, connection->nonce, 'a', keys[0]);
    tcp_hello_prove(c->options->key, connection->hello, connection->nonce, 'd', keys[1]);
    seal = seal_new(keys[is_dialler], keys[!is_dialler]);
    OPENSSL_cleanse(keys, sizeof(keys));
    return seal;
}

/* The connection of lane `at` is proven. A second one means that the first was given up. */
static void finish(struct connector *c, struct connection *connection, int at, bool is_dialler)
{
    if (c->lanes[at].fd < 0)
        c->missing--;
    tcp_close_lane(&c->lanes[at]);
    c->lanes[at] =
        (struct comm_lane){.fd = connection->fd, .seal = seal_of(c, connection, is_dialler)};
    connection->fd = -1;
    connection->phase = PHASE_DONE;
}

static void dial(struct connection *connection, double now)
{
    connection->fd =
        socket(connection->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0) {
        retry_later(connection, "no socket", now);
        return;
    }
    set_socket_options(connection->fd);
    if (connect(connection->fd, (struct sockaddr *)&connection->address, connection->address_size) <
            0 &&
        errno != EINPROGRESS) {
        retry_later(connection, errno == ECONNREFUSED ? "refused" : "not reachable", now);
        return;
    }
    connection->phase = PHASE_CONNECTING;
}

static void connected(struct connector *c, struct connection *connection, int at, double now)
{
    int code = 0;
    socklen_t size = sizeof(code);

    if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &code, &size) < 0 || code != 0) {
        retry_later(connection, code == ECONNREFUSED ? "refused" : "not reachable", now);
        return;
    }
    tcp_hello_write(connection->hello, c->options, at / c->channels, at % c->channels);
    if (!send_all(connection->fd, connection->hello, TCP_HELLO_SIZE))
        retry_later(connection, "it closed the connection", now);
    else
        connection->phase = PHASE_CHALLENGE;
}

static void challenged(const struct connector *c, struct connection *connection, double now)
{
    uint8_t proof[FLEET_SHA256_SIZE];
    int rc = fill_input(connection, CHALLENGE_SIZE);

    if (rc == 0)
        return;
    memcpy(connection->nonce, connection->input, TCP_NONCE_SIZE);
    if (rc < 0)
        retry_later(connection, "it closed the connection", now);
    else if (!tcp_hello_check(c->options->key, connection->hello, connection->nonce, 'A',
                              connection->input + TCP_NONCE_SIZE))
        retry_later(connection, "it has another key, that of another generation", now);
    else if (tcp_hello_prove(c->options->key, connection->hello, connection->nonce, 'D', proof),
             !send_all(connection->fd, proof, sizeof(proof)))
        retry_later(connection, "it closed the connection", now);
    else
        connection->phase = PHASE_CONFIRM;
}

static void confirmed(struct connector *c, struct connection *connection, int at, double now)
{
    int rc = fill_input(connection, TCP_CONFIRM_SIZE);

    if (rc < 0)
        retry_later(connection, "it closed the connection", now);
    else if (rc > 0)
        finish(c, connection, at, true);
}

static void greeted(struct connector *c, struct connection *connection)
{
    uint8_t answer[CHALLENGE_SIZE];
    int rc = fill_input(connection, TCP_HELLO_SIZE), channel;

    if (rc == 0)
        return;
    memcpy(connection->hello, connection->input, TCP_HELLO_SIZE);
    if (rc < 0 || tcp_hello_read(connection->hello, c->options, &channel) < 0) {
        close_connection(connection);
        return;
    }
    fleet_random_bytes(connection->nonce, TCP_NONCE_SIZE);
    memcpy(answer, connection->nonce, TCP_NONCE_SIZE);
    tcp_hello_prove(c->options->key, connection->hello, connection->nonce, 'A',
                    answer + TCP_NONCE_SIZE);
    connection->phase = PHASE_PROOF;
    if (!send_all(connection->fd, answer, sizeof(answer)))
        close_connection(connection);
}

static void proven(struct connector *c, struct connection *connection)
{
    int rc = fill_input(connection, FLEET_SHA256_SIZE), channel = 0, rank;

    if (rc > 0 &&
        tcp_hello_check(c->options->key, connection->hello, connection->nonce, 'D',
                        connection->input) &&
        (rank = tcp_hello_read(connection->hello, c->options, &channel)) >= 0 &&
        send_all(connection->fd, "", TCP_CONFIRM_SIZE))
        finish(c, connection, rank * c->channels + channel, false);
    else if (rc != 0)
        close_connection(connection);
}

static void advance(struct connector *c, int index, double now)
{
    struct connection *connection = &c->connections[index];

    if (connection->phase == PHASE_CONNECTING)
        connected(c, connection, index, now);
    else if (connection->phase == PHASE_CHALLENGE)
        challenged(c, connection, now);
    else if (connection->phase == PHASE_CONFIRM)
        confirmed(c, connection, index, now);
    else if (connection->phase == PHASE_HELLO)
        greeted(c, connection);
    else if (connection->phase == PHASE_PROOF)
        proven(c, connection);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* A place for an accepted connection: a free one, else that of the one that has waited longest. */
static struct connection *place_for_stranger(struct connector *c)
{
    struct connection *oldest = NULL;

    for (int i = c->options->rank * c->channels; i < c->connection_count; i++) {
        struct connection *connection = &c->connections[i];
        if (connection->phase == PHASE_FREE || connection->phase == PHASE_DONE)
            return connection;
        if (!oldest || connection->at_ms < oldest->at_ms)
            oldest = connection;
    }
    close_connection(oldest);
    return oldest;
}

static int accept_some(struct connector *c, double now, struct fleet_error *err)
{
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(c->options->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct connection *connection;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == EBADF || errno == EINVAL))
            return fleet_error(err, -errno, "accept a rank's connection: %s", strerror(errno));
        if (fd < 0)
            return 0; /* none left, or one that has gone already */
        set_socket_options(fd);
        connection = place_for_stranger(c);
        *connection =
            (struct connection){.phase = PHASE_HELLO, .fd = fd, .at_ms = now + SILENCE_MS_MAX};
    }
    return 0;
}

/* What is due by the clock: dial, or close what stayed silent. Returns when the next is due. */
static double run_timers(struct connector *c, double now)
{
    double next = INFINITY;

    for (int i = 0; i < c->connection_count; i++) {
        struct connection *connection = &c->connections[i];
        if (connection->phase == PHASE_WAITING && connection->at_ms <= now)
            dial(connection, now);
        else if ((connection->phase == PHASE_HELLO || connection->phase == PHASE_PROOF) &&
                 connection->at_ms <= now)
            close_connection(connection);
        if (connection->phase == PHASE_WAITING || connection->phase == PHASE_HELLO ||
            connection->phase == PHASE_PROOF)
            next = fmin(next, connection->at_ms);
    }
    return next;
}

static int wait_for_connections(struct connector *c, double until_ms, struct fleet_error *err)
{
    double left = fmax(0, until_ms - fleet_monotonic_ms());
    int timeout = isinf(left) ? -1 : (int)fmin(ceil(left), 1e9), rc;

    for (int i = 0; i < c->connection_count; i++) {
        const struct connection *connection = &c->connections[i];
        c->polls[i].fd = connection->phase == PHASE_WAITING ? -1 : connection->fd;
        c->polls[i].events = connection->phase == PHASE_CONNECTING ? POLLOUT : POLLIN;
        c->polls[i].revents = 0;
    }
    c->polls[c->connection_count] = (struct pollfd){.fd = c->options->listener, .events = POLLIN};
    c->polls[c->connection_count + 1] = (struct pollfd){.fd = c->options->stop, .events = POLLIN};
    rc = poll(c->polls, (nfds_t)c->connection_count + 2, timeout);
    if (rc < 0 && errno != EINTR)
        return fleet_error(err, -errno, "poll: %s", strerror(errno));
    if (rc > 0 && c->polls[c->connection_count + 1].revents)
        return fleet_error(err, -ECANCELED, "connecting was cancelled");
    return rc < 0 ? 0 : rc;
}

static int out_of_time(const struct connector *c, struct fleet_error *err)
{
    int at = 0, missing;

    while (at / c->channels == c->options->rank || c->lanes[at].fd >= 0)
        at++;
    missing = at / c->channels;
    if (c->options->failed_rank)
        *c->options->failed_rank = missing;
    if (missing > c->options->rank)
        return fleet_error(err, -ETIMEDOUT,
                           "rank %d (%s) did not connect before the deadline (%d of %d missing)",
                           missing, c->options->addresses[missing], c->missing,
                           (c->options->world - 1) * c->channels);
    return fleet_error(err, -ETIMEDOUT,
                       "connect to rank %d (%s): no success before the deadline (last: %s; %d of "
                       "%d missing)",
                       missing, c->options->addresses[missing],
                       c->connections[at].reason ? c->connections[at].reason : "no answer",
                       c->missing, (c->options->world - 1) * c->channels);
}

static int connect_all(struct connector *c, double deadline_ms, struct fleet_error *err)
{
    while (c->missing > 0) {
        double now = fleet_monotonic_ms(), next = run_timers(c, now);
        int rc;
        if (now >= deadline_ms)
            return out_of_time(c, err);
        rc = wait_for_connections(c, fmin(next, deadline_ms), err);
        if (rc < 0)
            return rc;
        now = fleet_monotonic_ms();
        for (int i = 0; i < c->connection_count && rc > 0; i++)
            if (c->polls[i].fd >= 0 && c->polls[i].revents)
                advance(c, i, now);
        if (rc > 0 && c->polls[c->connection_count].revents) {
            rc = accept_some(c, now, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int prepare(struct connector *c, struct fleet_error *err)
{
    int rank = c->options->rank, world = c->options->world;

    c->channels = tcp_channels(c->options);
    c->connection_count = world * c->channels + STRANGERS_MAX;
    c->missing = (world - 1) * c->channels;
    c->connections = calloc((size_t)c->connection_count, sizeof(*c->connections));
    c->polls = calloc((size_t)c->connection_count + 2, sizeof(*c->polls));
    fleet_assert(c->connections && c->polls);
    for (int at = 0; at < world * c->channels; at++)
        c->lanes[at] = (struct comm_lane){.fd = -1};
    for (int i = 0; i < c->connection_count; i++)
        c->connections[i].fd = -1;
    for (int at = 0; at < rank * c->channels; at++) {
        struct connection *connection = &c->connections[at];
        int r = at / c->channels;
        int rc = tcp_address_parse(c->options->addresses[r], r, &connection->address,
                                   &connection->address_size, err);
        if (rc < 0)
            return rc;
        connection->phase = PHASE_WAITING;
        connection->retry_ms = RETRY_MS_MIN;
    }
    return 0;
}

int tcp_connect_all(const struct comm_tcp_options *options, double deadline_ms,
                    struct comm_lane *lanes, struct fleet_error *err)
{
    struct connector c = {.options = options, .lanes = lanes};
    int rc;

    if (options->failed_rank)
        *options->failed_rank = -1;
    rc = prepare(&c, err);
    if (rc == 0)
        rc = connect_all(&c, deadline_ms, err);
    for (int i = 0; i < c.connection_count; i++)
        close_connection(&c.connections[i]);
    for (int at = 0; at < options->world * c.channels && rc < 0; at++)
        tcp_close_lane(&lanes[at]);
    free(c.connections);
    free(c.polls);
    return rc;
}
