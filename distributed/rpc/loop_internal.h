/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_LOOP_INTERNAL_H
#define DISTRIBUTED_RPC_LOOP_INTERNAL_H

/* The structures that loop.c (the loop) and channel.c (one connection) share, for them alone. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "distributed/rpc/loop.h"

struct output {
    struct output *next;
    size_t size, sent;
    uint8_t bytes[];
};

struct rpc_channel {
    struct rpc_loop *loop;
    struct rpc_channel *next; /* of the loop's list */
    atomic_int references;

    /* Written by the loop's thread alone, under the lock below: it protects the connection, which
     * a thread that sends may use, too. */
    pthread_mutex_t io;
    int fd;
    SSL *ssl;
    bool is_open /* the handshake is done */, wants_write;

    /* of the loop's thread */
    bool is_server;
    uint32_t polled; /* the events that the poll reports */
    uint8_t head[RPC_HEADER_SIZE];
    size_t head_filled;
    struct rpc_header header;
    struct rpc_frame frame; /* being read */
    size_t body_filled, body_room;

    /* under the loop's lock */
    bool is_closed, is_queued;
    struct output *first, **last;
};

struct rpc_loop {
    const struct rpc_events *events;
    void *owner;
    SSL_CTX *context;
    pthread_t thread;
    int poll, wake;
    int listener; /* -1: none */

    pthread_mutex_t lock; /* protects the members below and the queues of channels */
    struct rpc_channel *channels;
    int channel_count;
    bool must_stop;
    double stop_by_ms;
    bool is_awake; /* the thread will look at the queues before it sleeps */
};

/* A channel over socket `fd`, which it takes, with one reference for the loop's list; NULL if there
 * is no memory. Then `fd` is closed. */
struct rpc_channel *rpc_channel_new(struct rpc_loop *loop, int fd, bool is_server);

/* In the loop's thread: do what the socket allows; an error closes the channel. */
void rpc_channel_turn(struct rpc_channel *channel);

/* In the loop's thread: take the channel from the list, report its end, give the list's reference
 * back. Nothing happens if it is closed. */
void rpc_channel_close(struct rpc_channel *channel, const struct fleet_error *why);

/* Any thread: let the loop look at the queues. */
void rpc_loop_wake(struct rpc_loop *loop);

#endif
