/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Calls and their answers. Connections are carried by one thread (loop.h), functions run in others
 * (pool.h), answers end a future (future.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/rpc/connect.h"
#include "distributed/rpc/functions.h"
#include "distributed/rpc/rpc_internal.h"
#include "libfleet/base/clock.h"

#define CONNECT_MS 10000 /* of a call without a limit */

/* ---- answering ------------------------------------------------------------------------------- */

void rpc_answer_call(void *owner, void *channel, uint64_t id, int code, const void *data,
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
    while (!rpc_state.is_open && !rpc_state.is_failed)
        (void)pthread_cond_wait(&rpc_has_begun, &rpc_lock);
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

    if (!job->channel)
        (void)pthread_mutex_lock(&rpc_lock);
    if (!job->channel && rc == 0)
        rpc_future_answer(frame->header.id, NULL, 0, &out, bytes);
    else if (rc == 0)
        rpc_answer_call(NULL, job->channel, frame->header.id, 0, out, bytes);
    else
        rpc_answer_call(NULL, job->channel, frame->header.id, rc, err.text, strlen(err.text));
    if (!job->channel)
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
    rpc_pool_add(rpc_state.pool, &job->base);
    return 0;
}

/* ---- events of the loop ---------------------------------------------------------------------- */

static void on_member(struct rpc_channel *channel, const struct rpc_frame *frame)
{
    static const char text[] = "this worker is not rank 0";

    (void)pthread_mutex_lock(&rpc_lock);
    if (!rpc_state.members)
        rpc_answer_call(NULL, channel, frame->header.id, -EPROTO, text, sizeof(text) - 1);
    else if (frame->header.kind == RPC_JOIN)
        rpc_members_join(rpc_state.members, channel, frame->header.id, frame->data,
                         frame->header.bytes);
    else
        rpc_members_leave(rpc_state.members, channel, frame->header.id);
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
    for (int i = 0; i < rpc_state.peer_count; i++)
        if (rpc_state.peers[i].channel == channel) {
            dropped = channel;
            rpc_state.peers[i].channel = NULL;
            rpc_state.peers[i].lost = *why;
        }
    rpc_future_fail(channel, why);
    if (rpc_state.members)
        rpc_members_lost(rpc_state.members, channel);
    (void)pthread_mutex_unlock(&rpc_lock);
    rpc_channel_free(dropped);
}

const struct rpc_events rpc_events = {on_frame, on_closed};

/* ---- calling --------------------------------------------------------------------------------- */

struct rpc_channel *rpc_peer_channel(struct rpc_peer *peer)
{
    struct rpc_channel *channel;

    (void)pthread_mutex_lock(&rpc_lock);
    channel = peer->channel;
    if (channel)
        rpc_channel_keep(channel);
    (void)pthread_mutex_unlock(&rpc_lock);
    return channel;
}

int rpc_add_channel(struct rpc_peer *peer, int fd, struct rpc_channel **out,
                    struct fleet_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&rpc_lock); /* it may be closed at once: then on_closed() waits here */
    rc = rpc_loop_connect(rpc_state.loop, fd, out, err);
    if (rc == 0) {
        peer->channel = *out;
        rpc_channel_keep(*out);
    }
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}

static int connect_peer(struct rpc_peer *peer, double deadline_ms, struct rpc_channel **out,
                        struct fleet_error *err)
{
    char endpoint[80];
    int rc = 0;

    (void)pthread_mutex_lock(&peer->connecting);
    *out = rpc_peer_channel(peer);
    if (!*out) {
        rpc_endpoint(peer->worker.ip, peer->worker.port, endpoint, sizeof(endpoint));
        rc = rpc_connect(endpoint, peer->worker.rank, deadline_ms, err);
        if (rc >= 0)
            rc = rpc_add_channel(peer, rc, out, err);
    }
    (void)pthread_mutex_unlock(&peer->connecting);
    return rc;
}

int rpc_send_call(struct fleet_rpc_future *future, struct rpc_peer *peer,
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

struct rpc_peer *rpc_find_worker(const char *name)
{
    for (int i = 0; i < rpc_state.peer_count; i++)
        if (strcmp(rpc_state.peers[i].worker.name, name) == 0)
            return &rpc_state.peers[i];
    return NULL;
}

/* Check the arguments of a call; a future for it in *out. */
static int begin_call(const char *to, const char *function, const void *in, size_t bytes,
                      int timeout_ms, struct rpc_peer **peer, struct fleet_rpc_future **out,
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
    *peer = rpc_state.is_open ? rpc_find_worker(to) : NULL;
    if (!rpc_state.is_open)
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
    struct rpc_peer *peer = NULL;
    int rc = begin_call(to, function, in, in_bytes, timeout_ms, &peer, &made, err);

    if (rc == 0 && peer->worker.rank == rpc_state.rank) {
        rc = call_self(made, function, in, in_bytes, err);
    } else if (rc == 0) {
        rc = connect_peer(peer, by, &channel, err);
        if (rc == 0)
            rc = rpc_send_call(made, peer, channel, RPC_CALL, function, in, in_bytes, err);
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
