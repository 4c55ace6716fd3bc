/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_POOL_H
#define DISTRIBUTED_RPC_POOL_H

/*
 * Threads that carry out jobs, in the order of their coming. A thread is made when a job comes and
 * none is idle, up to FLEET_RPC_THREADS_MAX. Any thread.
 */

#include "distributed/distributed.h"

struct rpc_pool;

struct rpc_job {
    struct rpc_job *next;
    void (*run)(struct rpc_job *job); /* takes the job */
};

int rpc_pool_new(struct rpc_pool **out, struct fleet_error *err);

/* Takes the job. If no thread can be made at all, it runs here and now. */
void rpc_pool_add(struct rpc_pool *pool, struct rpc_job *job);

/* Carry out what has been added, then end the threads. NULL is fine. */
void rpc_pool_free(struct rpc_pool *pool);

#endif
