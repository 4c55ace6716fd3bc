/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Calls between workers. A worker listens; each pair has a connection in the direction of its
 * calls, made at the first one. Connections are carried by one thread (loop.h), functions run in
 * others (pool.h), answers end a future (future.h). Rank 0 also keeps the list of workers
 * (members.h): its own join and leave are calls without a connection.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/rpc/connect.h"
#include "distributed/rpc/functions.h"
#include "distributed/rpc/future.h"
#include "distributed/rpc/loop.h"
#include "distributed/rpc/members.h"
#include "distributed/rpc/pool.h"
#include "distributed/rpc/secure.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/variable.h"

#define FLUSH_MS   10000
#define CONNECT_MS 10000 /* of a call without a limit */

struct peer {
    struct fleet_rpc_worker worker;
    struct rpc_channel *channel; /* for our calls; NULL: not connected. A reference */
    struct fleet_error lost;     /* why the last channel ended */
    pthread_mutex_t connecting;
};

/* Under rpc_lock, but for what is set before others know of it. */
static struct {
    bool is_begun, is_open; /* fleet_rpc_init() was called; has succeeded */
    bool is_failed;         /* it has not, and all is released */
    int rank, world, timeout_ms;
    uint8_t key[RPC_KEY_SIZE];
    SSL_CTX *context;
    struct rpc_loop *loop;
    struct rpc_pool *pool;
    struct rpc_members *members; /* of rank 0 */
    struct peer *peers;          /* by rank */
    int peer_count;              /* 1 (rank 0) while joining, then the world */
} rpc;

static pthread_cond_t has_begun = PTHREAD_COND_INITIALIZER; /* is_open or is_failed was set */

/* ---- answering ------------------------------------------------------------------------------- */

/* Answer call `id` of `channel`, NULL: of our own. Under rpc_lock. */
static void answer(void *owner, void *channel, uint64_t id, int code, const void *data,
                   size_t bytes)
{
    struct rpc_header header = {
        .kind = code < 0 ? RPC_ERROR : RPC_RESULT, .id = id, .code = code, .bytes = bytes};
    void *copy;

    (void)owner;
    if (channel) {
        (void)rpc_channel_send(channel, &header, NULL, data, NULL);
        return;
    }
    copy = malloc(bytes + 1);
    if (copy && bytes > 0)
        memcpy(copy, data, bytes);
    rpc_future_answer(id, NULL, copy ? code : -ENOMEM, &copy, bytes);
    free(copy);
}

struct call_job {
    struct rpc_job base;
    struct rpc_channel *channel; /* a reference, or NULL */
    struct rpc_frame frame;
};

/* Another worker may call before our fleet_rpc_init() has returned. The function may make calls
 * itself, so it begins after that. */
static void wait_begun(void)
{
    (void)pthread_mutex_lock(&rpc_lock);
    while (!rpc.is_open && !rpc.is_failed)
        (void)pthread_cond_wait(&has_begun, &rpc_lock);
    (void)pthread_mutex_unlock(&rpc_lock);
}

/* Run the function of a call, and answer. */
static void run_call(struct rpc_job *base)
{
    struct call_job *job = (struct call_job *)(void *)base;
    struct rpc_frame *frame = &job->frame;
    struct fleet_error err;
    void *out = NULL;
    size_t bytes = 0;
    int rc;

    wait_begun();
    rc = rpc_function_run(frame->name, frame->data, frame->header.bytes, &out, &bytes, &err);

    (void)pthread_mutex_lock(&rpc_lock);
    if (!job->channel && rc == 0)
        rpc_future_answer(frame->header.id, NULL, 0, &out, bytes);
    else if (rc == 0)
        answer(NULL, job->channel, frame->header.id, 0, out, bytes);
    else
        answer(NULL, job->channel, frame->header.id, rc, err.text, strlen(err.text));
    (void)pthread_mutex_unlock(&rpc_lock);
    free(out);
    rpc_frame_release(frame);
    rpc_channel_free(job->channel);
    free(job);
}

/* Takes the frame. `channel` NULL: the call is our own. */
static int start_job(struct rpc_channel *channel, struct rpc_frame *frame, struct fleet_error *err)
{
    struct call_job *job = calloc(1, sizeof(*job));

    if (!job) {
        rpc_frame_release(frame);
        return fleet_error(err, -ENOMEM, "out of memory");
    }
    job->base.run = run_call;
    job->frame = *frame;
    job->channel = channel;
    if (channel)
        rpc_channel_keep(channel);
    rpc_pool_add(rpc.pool, &job->base);
    return 0;
}

