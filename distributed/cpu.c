/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The world of fleet_cpu.h. Each rank opens a port of its own and tells rank 0, which answers all
 * of them with the list of addresses; then they connect as any world does. A message is a text of a
 * fixed size: "rank world address", and for each rank its address in the answer.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/distributed.h"
#include "distributed/rpc/connect.h"
#include "include/fleet/fleet_cpu.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/variable.h"

#define RANKS_MAX    4096
#define ADDRESS_SIZE 96
#define HELLO_SIZE   128
#define TIMEOUT_MS   3600000

struct meeting {
    int rank, world;
    double deadline_ms;
    char (*addresses)[ADDRESS_SIZE]; /* [world] */
    int *peers;                      /* rank 0: [world] connections, -1 = none */
};

static struct comm *world;
static int listener = -1;
static int timeout_ms;

/* ---- whole messages within the deadline ------------------------------------------------------ */

static int wait_for(int fd, short events, double deadline_ms)
{
    struct pollfd one = {.fd = fd, .events = events};
    double left = deadline_ms - fleet_monotonic_ms();

    return left > 0 && poll(&one, 1, left > 1000 ? 1000 : (int)left + 1) >= 0 ? 0 : -ETIMEDOUT;
}

/* 0, -ETIMEDOUT or -ECONNRESET. */
static int transfer(int fd, bool is_receive, void *data, size_t size, double deadline_ms)
{
    for (size_t at = 0; at < size;) {
        ssize_t count = is_receive
                            ? recv(fd, (char *)data + at, size - at, MSG_DONTWAIT)
                            : send(fd, (char *)data + at, size - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
            return -ECONNRESET;
        if (count > 0)
            at += (size_t)count;
        else if (wait_for(fd, is_receive ? POLLIN : POLLOUT, deadline_ms) < 0)
            return -ETIMEDOUT;
    }
    return 0;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static int missing(const struct meeting *m, struct fleet_error *err)
{
    int rank = 1;

    while (rank < m->world && m->peers[rank] >= 0)
        rank++;
    return fleet_error(err, -ETIMEDOUT, "rank %d did not come in time", rank);
}

/* Take in one rank. A stranger is dropped. */
static int meet_one(struct meeting *m, int fd, struct fleet_error *err)
{
    char hello[HELLO_SIZE], address[ADDRESS_SIZE];
    double deadline = fleet_monotonic_ms() + 10000;
    int rank, ranks;

    if (transfer(fd, true, hello, sizeof(hello),
                 deadline < m->deadline_ms ? deadline : m->deadline_ms) < 0 ||
        hello[HELLO_SIZE - 1] != '\0' ||
        /* NOLINTNEXTLINE(cert-err34-c): numbers out of range fail the checks below */
        sscanf(hello, "fleet-cpu %d %d %95s", &rank, &ranks, address) != 3 || rank < 1 ||
        rank >= m->world) {
        (void)close(fd);
        return 0;
    }
    if (ranks != m->world || m->peers[rank] >= 0) {
        (void)close(fd);
        return ranks != m->world
                   ? fleet_error(err, -EINVAL, "rank %d expects %d ranks, rank 0 expects %d", rank,
                                 ranks, m->world)
                   : fleet_error(err, -EEXIST, "two processes are rank %d", rank);
    }
    m->peers[rank] = fd;
    (void)snprintf(m->addresses[rank], ADDRESS_SIZE, "%s", address);
    return 1;
}

static int gather(struct meeting *m, int fd, struct fleet_error *err)
{
    int rc = 0;

    for (int met = 1; rc >= 0 && met<m->world; met += rc> 0) {
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        rc = 0;
        if (peer >= 0)
            rc = meet_one(m, peer, err);
        else if (wait_for(fd, POLLIN, m->deadline_ms) < 0)
            return missing(m, err);
    }
    for (int r = 1; rc >= 0 && r < m->world; r++)
        if (transfer(m->peers[r], false, m->addresses, (size_t)m->world * ADDRESS_SIZE,
                     m->deadline_ms) < 0)
            rc = fleet_error(err, -ECONNRESET, "rank %d was lost", r);
    return rc < 0 ? rc : 0;
}

/* ---- the others ------------------------------------------------------------------------------ */

static int ask(struct meeting *m, const char *endpoint, int port, struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = rpc_connect_retry(endpoint, 0, m->deadline_ms, err);
    char hello[HELLO_SIZE] = "", ip[64], own[ADDRESS_SIZE];
    int rc;

    if (fd < 0)
        return fd;
    rc = rpc_own_ip(fd, ip, sizeof(ip), err);
    if (rc < 0)
        return rc;
    rpc_endpoint(ip, port, own, sizeof(own));
    (void)snprintf(hello, sizeof(hello), "fleet-cpu %d %d %s", m->rank, m->world, own);
    rc = transfer(fd, false, hello, sizeof(hello), m->deadline_ms);
    if (rc == 0)
        rc = transfer(fd, true, m->addresses, (size_t)m->world * ADDRESS_SIZE, m->deadline_ms);
    if (rc < 0)
        return fleet_error(err, rc, "rank 0 at %s %s", endpoint,
                           rc == -ETIMEDOUT ? "did not answer in time" : "closed the connection");
    for (int r = 0; r < m->world; r++)
        m->addresses[r][ADDRESS_SIZE - 1] = '\0';
    return 0;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Every rank knows all addresses; its own is in `listener`. */
static int meet(struct meeting *m, const char *endpoint, struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int door = -1;
    char ip[64];
    int port, rc = rpc_endpoint_split(endpoint, ip, sizeof(ip), &port, err);

    if (rc < 0)
        return rc;
    if (m->rank > 0) {
        rc = comm_tcp_listen(NULL, &listener, &port, err);
        return rc < 0 ? rc : ask(m, endpoint, port, err);
    }
    rc = door = endpoint_listen(endpoint, 0, err);
    if (rc >= 0)
        rc = comm_tcp_listen(ip, &listener, &port, err);
    if (rc < 0)
        return rc;
    rpc_endpoint(ip, port, m->addresses[0], ADDRESS_SIZE);
    return gather(m, door, err);
}

static int connect_all(const struct meeting *m, const char *endpoint, struct fleet_error *err)
{
    const char **list = calloc((size_t)m->world, sizeof(*list));
    struct comm_tcp_options options = {.rank = m->rank,
                                       .world = m->world,
                                       .listener = listener,
                                       .stop = -1,
                                       .neighbours = COMM_NEIGHBOURS_SHARED};
    char purpose[300];
    int rc = list ? world_encryption(&options.encrypts, err)
                  : fleet_error(err, -ENOMEM, "out of memory");

    if (rc < 0) {
        free(list);
        return rc;
    }
    for (int r = 0; r < m->world; r++)
        list[r] = m->addresses[r];
    options.addresses = list;
    (void)snprintf(purpose, sizeof(purpose), "cpu %.280s", endpoint);
    world_key(purpose, 0, options.key);
    rc = comm_tcp_new(&options, m->deadline_ms, &world, err);
    free(list);
    return rc;
}

int fleet_cpu_env_init(int rank, int ranks, const char *endpoint, struct fleet_error *err)
{
    struct meeting m = {.rank = rank, .world = ranks};
    int rc;

    if (world)
        return 0;
    if (ranks < 2 || ranks > RANKS_MAX || rank < 0 || rank >= ranks || !endpoint)
        return fleet_error(err, -EINVAL,
                           "fleet_cpu_env_init: rank %d of %d, allowed: 2 to %d ranks and an "
                           "endpoint",
                           rank, ranks, RANKS_MAX);
    rc = fleet_variable_number("PADDLE_PG_TIMEOUT", 1, INT32_MAX, TIMEOUT_MS, &timeout_ms, err);
    m.deadline_ms = fleet_monotonic_ms() + timeout_ms;
    m.addresses = calloc((size_t)ranks, sizeof(*m.addresses));
    m.peers = malloc((size_t)ranks * sizeof(*m.peers));
    if (rc == 0 && (!m.addresses || !m.peers))
        rc = fleet_error(err, -ENOMEM, "out of memory");
    for (int r = 0; m.peers && r < ranks; r++)
        m.peers[r] = -1;
    if (rc == 0)
        rc = meet(&m, endpoint, err);
    if (rc == 0)
        rc = connect_all(&m, endpoint, err);
    for (int r = 0; m.peers && r < ranks; r++)
        if (m.peers[r] >= 0)
            (void)close(m.peers[r]);
    free(m.peers);
    free(m.addresses);
    if (rc < 0) {
        fleet_cpu_env_release();
        return fleet_error_wrap(err, "fleet_cpu_env_init");
    }
    return 0;
}

int fleet_cpu_barrier(struct fleet_error *err)
{
    if (!world)
        return fleet_error(err, FLEET_NOT_INITIALIZED,
                           "fleet_cpu_barrier: call fleet_cpu_env_init() first");
    return comm_barrier(world, fleet_monotonic_ms() + timeout_ms, err);
}

void fleet_cpu_env_release(void)
{
    comm_free(world);
    world = NULL;
    if (listener >= 0)
        (void)close(listener);
    listener = -1;
}
