/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One connection: its queue of frames, which any thread fills, and what the loop's thread does with
 * it: the handshake, reading whole frames, writing queued ones, closing.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "distributed/rpc/loop_internal.h"

#define FIRST_READ 4096 /* a frame's memory grows as its bytes come, from here */

/* ---- channels -------------------------------------------------------------------------------- */

void rpc_channel_keep(struct rpc_channel *channel)
{
    atomic_fetch_add(&channel->references, 1);
}

void rpc_channel_free(struct rpc_channel *channel)
{
    if (!channel || atomic_fetch_sub(&channel->references, 1) != 1)
        return;
    for (struct output *one = channel->first, *next; one; one = next) {
        next = one->next;
        free(one);
    }
    rpc_frame_release(&channel->frame);
    SSL_free(channel->ssl);
    (void)pthread_mutex_destroy(&channel->io);
    free(channel);
}

struct rpc_channel *rpc_channel_new(struct rpc_loop *loop, int fd, bool is_server)
{
    struct rpc_channel *channel = calloc(1, sizeof(*channel));
    SSL *ssl = SSL_new(loop->context);
    int one = 1;

    if (!channel || !ssl || SSL_set_fd(ssl, fd) != 1) {
        SSL_free(ssl);
        free(channel);
        (void)close(fd);
        return NULL;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    channel->loop = loop;
    channel->fd = fd;
    channel->ssl = ssl;
    channel->is_server = is_server;
    channel->last = &channel->first;
    channel->polled = EPOLLIN | EPOLLOUT;
    (void)pthread_mutex_init(&channel->io, NULL);
    SSL_set_read_ahead(ssl, 1); /* one call of the system for a frame, not one for each part */
    atomic_init(&channel->references, 1);
    if (is_server)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    return channel;
}

/* Why an operation of TLS failed; -ECONNRESET or -EACCES. */
static int tls_error(const struct rpc_channel *channel, int result, struct fleet_error *err)
{
    int kind = SSL_get_error(channel->ssl, result), saved = errno;
    bool is_end = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;

    ERR_clear_error();
    if (!channel->is_open && kind == SSL_ERROR_SSL && !is_end)
        return fleet_error(err, -EACCES, "the two workers do not have the same secret");
    if (kind == SSL_ERROR_SYSCALL && saved != 0)
        return fleet_error(err, -ECONNRESET, "%s", strerror(saved));
    return fleet_error(err, -ECONNRESET, "the other side closed the connection");
}

static bool must_wait(const struct rpc_channel *channel, int result)
{
    int kind = SSL_get_error(channel->ssl, result);
    return kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE;
}

/* ---- writing --------------------------------------------------------------------------------- */

static struct output *next_output(struct rpc_channel *channel)
{
    struct output *one;

    (void)pthread_mutex_lock(&channel->loop->lock);
    one = channel->first;
    if (!one)
        channel->is_queued = false;
    (void)pthread_mutex_unlock(&channel->loop->lock);
    return one;
}

static void drop_output(struct rpc_channel *channel)
{
    struct output *one;

    (void)pthread_mutex_lock(&channel->loop->lock);
    one = channel->first;
    channel->first = one->next;
    if (!channel->first)
        channel->last = &channel->first;
    (void)pthread_mutex_unlock(&channel->loop->lock);
    free(one);
}

/* Under the lock `io`: write what is queued; 1: the socket is full. */
static int write_queue(struct rpc_channel *channel, struct fleet_error *err)
{
    struct output *one;

    while ((one = next_output(channel)) != NULL) {
        size_t left = one->size - one->sent;
        int rc;
        errno = 0;
        rc = SSL_write(channel->ssl, one->bytes + one->sent, left > 1 << 20 ? 1 << 20 : (int)left);
        if (rc <= 0)
            return must_wait(channel, rc) ? 1 : tls_error(channel, rc, err);
        one->sent += (size_t)rc;
        if (one->sent == one->size)
            drop_output(channel);
    }
    return 0;
}

/* In the loop's thread: write what is queued; 0, also when the socket is full. */
static int write_all(struct rpc_channel *channel, struct fleet_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&channel->io);
    rc = write_queue(channel, err);
    channel->wants_write = rc == 1;
    (void)pthread_mutex_unlock(&channel->io);
    return rc < 0 ? rc : 0;
}

