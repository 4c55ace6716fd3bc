/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_LOOP_H
#define DISTRIBUTED_RPC_LOOP_H

/*
 * One thread that owns all connections of a worker: it accepts them, does TLS, reads whole frames
 * and writes queued ones. A channel is one connection. It lives until the loop has closed it and
 * every reference is gone.
 *
 * Threads: rpc_channel_send(), rpc_loop_connect(), references: any thread. The events are called in
 * the loop's thread; they must not wait.
 */

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>

#include "distributed/rpc/frame.h"

struct rpc_loop;
struct rpc_channel;

struct rpc_events {
    /* A frame arrived. The callee takes it. */
    void (*frame)(void *owner, struct rpc_channel *channel, struct rpc_frame *frame);
    /* The connection ended, by the other side or by an error. Called once for each channel. */
    void (*closed)(void *owner, struct rpc_channel *channel, const struct fleet_error *why);
};

/* `context` and `owner` are borrowed for the loop's life. */
int rpc_loop_new(const struct rpc_events *events, void *owner, SSL_CTX *context,
                 struct rpc_loop **out, struct fleet_error *err);

/* Accept connections of `fd`, which the loop takes. Once, before others know the address. */
void rpc_loop_listen(struct rpc_loop *loop, int fd);

/* A channel over a connected socket, which the loop takes. The caller gets one reference. */
int rpc_loop_connect(struct rpc_loop *loop, int fd, struct rpc_channel **out,
                     struct fleet_error *err);

/*
 * Queue a frame. name and data are copied. On a closed channel nothing happens: `closed` was or
 * will be called. -ENOMEM.
 */
int rpc_channel_send(struct rpc_channel *channel, const struct rpc_header *header, const char *name,
                     const void *data, struct fleet_error *err);

void rpc_channel_keep(struct rpc_channel *channel);
void rpc_channel_free(struct rpc_channel *channel); /* gives one reference back; NULL is fine */

/* Write what is queued, for at most `flush_ms`; then close all channels and end the thread. From
 * then on rpc_channel_send() does nothing. NULL is fine. */
void rpc_loop_stop(struct rpc_loop *loop, int flush_ms);

/* After rpc_loop_stop(), when no channel is used any more. NULL is fine. */
void rpc_loop_free(struct rpc_loop *loop);

#endif
