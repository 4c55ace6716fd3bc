/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The start and the end of calls between workers. A worker listens; each pair has a connection in
 * the direction of its calls, made at the first one (call.c). Rank 0 also keeps the list of workers
 * (members.h): its own join and leave are calls without a connection.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/rpc/connect.h"
#include "distributed/rpc/rpc_internal.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/variable.h"

#define FLUSH_MS 10000

struct rpc_state rpc_state;
pthread_cond_t rpc_has_begun = PTHREAD_COND_INITIALIZER;

/* ---- joining --------------------------------------------------------------------------------- */

static void release(void)
{
    struct rpc_peer *peers = rpc_state.peers;
    int count = rpc_state.peer_count;

    (void)pthread_mutex_lock(&rpc_lock);
    rpc_state.is_failed = !rpc_state.is_open;
    (void)pthread_cond_broadcast(&rpc_has_begun);
    (void)pthread_mutex_unlock(&rpc_lock);
    rpc_loop_stop(rpc_state.loop, FLUSH_MS); /* no event comes after it */
    rpc_pool_free(rpc_state.pool);
    (void)pthread_mutex_lock(&rpc_lock);
    rpc_state.peers = NULL;
    rpc_state.peer_count = 0;
    rpc_members_free(rpc_state.members);
    rpc_state.members = NULL;
    (void)pthread_mutex_unlock(&rpc_lock);
    for (int i = 0; i < count; i++) {
        rpc_channel_free(peers[i].channel);
        (void)pthread_mutex_destroy(&peers[i].connecting);
    }
    free(peers);
    rpc_loop_free(rpc_state.loop);
    SSL_CTX_free(rpc_state.context);
    OPENSSL_cleanse(rpc_state.key, sizeof(rpc_state.key));
    rpc_state.loop = NULL;
    rpc_state.pool = NULL;
    rpc_state.context = NULL;
    (void)pthread_mutex_lock(&rpc_lock);
    rpc_state.is_begun = rpc_state.is_open = rpc_state.is_failed = false;
    (void)pthread_mutex_unlock(&rpc_lock);
}

static int set_peers(const struct fleet_rpc_worker *workers, int count, struct fleet_error *err)
{
    struct rpc_peer *peers = calloc((size_t)count, sizeof(*peers)), *old;

    if (!peers)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < count; i++) {
        peers[i].worker = workers[i];
        (void)pthread_mutex_init(&peers[i].connecting, NULL);
    }
    (void)pthread_mutex_lock(&rpc_lock);
    old = rpc_state.peers;
    if (old) {
        peers[0].channel = old[0].channel; /* the connection to rank 0 */
        (void)pthread_mutex_destroy(&old[0].connecting);
    }
    rpc_state.peers = peers;
    rpc_state.peer_count = count;
    (void)pthread_mutex_unlock(&rpc_lock);
    free(old);
    return 0;
}

/* Listen, and know our own address. `fd` is a connection to rank 0, or -1 on rank 0. */
static int listen_here(const char *master, int fd, struct fleet_rpc_worker *self,
                       struct fleet_error *err)
{
    const char *own = rpc_state.rank == 0 ? master : getenv("PADDLE_WORKER_ENDPOINT");
    int listener, rc;

    if (own && own[0]) {
        rc = rpc_endpoint_split(own, self->ip, sizeof(self->ip), &self->port, err);
        if (rc == 0)
            rc = listener = endpoint_listen(own, rpc_state.rank, err);
    } else {
        rc = rpc_own_ip(fd, self->ip, sizeof(self->ip), err);
        if (rc == 0)
            rc = comm_tcp_listen(self->ip, &listener, &self->port, err);
    }
    if (rc < 0)
        return rc;
    rpc_loop_listen(rpc_state.loop, listener);
    return 0;
}

/* A call of JOIN or LEAVE to rank 0, by `channel` or, on rank 0, without. */
static int call_members(struct rpc_channel *channel, enum rpc_kind kind, const void *data,
                        size_t bytes, int timeout_ms, void **out, size_t *out_bytes,
                        struct fleet_error *err)
{
    const char *what = kind == RPC_JOIN ? "the start" : "the end";
    struct fleet_rpc_future *future;
    uint64_t id;
    int rc = 0;

