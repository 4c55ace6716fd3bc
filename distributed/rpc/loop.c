/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/rpc/loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/rpc/loop_internal.h"
#include "libfleet/base/clock.h"

#define EVENTS_MAX   64
#define CHANNELS_MAX (4 * FLEET_RPC_WORKERS_MAX)

void rpc_loop_wake(struct rpc_loop *loop)
{
    uint64_t one = 1;
    (void)!write(loop->wake, &one, sizeof(one));
}

/* Put a channel on the list and into the poll. */
static void channel_add(struct rpc_loop *loop, struct rpc_channel *channel)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = channel};

    (void)pthread_mutex_lock(&loop->lock);
    channel->next = loop->channels;
    loop->channels = channel;
    loop->channel_count++;
    (void)pthread_mutex_unlock(&loop->lock);
    (void)epoll_ctl(loop->poll, EPOLL_CTL_ADD, channel->fd, &event);
}

static bool is_full(struct rpc_loop *loop)
{
    bool full;

    (void)pthread_mutex_lock(&loop->lock);
    full = loop->channel_count >= CHANNELS_MAX;
    (void)pthread_mutex_unlock(&loop->lock);
    return full;
}

static void accept_all(struct rpc_loop *loop)
{
    int fd;

    while ((fd = accept4(loop->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct rpc_channel *channel = NULL;
        if (is_full(loop))
            (void)close(fd);
        else
            channel = rpc_channel_new(loop, fd, true);
        if (channel)
            channel_add(loop, channel);
    }
}

/* A channel with queued frames, which the caller gets a reference of; NULL: none. */
static struct rpc_channel *take_queued(struct rpc_loop *loop)
{
    struct rpc_channel *channel;

    (void)pthread_mutex_lock(&loop->lock);
    for (channel = loop->channels; channel; channel = channel->next)
        if (channel->is_queued && !channel->wants_write && channel->is_open) {
            rpc_channel_keep(channel);
            break;
        }
    if (!channel)
        loop->is_awake = false;
    (void)pthread_mutex_unlock(&loop->lock);
    return channel;
}

static void write_queued(struct rpc_loop *loop)
{
    struct rpc_channel *channel;

    while ((channel = take_queued(loop)) != NULL) {
        rpc_channel_turn(channel);
        rpc_channel_free(channel);
    }
}

/* Is the loop to end now? When it stops, it still writes what is queued, until its time is over. */
static bool is_over(struct rpc_loop *loop, int *timeout_ms)
{
    bool over;

    (void)pthread_mutex_lock(&loop->lock);
    over = loop->must_stop;
    for (struct rpc_channel *c = loop->channels; c && over; c = c->next)
        if (c->first && fleet_monotonic_ms() < loop->stop_by_ms)
            over = false;
    *timeout_ms = loop->must_stop ? 10 : -1;
    (void)pthread_mutex_unlock(&loop->lock);
    return over;
}

static void *loop_run(void *data)
{
    struct rpc_loop *loop = data;
    struct fleet_error why;
    sigset_t all;
    int timeout_ms;

    (void)sigfillset(&all); /* signals are the program's, and SIGPIPE must not end it */
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!is_over(loop, &timeout_ms)) {
        struct epoll_event events[EVENTS_MAX];
        int count = epoll_wait(loop->poll, events, EVENTS_MAX, timeout_ms);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr && events[i].data.ptr != loop)
                rpc_channel_keep(
                    events[i].data.ptr); /* one event may close the channel of another */
        for (int i = 0; i < count; i++) {
            uint64_t drained;
            if (!events[i].data.ptr) {
                (void)!read(loop->wake, &drained, sizeof(drained));
            } else if (events[i].data.ptr == loop) {
                accept_all(loop);
            } else {
                rpc_channel_turn(events[i].data.ptr);
                rpc_channel_free(events[i].data.ptr);
            }
        }
        write_queued(loop);
    }
    (void)fleet_error(&why, -ECONNRESET, "this worker has shut down");
    while (loop->channels)
        rpc_channel_close(loop->channels, &why);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

int rpc_loop_new(const struct rpc_events *events, void *owner, SSL_CTX *context,
                 struct rpc_loop **out, struct fleet_error *err)
{
    struct rpc_loop *loop = calloc(1, sizeof(*loop));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};

    if (!loop)
        return fleet_error(err, -ENOMEM, "out of memory");
    *loop = (struct rpc_loop){
        .events = events, .owner = owner, .context = context, .listener = -1, .poll = -1};
    loop->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    loop->poll = epoll_create1(EPOLL_CLOEXEC);
    (void)pthread_mutex_init(&loop->lock, NULL);
    if (loop->wake >= 0 && loop->poll >= 0 &&
        epoll_ctl(loop->poll, EPOLL_CTL_ADD, loop->wake, &event) == 0 &&
        pthread_create(&loop->thread, NULL, loop_run, loop) == 0) {
        *out = loop;
        return 0;
    }
    if (loop->wake >= 0)
        (void)close(loop->wake);
    if (loop->poll >= 0)
        (void)close(loop->poll);
    (void)pthread_mutex_destroy(&loop->lock);
    free(loop);
    return fleet_error(err, -EMFILE, "cannot start a thread with its descriptors: %s",
                       strerror(errno));
}

void rpc_loop_listen(struct rpc_loop *loop, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = loop};

    loop->listener = fd;
    (void)epoll_ctl(loop->poll, EPOLL_CTL_ADD, fd, &event);
}

int rpc_loop_connect(struct rpc_loop *loop, int fd, struct rpc_channel **out,
                     struct fleet_error *err)
{
    struct rpc_channel *channel = rpc_channel_new(loop, fd, false);

    if (!channel)
        return fleet_error(err, -ENOMEM, "out of memory");
    rpc_channel_keep(channel);
    channel_add(loop, channel);
    *out = channel;
    return 0;
}

void rpc_loop_stop(struct rpc_loop *loop, int flush_ms)
{
    if (!loop)
        return;
    (void)pthread_mutex_lock(&loop->lock);
    loop->must_stop = true;
    loop->stop_by_ms = fleet_monotonic_ms() + flush_ms;
    (void)pthread_mutex_unlock(&loop->lock);
    rpc_loop_wake(loop);
    (void)pthread_join(loop->thread, NULL);
}

void rpc_loop_free(struct rpc_loop *loop)
{
    if (!loop)
        return;
    if (loop->listener >= 0)
        (void)close(loop->listener);
    (void)close(loop->wake);
    (void)close(loop->poll);
    (void)pthread_mutex_destroy(&loop->lock);
    free(loop);
}