/* ---- events of the loop ---------------------------------------------------------------------- */

static void on_member(struct rpc_channel *channel, const struct rpc_frame *frame)
{
    static const char text[] = "this worker is not rank 0";

    (void)pthread_mutex_lock(&rpc_lock);
    if (!rpc.members)
        answer(NULL, channel, frame->header.id, -EPROTO, text, sizeof(text) - 1);
    else if (frame->header.kind == RPC_JOIN)
        rpc_members_join(rpc.members, channel, frame->header.id, frame->data, frame->header.bytes);
    else
        rpc_members_leave(rpc.members, channel, frame->header.id);
    (void)pthread_mutex_unlock(&rpc_lock);
}

static void on_frame(void *owner, struct rpc_channel *channel, struct rpc_frame *frame)
{
    int code = frame->header.code;

    (void)owner;
    switch (frame->header.kind) {
    case RPC_CALL:
        (void)start_job(channel, frame, NULL);
        return;
    case RPC_RESULT:
    case RPC_ERROR:
        if (frame->header.kind == RPC_RESULT)
            code = 0;
        else if (code >= 0)
            code = -EPROTO;
        (void)pthread_mutex_lock(&rpc_lock);
        rpc_future_answer(frame->header.id, channel, code, &frame->data, frame->header.bytes);
        (void)pthread_mutex_unlock(&rpc_lock);
        break;
    case RPC_JOIN:
    case RPC_LEAVE:
        on_member(channel, frame);
        break;
    case RPC_KINDS:
        break;
    }
    rpc_frame_release(frame);
}

static void on_closed(void *owner, struct rpc_channel *channel, const struct fleet_error *why)
{
    struct rpc_channel *dropped = NULL;

    (void)owner;
    (void)pthread_mutex_lock(&rpc_lock);
    for (int i = 0; i < rpc.peer_count; i++)
        if (rpc.peers[i].channel == channel) {
            dropped = channel;
            rpc.peers[i].channel = NULL;
            rpc.peers[i].lost = *why;
        }
    rpc_future_fail(channel, why);
    if (rpc.members)
        rpc_members_lost(rpc.members, channel);
    (void)pthread_mutex_unlock(&rpc_lock);
    rpc_channel_free(dropped);
}

static const struct rpc_events events = {on_frame, on_closed};

/* ---- calling --------------------------------------------------------------------------------- */

/* The channel to a peer, with a reference for the caller; NULL: not connected. */
static struct rpc_channel *peer_channel(struct peer *peer)
{
    struct rpc_channel *channel;

    (void)pthread_mutex_lock(&rpc_lock);
    channel = peer->channel;
    if (channel)
        rpc_channel_keep(channel);
    (void)pthread_mutex_unlock(&rpc_lock);
    return channel;
}

/* The loop gets the socket, the peer and the caller a reference each. */
static int add_channel(struct peer *peer, int fd, struct rpc_channel **out, struct fleet_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&rpc_lock); /* it may be closed at once: then on_closed() waits here */
    rc = rpc_loop_connect(rpc.loop, fd, out, err);
    if (rc == 0) {
        peer->channel = *out;
        rpc_channel_keep(*out);
    }
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}

static int connect_peer(struct peer *peer, double deadline_ms, struct rpc_channel **out,
                        struct fleet_error *err)
{
    char endpoint[80];
    int rc = 0;

    (void)pthread_mutex_lock(&peer->connecting);
    *out = peer_channel(peer);
    if (!*out) {
        rpc_endpoint(peer->worker.ip, peer->worker.port, endpoint, sizeof(endpoint));
        rc = rpc_connect(endpoint, peer->worker.rank, deadline_ms, err);
        if (rc >= 0)
            rc = add_channel(peer, rc, out, err);
    }
    (void)pthread_mutex_unlock(&peer->connecting);
    return rc;
}