    (void)pthread_mutex_lock(&rpc_lock);
    future = rpc_future_new("rank 0", what, timeout_ms, err);
    if (future && rpc_state.members) {
        id = rpc_future_id(future);
        rpc_future_sent(future, NULL);
        if (kind == RPC_JOIN)
            rpc_members_join(rpc_state.members, NULL, id, data, bytes);
        else
            rpc_members_leave(rpc_state.members, NULL, id);
    }
    (void)pthread_mutex_unlock(&rpc_lock);
    if (!future)
        return -ENOMEM;
    if (!rpc_state.members)
        rc = rpc_send_call(future, &rpc_state.peers[0], channel, kind, "", data, bytes, err);
    if (rc == 0)
        rc = fleet_rpc_wait(future, out, out_bytes, err);
    fleet_rpc_future_free(future);
    return rc;
}

/* Tell rank 0 of ourselves, get all workers. */
static int join(struct rpc_channel *channel, const struct fleet_rpc_worker *self,
                struct fleet_error *err)
{
    struct fleet_rpc_worker *workers = NULL;
    void *data = NULL, *list = NULL;
    int count, world, rc;
    /* rank 0 answers late workers by name, a moment before the others' time is over */
    int timeout_ms = rpc_state.rank == 0 || rpc_state.timeout_ms > INT_MAX - FLUSH_MS
                         ? rpc_state.timeout_ms
                         : rpc_state.timeout_ms + FLUSH_MS;
    size_t bytes;

    rc = rpc_workers_encode(self, 1, rpc_state.world, &data, &bytes, err);
    if (rc == 0)
        rc = call_members(channel, RPC_JOIN, data, bytes, timeout_ms, &list, &bytes, err);
    if (rc == -ETIMEDOUT && rpc_state.members) {
        (void)pthread_mutex_lock(&rpc_lock);
        rc = rpc_members_give_up(rpc_state.members, err);
        (void)pthread_mutex_unlock(&rpc_lock);
    }
    if (rc == 0)
        rc = rpc_workers_decode(list, bytes, &workers, &count, &world, err);
    if (rc == 0)
        rc = set_peers(workers, count, err);
    free(workers);
    free(data);
    free(list);
    return rc;
}

/* Connect to rank 0; a channel with a reference. */
static int reach_first(const char *master, struct fleet_rpc_worker *self, struct rpc_channel **out,
                       struct fleet_error *err)
{
    struct fleet_rpc_worker first = {.rank = 0};
    int fd, rc = rpc_endpoint_split(master, first.ip, sizeof(first.ip), &first.port, err);

    if (rc < 0)
        return rc;
    fd = rpc_connect_retry(master, 0, fleet_monotonic_ms() + rpc_state.timeout_ms, err);
    if (fd < 0)
        return fd;
    rc = listen_here(master, fd, self, err);
    if (rc == 0)
        rc = set_peers(&first, 1, err);
    if (rc < 0) {
        (void)close(fd);
        return rc;
    }
    return rpc_add_channel(&rpc_state.peers[0], fd, out, err);
}

/* Everything of fleet_rpc_init() behind its arguments. */
static int begin(const char *name, const char *master, struct fleet_error *err)
{
    struct fleet_rpc_worker self = {.rank = rpc_state.rank};
    struct rpc_channel *channel = NULL;
    int rc = rpc_secure_new(rpc_state.key, &rpc_state.context, err);

    memcpy(self.name, name, strlen(name));
    if (rc == 0)
        rc = rpc_pool_new(&rpc_state.pool, err);
    if (rc == 0 && rpc_state.rank == 0)
        rc = rpc_members_new(rpc_state.world, rpc_answer_call, NULL, &rpc_state.members, err);
    if (rc == 0)
        rc = rpc_loop_new(&rpc_events, NULL, rpc_state.context, &rpc_state.loop, err);
    if (rc == 0)
        rc = rpc_state.rank == 0 ? listen_here(master, -1, &self, err)
                                 : reach_first(master, &self, &channel, err);
    if (rc == 0)
        rc = join(channel, &self, err);
    rpc_channel_free(channel);
    return rc;
}

/* The arguments, completed from the variables. */
static int settings(const char *name, int rank, int world, const char **master,
                    struct fleet_error *err)
{
    struct fleet_env env;
    char purpose[300];
    int rc = rpc_name_check("name", name, err);

