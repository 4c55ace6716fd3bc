/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_FUTURE_H
#define DISTRIBUTED_RPC_FUTURE_H

/*
 * Calls that this worker has made and that are not answered yet. A future belongs to its maker; the
 * table only finds it by its id. The public functions on futures are in fleet_rpc.h.
 *
 * Every function is called under rpc_lock.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "distributed/rpc/frame.h"

struct rpc_channel;

extern pthread_mutex_t rpc_lock; /* of all that rpc.c, future.c know */

/* Add a future to the table, with an id that was never used. Its errors name `to` and
 * `function`. */
struct fleet_rpc_future *rpc_future_new(const char *to, const char *function, int timeout_ms,
                                        struct fleet_error *err);
uint64_t rpc_future_id(const struct fleet_rpc_future *future);

/* Note over which connection the answer will come; NULL: this worker runs the function itself. */
void rpc_future_sent(struct fleet_rpc_future *future, const struct rpc_channel *channel);

/* Answer call `id` if it was sent over `channel`. Then *data is taken and set to NULL. */
void rpc_future_answer(uint64_t id, const struct rpc_channel *channel, int code, void **data,
                       size_t bytes);

/* Fail all calls that were sent over `channel`. */
void rpc_future_fail(const struct rpc_channel *channel, const struct fleet_error *why);

/* Wait until the table is empty: each call is answered, has timed out, or was given up. */
void rpc_future_drain(void);

#endif