/* Send a call by the peer's `channel`. If that ends later, on_closed() fails the call. */
static int send_call(struct fleet_rpc_future *future, struct peer *peer,
                     struct rpc_channel *channel, enum rpc_kind kind, const char *function,
                     const void *in, size_t bytes, struct fleet_error *err)
{
    struct rpc_header header = {.kind = kind, .name_bytes = strlen(function), .bytes = bytes};
    int rc = 0;

    (void)pthread_mutex_lock(&rpc_lock);
    header.id = rpc_future_id(future);
    if (peer->channel == channel)
        rpc_future_sent(future, channel);
    else
        rc = fleet_error(err, peer->lost.code, "rank %d: %s", peer->worker.rank, peer->lost.text);
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc < 0 ? rc : rpc_channel_send(channel, &header, function, in, err);
}

/* Our own function, with a copy of the argument. */
static int call_self(struct fleet_rpc_future *future, const char *function, const void *in,
                     size_t bytes, struct fleet_error *err)
{
    struct rpc_frame frame = {.name = strdup(function), .data = malloc(bytes + 1)};

    if (!frame.name || !frame.data) {
        rpc_frame_release(&frame);
        return fleet_error(err, -ENOMEM, "out of memory");
    }
    if (bytes > 0)
        memcpy(frame.data, in, bytes);
    frame.header.bytes = bytes;
    (void)pthread_mutex_lock(&rpc_lock);
    frame.header.id = rpc_future_id(future);
    rpc_future_sent(future, NULL);
    (void)pthread_mutex_unlock(&rpc_lock);
    return start_job(NULL, &frame, err);
}

/* Under rpc_lock. */
static struct peer *find_worker(const char *name)
{
    for (int i = 0; i < rpc.peer_count; i++)
        if (strcmp(rpc.peers[i].worker.name, name) == 0)
            return &rpc.peers[i];
    return NULL;
}

/* Check the arguments of a call; a future for it in *out. */
static int begin_call(const char *to, const char *function, const void *in, size_t bytes,
                      int timeout_ms, struct peer **peer, struct fleet_rpc_future **out,
                      struct fleet_error *err)
{
    int rc = rpc_name_check("the worker's name", to, err);

    if (rc == 0)
        rc = rpc_name_check("the function's name", function, err);
    if (rc < 0)
        return rc;
    if (!in && bytes > 0)
        return fleet_error(err, -EINVAL, "the argument is NULL, with %zu bytes", bytes);
    if (bytes > FLEET_RPC_BYTES_MAX)
        return fleet_error(err, -EMSGSIZE, "the argument has %zu bytes, allowed: %d", bytes,
                           FLEET_RPC_BYTES_MAX);
    (void)pthread_mutex_lock(&rpc_lock);
    *peer = rpc.is_open ? find_worker(to) : NULL;
    if (!rpc.is_open)
        rc = fleet_error(err, FLEET_NOT_INITIALIZED, "call fleet_rpc_init() first");
    else if (!*peer)
        rc = fleet_error(err, -ENOENT, "there is no worker \"%s\"", to);
    else if (!(*out = rpc_future_new(to, function, timeout_ms, err)))
        rc = -ENOMEM;
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}

int fleet_rpc_start(const char *to, const char *function, const void *in, size_t in_bytes,
                    int timeout_ms, struct fleet_rpc_future **future, struct fleet_error *err)
{
    double by = fleet_monotonic_ms() + (timeout_ms > 0 ? timeout_ms : CONNECT_MS);
    struct fleet_rpc_future *made = NULL;
    struct rpc_channel *channel = NULL;
    struct peer *peer = NULL;
    int rc = begin_call(to, function, in, in_bytes, timeout_ms, &peer, &made, err);

    if (rc == 0 && peer->worker.rank == rpc.rank) {
        rc = call_self(made, function, in, in_bytes, err);
    } else if (rc == 0) {
        rc = connect_peer(peer, by, &channel, err);
        if (rc == 0)
            rc = send_call(made, peer, channel, RPC_CALL, function, in, in_bytes, err);
        rpc_channel_free(channel);
    }
    if (rc < 0) {
        fleet_rpc_future_free(made);
        return fleet_error_wrap(err, "fleet_rpc_start");
    }
    *future = made;
    return 0;
}

