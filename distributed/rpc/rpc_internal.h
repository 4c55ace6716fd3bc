/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_RPC_INTERNAL_H
#define DISTRIBUTED_RPC_RPC_INTERNAL_H

/*
 * What starting and calling share: this worker's state, its peers, and how a call is sent and
 * answered. rpc.c starts and ends, call.c calls and answers.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/rpc/future.h"
#include "distributed/rpc/loop.h"
#include "distributed/rpc/members.h"
#include "distributed/rpc/pool.h"
#include "distributed/rpc/secure.h"

struct rpc_peer {
    struct fleet_rpc_worker worker;
    struct rpc_channel *channel; /* for our calls; NULL: not connected. A reference */
    struct fleet_error lost;     /* why the last channel ended */
    pthread_mutex_t connecting;  /* one connection at a time */
};

/* Under rpc_lock, except for what is set before other threads know of it. */
struct rpc_state {
    bool is_begun, is_open; /* fleet_rpc_init() was called; has succeeded */
    bool is_failed;         /* it has not, and all is released */
    int rank, world, timeout_ms;
    uint8_t key[RPC_KEY_SIZE];
    SSL_CTX *context;
    struct rpc_loop *loop;
    struct rpc_pool *pool;
    struct rpc_members *members; /* of rank 0 */
    struct rpc_peer *peers;      /* by rank */
    int peer_count;              /* 1 (rank 0) while joining, then the world */
};
extern struct rpc_state rpc_state;
extern pthread_cond_t rpc_has_begun; /* is_open or is_failed was set */

/* What the loop calls when a frame has come or a channel has ended. */
extern const struct rpc_events rpc_events;

/* Answer call `id` of `channel`; NULL: a call of our own. Under rpc_lock. */
void rpc_answer_call(void *owner, void *channel, uint64_t id, int code, const void *data,
                     size_t bytes);

/* The worker of this name, NULL if there is none. Under rpc_lock. */
struct rpc_peer *rpc_find_worker(const char *name);

/* The channel to a peer, with a reference for the caller; NULL: not connected. */
struct rpc_channel *rpc_peer_channel(struct rpc_peer *peer);

/* Give the loop a connected socket to `peer`. The peer and the caller get a reference each. Errors
 * of rpc_loop_connect(). */
int rpc_add_channel(struct rpc_peer *peer, int fd, struct rpc_channel **out,
                    struct fleet_error *err);

/* Send a call over the peer's `channel`. If the channel ends later, its end fails the call. The
 * error of the channel's end, if it is not the peer's any more; errors of rpc_channel_send(). */
int rpc_send_call(struct fleet_rpc_future *future, struct rpc_peer *peer,
                  struct rpc_channel *channel, enum rpc_kind kind, const char *function,
                  const void *in, size_t bytes, struct fleet_error *err);

#endif
