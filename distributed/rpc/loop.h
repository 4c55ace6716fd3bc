/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_LOOP_H
#define DISTRIBUTED_RPC_LOOP_H

/*
 * The loop is one thread that owns all connections of a worker. It accepts connections, does TLS,
 * reads whole frames and writes those that the sender could not write. A channel is one connection.
 * It lives until the loop has closed it and every reference was given back.
 *
 * Threads: any thread may call rpc_channel_send() and rpc_loop_connect(), and take or give back
 * references. The loop calls the events in its own thread, so they must not wait.
 */

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>

#include "distributed/rpc/frame.h"

struct rpc_loop;
struct rpc_channel;

struct rpc_events {
    /* A frame arrived. The function takes it. */
    void (*frame)(void *owner, struct rpc_channel *channel, struct rpc_frame *frame);
    /* The connection ended, by the other side or by an error. Called once for each channel. */
    void (*closed)(void *owner, struct rpc_channel *channel, const struct fleet_error *why);
};

/* Start the loop. It borrows `context` and `owner` for its life; `owner` is the first argument of
 * the events. -ENOMEM, -errno. */
int rpc_loop_new(const struct rpc_events *events, void *owner, SSL_CTX *context,
                 struct rpc_loop **out, struct fleet_error *err);

/* Accept the connections of the listening socket `fd`, which the loop takes. Call it once, before
 * others know the address. */
void rpc_loop_listen(struct rpc_loop *loop, int fd);

/* Make a channel over a connected socket, which the loop takes. The caller gets one reference. */
int rpc_loop_connect(struct rpc_loop *loop, int fd, struct rpc_channel **out,
                     struct fleet_error *err);

/*
 * Queue a frame; name and data are copied. If the connection is free, the frame is written at once;
 * what the socket does not take is left to the loop. If the channel is closed, nothing is sent and
 * the result is 0: the event `closed` was called or will be. -ENOMEM.
 */
int rpc_channel_send(struct rpc_channel *channel, const struct rpc_header *header, const char *name,
                     const void *data, struct fleet_error *err);

void rpc_channel_keep(struct rpc_channel *channel); /* take one more reference */
void rpc_channel_free(struct rpc_channel *channel); /* give one reference back; NULL is fine */

/* Write the queued frames, for at most `flush_ms`. Then close all channels and end the thread. From
 * then on rpc_channel_send() does nothing. NULL is fine. */
void rpc_loop_stop(struct rpc_loop *loop, int flush_ms);

/* Call it after rpc_loop_stop(), when all references were given back. NULL is fine. */
void rpc_loop_free(struct rpc_loop *loop);

#endif