int fleet_rpc_call(const char *to, const char *function, const void *in, size_t in_bytes,
                   int timeout_ms, void **out, size_t *out_bytes, struct fleet_error *err)
{
    struct fleet_rpc_future *future;
    int rc = fleet_rpc_start(to, function, in, in_bytes, timeout_ms, &future, err);

    if (rc < 0)
        return rc;
    rc = fleet_rpc_wait(future, out, out_bytes, err);
    fleet_rpc_future_free(future);
    return rc;
}

/* ---- joining --------------------------------------------------------------------------------- */

static void release(void)
{
    struct peer *peers = rpc.peers;
    int count = rpc.peer_count;

    (void)pthread_mutex_lock(&rpc_lock);
    rpc.is_failed = !rpc.is_open;
    (void)pthread_cond_broadcast(&has_begun);
    (void)pthread_mutex_unlock(&rpc_lock);
    rpc_loop_stop(rpc.loop, FLUSH_MS); /* no event comes after it */
    rpc_pool_free(rpc.pool);
    (void)pthread_mutex_lock(&rpc_lock);
    rpc.peers = NULL;
    rpc.peer_count = 0;
    rpc_members_free(rpc.members);
    rpc.members = NULL;
    (void)pthread_mutex_unlock(&rpc_lock);
    for (int i = 0; i < count; i++) {
        rpc_channel_free(peers[i].channel);
        (void)pthread_mutex_destroy(&peers[i].connecting);
    }
    free(peers);
    rpc_loop_free(rpc.loop);
    SSL_CTX_free(rpc.context);
    OPENSSL_cleanse(rpc.key, sizeof(rpc.key));
    rpc.loop = NULL;
    rpc.pool = NULL;
    rpc.context = NULL;
    (void)pthread_mutex_lock(&rpc_lock);
    rpc.is_begun = rpc.is_open = rpc.is_failed = false;
    (void)pthread_mutex_unlock(&rpc_lock);
}

static int set_peers(const struct fleet_rpc_worker *workers, int count, struct fleet_error *err)
{
    struct peer *peers = calloc((size_t)count, sizeof(*peers)), *old;

    if (!peers)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < count; i++) {
        peers[i].worker = workers[i];
        (void)pthread_mutex_init(&peers[i].connecting, NULL);
    }
    (void)pthread_mutex_lock(&rpc_lock);
    old = rpc.peers;
    if (old) {
        peers[0].channel = old[0].channel; /* the connection to rank 0 */
        (void)pthread_mutex_destroy(&old[0].connecting);
    }
    rpc.peers = peers;
    rpc.peer_count = count;
    (void)pthread_mutex_unlock(&rpc_lock);
    free(old);
    return 0;
}

/* Listen, and know our own address. `fd` is a connection to rank 0, or -1 on rank 0. */
static int listen_here(const char *master, int fd, struct fleet_rpc_worker *self,
                       struct fleet_error *err)
{
    const char *own = rpc.rank == 0 ? master : getenv("PADDLE_WORKER_ENDPOINT");
    int listener, rc;

    if (own && own[0]) {
        rc = rpc_endpoint_split(own, self->ip, sizeof(self->ip), &self->port, err);
        if (rc == 0)
            rc = listener = endpoint_listen(own, rpc.rank, err);
    } else {
        rc = rpc_own_ip(fd, self->ip, sizeof(self->ip), err);
        if (rc == 0)
            rc = comm_tcp_listen(self->ip, &listener, &self->port, err);
    }
    if (rc < 0)
        return rc;
    rpc_loop_listen(rpc.loop, listener);
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
    if (future && rpc.members) {
        id = rpc_future_id(future);
        rpc_future_sent(future, NULL);
        if (kind == RPC_JOIN)
            rpc_members_join(rpc.members, NULL, id, data, bytes);
        else
            rpc_members_leave(rpc.members, NULL, id);
    }
    (void)pthread_mutex_unlock(&rpc_lock);
    if (!future)
        return -ENOMEM;
    if (!rpc.members)
        rc = send_call(future, &rpc.peers[0], channel, kind, "", data, bytes, err);
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
    int timeout_ms = rpc.rank == 0 || rpc.timeout_ms > INT_MAX - FLUSH_MS
                         ? rpc.timeout_ms
                         : rpc.timeout_ms + FLUSH_MS;
    size_t bytes;

