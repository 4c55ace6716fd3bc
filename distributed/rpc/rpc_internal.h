/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_RPC_INTERNAL_H
#define DISTRIBUTED_RPC_RPC_INTERNAL_H

/*
 * The state of this worker and its peers, for two files alone: rpc.c starts and ends, call.c sends
 * and answers calls.
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

/* rpc_lock protects all members. Only fleet_rpc_init() sets some without it, before other threads
 * exist. */
struct rpc_state {
    bool is_begun;  /* fleet_rpc_init() was called … */
    bool is_open;   /* … and has succeeded */
    bool is_failed; /* … or has failed, and everything is released */
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

/* The loop calls these functions when a frame has arrived or a channel has ended. */
extern const struct rpc_events rpc_events;

/* Answer call `id` of `channel`; channel NULL: a call of this worker to itself, and the caller
 * holds rpc_lock. */
void rpc_answer_call(void *owner, void *channel, uint64_t id, int code, const void *data,
                     size_t bytes);

/* The worker with this name, NULL if there is none. The caller holds rpc_lock. */
struct rpc_peer *rpc_find_worker(const char *name);

/* The channel to a peer, with a reference for the caller; NULL: not connected. */
struct rpc_channel *rpc_peer_channel(struct rpc_peer *peer);

/* Give the loop a connected socket to `peer`. The peer and the caller get a reference each. Errors
 * of rpc_loop_connect(). */
int rpc_add_channel(struct rpc_peer *peer, int fd, struct rpc_channel **out,
                    struct fleet_error *err);

/* Send a call over the peer's `channel`. If the channel ends later, the call fails with the reason.
 * Errors: that reason, if the channel has ended already; errors of rpc_channel_send(). */
int rpc_send_call(struct fleet_rpc_future *future, struct rpc_peer *peer,
                  struct rpc_channel *channel, enum rpc_kind kind, const char *function,
                  const void *in, size_t bytes, struct fleet_error *err);

#endif