/* In a thread that sends: the same, which saves two switches between threads. False: the loop must
 * do it, since it uses the connection, the socket is full, or the connection is broken. */
static bool write_now(struct rpc_channel *channel)
{
    sigset_t broken, before;
    bool written = false;

    if (pthread_mutex_trylock(&channel->io) != 0)
        return false;
    (void)sigemptyset(&broken);
    (void)sigaddset(&broken, SIGPIPE); /* OpenSSL's write() raises it */
    (void)pthread_sigmask(SIG_BLOCK, &broken, &before);
    if (channel->fd >= 0 && channel->is_open && !channel->wants_write) {
        int rc = write_queue(channel, NULL);
        written = rc == 0;
        if (rc < 0 && sigismember(&before, SIGPIPE) == 0)
            (void)sigtimedwait(&broken, NULL, &(struct timespec){0});
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_mutex_unlock(&channel->io);
    return written;
}

/* ---- sending --------------------------------------------------------------------------------- */

int rpc_channel_send(struct rpc_channel *channel, const struct rpc_header *header, const char *name,
                     const void *data, struct fleet_error *err)
{
    struct rpc_loop *loop = channel->loop;
    size_t size = RPC_HEADER_SIZE + header->name_bytes + header->bytes;
    struct output *one = malloc(sizeof(*one) + size);
    bool is_closed, must_wake;

    if (!one)
        return fleet_error(err, -ENOMEM, "out of memory");
    one->next = NULL;
    one->size = size;
    one->sent = 0;
    rpc_header_encode(header, one->bytes);
    if (header->name_bytes > 0)
        memcpy(one->bytes + RPC_HEADER_SIZE, name, header->name_bytes);
    if (header->bytes > 0)
        memcpy(one->bytes + RPC_HEADER_SIZE + header->name_bytes, data, header->bytes);
    (void)pthread_mutex_lock(&loop->lock);
    is_closed = channel->is_closed;
    if (!is_closed) {
        *channel->last = one;
        channel->last = &one->next;
        channel->is_queued = true;
    }
    (void)pthread_mutex_unlock(&loop->lock);
    if (is_closed)
        free(one);
    if (is_closed || write_now(channel))
        return 0;
    (void)pthread_mutex_lock(&loop->lock);
    must_wake = !loop->is_awake;
    loop->is_awake = true;
    (void)pthread_mutex_unlock(&loop->lock);
    if (must_wake)
        rpc_loop_wake(loop);
    return 0;
}

/* ---- the loop's thread: closing -------------------------------------------------------------- */

void rpc_channel_close(struct rpc_channel *channel, const struct fleet_error *why)
{
    struct rpc_loop *loop = channel->loop;
    struct rpc_channel **at = &loop->channels;

    if (channel->fd < 0)
        return;
    (void)epoll_ctl(loop->poll, EPOLL_CTL_DEL, channel->fd, NULL);
    (void)pthread_mutex_lock(&channel->io); /* no thread writes to a descriptor of another file */
    (void)close(channel->fd);
    channel->fd = -1;
    (void)pthread_mutex_unlock(&channel->io);
    (void)pthread_mutex_lock(&loop->lock);
    channel->is_closed = true;
    while (*at != channel)
        at = &(*at)->next;
    *at = channel->next;
    loop->channel_count--;
    (void)pthread_mutex_unlock(&loop->lock);
    loop->events->closed(loop->owner, channel, why);
    rpc_channel_free(channel);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Read up to `size` bytes: their number, 0 if there are none now, or < 0. */
static int tls_read(struct rpc_channel *channel, void *out, size_t size, struct fleet_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&channel->io);
    errno = 0;
    rc = SSL_read(channel->ssl, out, size > 1 << 20 ? 1 << 20 : (int)size);
    if (rc <= 0)
        rc = must_wait(channel, rc) ? 0 : tls_error(channel, rc, err);
    (void)pthread_mutex_unlock(&channel->io);
    return rc;
}

/* Memory for the next bytes of the body. It grows with what has come, so a header alone costs
 * nothing. */
static int body_grow(struct rpc_channel *channel, struct fleet_error *err)
{
    size_t room = channel->body_room ? 2 * channel->body_room : FIRST_READ;
    void *data;

    if (channel->body_filled < channel->body_room)
        return 0;
    if (room > channel->header.bytes)
        room = channel->header.bytes;
    data = realloc(channel->frame.data, room);
    if (!data)
        return fleet_error(err, -ENOMEM, "out of memory");
    channel->frame.data = data;
    channel->body_room = room;
    return 0;
}

static int begin_frame(struct rpc_channel *channel, struct fleet_error *err)
{
    int rc = rpc_header_decode(channel->head, &channel->header, err);

    if (rc < 0)
        return rc;
    channel->frame.header = channel->header;
    channel->frame.name = calloc(1, channel->header.name_bytes + 1);
    channel->body_filled = channel->body_room = 0;
    return channel->frame.name ? 0 : fleet_error(err, -ENOMEM, "out of memory");
}

static void end_frame(struct rpc_channel *channel)
{
    struct rpc_frame frame = channel->frame;

    channel->frame = (struct rpc_frame){0};
    channel->head_filled = 0;
    channel->loop->events->frame(channel->loop->owner, channel, &frame);
}

/* Read one part of a frame: 1 if bytes came, 0 if there are none, < 0. head_filled counts the
 * header and the name. */
static int read_part(struct rpc_channel *channel, struct fleet_error *err)
{
    size_t named = RPC_HEADER_SIZE + channel->header.name_bytes;
    int rc;

    if (channel->head_filled < RPC_HEADER_SIZE) {
        rc = tls_read(channel, channel->head + channel->head_filled,
                      RPC_HEADER_SIZE - channel->head_filled, err);
        if (rc <= 0)
            return rc;
        channel->head_filled += (size_t)rc;
        if (channel->head_filled < RPC_HEADER_SIZE)
            return 1;
        rc = begin_frame(channel, err);
        if (rc < 0)
            return rc;
        named = RPC_HEADER_SIZE + channel->header.name_bytes;
    } else if (channel->head_filled < named) {
        rc = tls_read(channel, channel->frame.name + channel->head_filled - RPC_HEADER_SIZE,
                      named - channel->head_filled, err);
        if (rc <= 0)
            return rc;
        channel->head_filled += (size_t)rc;
    } else {
        rc = body_grow(channel, err);
        if (rc == 0)
            rc = tls_read(channel, (uint8_t *)channel->frame.data + channel->body_filled,
                          channel->body_room - channel->body_filled, err);
        if (rc <= 0)
            return rc;
        channel->body_filled += (size_t)rc;
    }
    if (channel->head_filled == named && channel->body_filled == channel->header.bytes)
        end_frame(channel);
    return 1;
}

/* ---- one turn -------------------------------------------------------------------------------- */

static int handshake(struct rpc_channel *channel, struct fleet_error *err)
{
    int rc;

    (void)pthread_mutex_lock(&channel->io);
    errno = 0;
    rc = SSL_do_handshake(channel->ssl);
    channel->is_open = rc == 1;
    channel->wants_write = rc != 1 && SSL_get_error(channel->ssl, rc) == SSL_ERROR_WANT_WRITE;
    rc = rc == 1 || must_wait(channel, rc) ? 0 : tls_error(channel, rc, err);
    (void)pthread_mutex_unlock(&channel->io);
    return rc;
}

static int channel_work(struct rpc_channel *channel, struct fleet_error *err)
{
    int rc = 0, parts = 0;

    if (!channel->is_open)
        rc = handshake(channel, err);
    if (rc == 0 && channel->is_open) {
        rc = write_all(channel, err);
        while (rc == 0 && (parts = read_part(channel, err)) > 0)
            continue;
        rc = parts < 0 ? parts : rc;
        if (rc == 0) /* answers that the events have queued */
            rc = write_all(channel, err);
    }
    return rc;
}

void rpc_channel_turn(struct rpc_channel *channel)
{
    struct epoll_event event = {.data.ptr = channel};
    struct fleet_error why = {0};

    if (channel->fd < 0)
        return;
    if (channel_work(channel, &why) < 0) {
        rpc_channel_close(channel, &why);
        return;
    }
    event.events = EPOLLIN | (channel->wants_write ? EPOLLOUT : 0U);
    if (event.events != channel->polled)
        (void)epoll_ctl(channel->loop->poll, EPOLL_CTL_MOD, channel->fd, &event);
    channel->polled = event.events;
}