    rc = rpc_workers_encode(self, 1, rpc.world, &data, &bytes, err);
    if (rc == 0)
        rc = call_members(channel, RPC_JOIN, data, bytes, timeout_ms, &list, &bytes, err);
    if (rc == -ETIMEDOUT && rpc.members) {
        (void)pthread_mutex_lock(&rpc_lock);
        rc = rpc_members_give_up(rpc.members, err);
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
    fd = rpc_connect_retry(master, 0, fleet_monotonic_ms() + rpc.timeout_ms, err);
    if (fd < 0)
        return fd;
    rc = listen_here(master, fd, self, err);
    if (rc == 0)
        rc = set_peers(&first, 1, err);
    if (rc < 0) {
        (void)close(fd);
        return rc;
    }
    return add_channel(&rpc.peers[0], fd, out, err);
}

/* Everything of fleet_rpc_init() behind its arguments. */
static int begin(const char *name, const char *master, struct fleet_error *err)
{
    struct fleet_rpc_worker self = {.rank = rpc.rank};
    struct rpc_channel *channel = NULL;
    int rc = rpc_secure_new(rpc.key, &rpc.context, err);

    memcpy(self.name, name, strlen(name));
    if (rc == 0)
        rc = rpc_pool_new(&rpc.pool, err);
    if (rc == 0 && rpc.rank == 0)
        rc = rpc_members_new(rpc.world, answer, NULL, &rpc.members, err);
    if (rc == 0)
        rc = rpc_loop_new(&events, NULL, rpc.context, &rpc.loop, err);
    if (rc == 0)
        rc = rpc.rank == 0 ? listen_here(master, -1, &self, err)
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
    rpc.world = world < 1 ? env.world : world;
    rpc.rank = rank < 0 ? env.rank : rank;
    rpc.timeout_ms = env.timeout_ms;
    if (rpc.world > FLEET_RPC_WORKERS_MAX || rpc.rank >= rpc.world)
        return fleet_error(err, -EINVAL, "rank %d of %d workers, allowed: 0 to %d of at most %d",
                           rpc.rank, rpc.world, rpc.world - 1, FLEET_RPC_WORKERS_MAX);
    if (!*master)
        *master = getenv("PADDLE_MASTER_ENDPOINT");
    if (!*master || !(*master)[0])
        return fleet_error(err, -EINVAL, "PADDLE_MASTER_ENDPOINT: required, the address of rank 0");
    (void)snprintf(purpose, sizeof(purpose), "rpc %.280s", *master);
    world_key(purpose, env.generation, rpc.key);
    return 0;
}

int fleet_rpc_init(const char *name, int rank, int world, const char *master,
                   struct fleet_error *err)
{
    bool is_begun;
    int rc;

    (void)pthread_mutex_lock(&rpc_lock);
    is_begun = rpc.is_begun;
    rpc.is_begun = true;
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
    rpc.is_open = true;
    (void)pthread_cond_broadcast(&has_begun);
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
    is_open = rpc.is_open;
    if (is_open)
        rpc_future_drain();
    (void)pthread_mutex_unlock(&rpc_lock);
    if (!is_open)
        return fleet_error(err, FLEET_NOT_INITIALIZED, "fleet_rpc_shutdown: call fleet_rpc_init()");
    if (rpc.rank != 0 && !(channel = peer_channel(&rpc.peers[0])))
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
    if (!rpc.is_open)
        rc = fleet_error(err, FLEET_NOT_INITIALIZED, "fleet_rpc_workers: call fleet_rpc_init()");
    else if (!(list = calloc((size_t)rpc.peer_count, sizeof(*list))))
        rc = fleet_error(err, -ENOMEM, "fleet_rpc_workers: out of memory");
    for (int i = 0; rc == 0 && i < rpc.peer_count; i++)
        list[i] = rpc.peers[i].worker;
    if (rc == 0) {
        *out = list;
        *count = rpc.peer_count;
    }
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}

static int copy_worker(const char *what, const struct peer *peer, const char *name,
                       struct fleet_rpc_worker *out, struct fleet_error *err)
{
    if (!rpc.is_open)
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
    rc = copy_worker("fleet_rpc_worker", find_worker(name), name, out, err);
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}

int fleet_rpc_self(struct fleet_rpc_worker *out, struct fleet_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&rpc_lock);
    rc = copy_worker("fleet_rpc_self", rpc.is_open ? &rpc.peers[rpc.rank] : NULL, "", out, err);
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}