    if (rc == 0)
        rc = fleet_env_read(&env, err);
    if (rc < 0)
        return rc;
    rpc_state.world = world < 1 ? env.world : world;
    rpc_state.rank = rank < 0 ? env.rank : rank;
    rpc_state.timeout_ms = env.timeout_ms;
    if (rpc_state.world > FLEET_RPC_WORKERS_MAX || rpc_state.rank >= rpc_state.world)
        return fleet_error(err, -EINVAL, "rank %d of %d workers, allowed: 0 to %d of at most %d",
                           rpc_state.rank, rpc_state.world, rpc_state.world - 1,
                           FLEET_RPC_WORKERS_MAX);
    if (!*master)
        *master = getenv("PADDLE_MASTER_ENDPOINT");
    if (!*master || !(*master)[0])
        return fleet_error(err, -EINVAL, "PADDLE_MASTER_ENDPOINT: required, the address of rank 0");
    (void)snprintf(purpose, sizeof(purpose), "rpc %.280s", *master);
    world_key(purpose, env.generation, rpc_state.key);
    return 0;
}

int fleet_rpc_init(const char *name, int rank, int world, const char *master,
                   struct fleet_error *err)
{
    bool is_begun;
    int rc;

    (void)pthread_mutex_lock(&rpc_lock);
    is_begun = rpc_state.is_begun;
    rpc_state.is_begun = true;
    (void)pthread_mutex_unlock(&rpc_lock);
    if (is_begun)
        return fleet_error(err, -EALREADY, "fleet_rpc_init: this worker has joined already");
    rc = settings(name, rank, world, &master, err);
    if (rc == 0)
        rc = begin(name, master, err);
    if (rc < 0) {
        release();
        return fleet_error_wrap(err, "fleet_rpc_init");
    }
    (void)pthread_mutex_lock(&rpc_lock);
    rpc_state.is_open = true;
    (void)pthread_cond_broadcast(&rpc_has_begun);
    (void)pthread_mutex_unlock(&rpc_lock);
    return 0;
}

int fleet_rpc_shutdown(struct fleet_error *err)
{
    struct rpc_channel *channel = NULL;
    void *nothing = NULL;
    size_t bytes;
    bool is_open;
    int rc = 0;

    (void)pthread_mutex_lock(&rpc_lock);
    is_open = rpc_state.is_open;
    if (is_open)
        rpc_future_drain();
    (void)pthread_mutex_unlock(&rpc_lock);
    if (!is_open)
        return fleet_error(err, FLEET_NOT_INITIALIZED, "fleet_rpc_shutdown: call fleet_rpc_init()");
    if (rpc_state.rank != 0 && !(channel = rpc_peer_channel(&rpc_state.peers[0])))
        rc = fleet_error(err, -ECONNRESET, "the connection to rank 0 was lost");
    if (rc == 0)
        rc = call_members(channel, RPC_LEAVE, NULL, 0, 0, &nothing, &bytes, err);
    rpc_channel_free(channel);
    free(nothing);
    release();
    return rc < 0 ? fleet_error_wrap(err, "fleet_rpc_shutdown") : 0;
}

/* ---- the list of workers --------------------------------------------------------------------- */

int fleet_rpc_workers(struct fleet_rpc_worker **out, int *count, struct fleet_error *err)
{
    struct fleet_rpc_worker *list = NULL;
    int rc = 0;

    (void)pthread_mutex_lock(&rpc_lock);
    if (!rpc_state.is_open)
        rc = fleet_error(err, FLEET_NOT_INITIALIZED, "fleet_rpc_workers: call fleet_rpc_init()");
    else if (!(list = calloc((size_t)rpc_state.peer_count, sizeof(*list))))
        rc = fleet_error(err, -ENOMEM, "fleet_rpc_workers: out of memory");
    for (int i = 0; rc == 0 && i < rpc_state.peer_count; i++)
        list[i] = rpc_state.peers[i].worker;
    if (rc == 0) {
        *out = list;
        *count = rpc_state.peer_count;
    }
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}

static int copy_worker(const char *what, const struct rpc_peer *peer, const char *name,
                       struct fleet_rpc_worker *out, struct fleet_error *err)
{
    if (!rpc_state.is_open)
        return fleet_error(err, FLEET_NOT_INITIALIZED, "%s: call fleet_rpc_init() first", what);
    if (!peer)
        return fleet_error(err, -ENOENT, "%s: there is no worker \"%.40s\"", what, name);
    *out = peer->worker;
    return 0;
}

int fleet_rpc_worker(const char *name, struct fleet_rpc_worker *out, struct fleet_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&rpc_lock);
    rc = copy_worker("fleet_rpc_worker", rpc_find_worker(name), name, out, err);
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}

int fleet_rpc_self(struct fleet_rpc_worker *out, struct fleet_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&rpc_lock);
    rc = copy_worker("fleet_rpc_self", rpc_state.is_open ? &rpc_state.peers[rpc_state.rank] : NULL,
                     "", out, err);
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}
