/* SPDX-License-Identifier: Apache-2.0 */

/* Bytes over the TCP connections of a pair; and the world that such connections make. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/runtime/comm/engine.h"
#include "agent/runtime/comm/seal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"

static ssize_t move_bytes(int fd, const struct iovec *parts, int count, bool sends)
{
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    ssize_t moved;

    do
        moved = sends ? sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                      : recvmsg(fd, &message, MSG_DONTWAIT);
    while (moved < 0 && errno == EINTR);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (moved < 0)
        return -errno;
    return moved == 0 && !sends ? -EPIPE : moved;
}

static ssize_t tcp_send(struct comm_pair *pair, int lane, const struct iovec *parts, int count)
{
    const struct comm_lane *l = &pair->lanes[lane];

    return l->seal ? seal_send(l->seal, l->fd, parts, count)
                   : move_bytes(l->fd, parts, count, true);
}

static ssize_t tcp_receive(struct comm_pair *pair, int lane, const struct iovec *parts, int count)
{
    const struct comm_lane *l = &pair->lanes[lane];

    return l->seal ? seal_receive(l->seal, l->fd, parts, count)
                   : move_bytes(l->fd, parts, count, false);
}

static short tcp_sleep(struct comm_pair *pair, int lane)
{
    bool sends = frame_waits_for(pair, lane, true), receives = frame_waits_for(pair, lane, false);

    if (receives && pair->lanes[lane].seal && seal_has_text(pair->lanes[lane].seal))
        return SLEEP_NOT;
    return (short)((sends ? POLLOUT : 0) | (receives ? POLLIN : 0));
}

static void tcp_wake(struct comm_pair *pair, short events)
{
    (void)pair, (void)events; /* the next send or receive sees it */
}

const struct comm_transport comm_transport_tcp = {
    .name = "tcp",
    .send = tcp_send,
    .receive = tcp_receive,
    .sleep = tcp_sleep,
    .wake = tcp_wake,
};

void tcp_close_lane(struct comm_lane *lane)
{
    if (lane->fd >= 0)
        (void)close(lane->fd);
    seal_free(lane->seal);
    *lane = (struct comm_lane){.fd = -1};
}

/* ---- making a world -------------------------------------------------------------------------- */

int tcp_channels(const struct comm_tcp_options *options)
{
    fleet_assert(options->channels >= 0 && options->channels <= COMM_CHANNELS_MAX);
    return options->channels > 0 ? options->channels : 1;
}

int tcp_connect_comm(struct comm *comm, const struct comm_tcp_options *options, double deadline_ms,
                     struct fleet_error *err)
{
    size_t world = (size_t)comm->world, channels = (size_t)tcp_channels(options);
    FLEET_AUTO_FREE struct comm_lane *lanes = calloc(world * channels, sizeof(*lanes));
    int rc;

    fleet_assert(lanes != NULL);
    rc = tcp_connect_all(options, deadline_ms, lanes, err);
    if (rc < 0)
        return rc;
    (void)pthread_mutex_lock(&comm->net->lock);
    for (size_t r = 0; r < world; r++) {
        memcpy(comm->pairs[r].lanes, lanes + r * channels, channels * sizeof(*lanes));
        comm->pairs[r].lane_count = (int)r == comm->rank ? 0 : (int)channels;
    }
    (void)pthread_mutex_unlock(&comm->net->lock);
    rc = shm_negotiate(comm, options->neighbours, deadline_ms, err);
    comm->bytes_sent = comm->bytes_received = 0;
    if (rc < 0 && options->failed_rank)
        *options->failed_rank = comm->net->world->failed_rank;
    return rc;
}

/* What groups will be connected with. */
static void remember(struct comm_net *net, const struct comm_tcp_options *options)
{
    net->listener = options->listener;
    net->neighbours = options->neighbours;
    net->channels = tcp_channels(options);
    net->encrypts = options->encrypts;
    net->addresses = calloc((size_t)options->world, sizeof(*net->addresses));
    fleet_assert(net->addresses != NULL);
    for (int r = 0; r < options->world; r++) {
        net->addresses[r] = strdup(options->addresses[r] ? options->addresses[r] : "");
        fleet_assert(net->addresses[r] != NULL);
    }
}

int comm_tcp_new(const struct comm_tcp_options *options, double deadline_ms, struct comm **out,
                 struct fleet_error *err)
{
    struct comm *comm = comm_new(NULL, NULL, options->rank, options->world, err);
    struct fleet_error own;
    int rc;

    if (!comm)
        return err ? err->code : -EMFILE;
    remember(comm->net, options);
    memcpy(comm->key, options->key, sizeof(comm->key));
    rc = tcp_connect_comm(comm, options, deadline_ms, &own);
    if (rc < 0) {
        comm_free(comm);
        if (err)
            *err = own;
        return rc;
    }
    *out = comm;
    return 0;
}
