/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_POOL_H
#define DISTRIBUTED_RPC_POOL_H

/*
 * Threads that run jobs, in the order in which the jobs were added. If a job is added and no thread
 * is idle, a thread is made, up to FLEET_RPC_THREADS_MAX. Any thread may call these functions.
 */

#include "distributed/distributed.h"

struct rpc_pool;

struct rpc_job {
    struct rpc_job *next;
    void (*run)(struct rpc_job *job); /* takes the job */
};

int rpc_pool_new(struct rpc_pool **out, struct fleet_error *err);

/* Add a job, which the pool takes. If the pool has no thread and cannot make one, the caller's
 * thread runs the job at once. */
void rpc_pool_add(struct rpc_pool *pool, struct rpc_job *job);

/* Run the jobs that were added, then end the threads. NULL is fine. */
void rpc_pool_free(struct rpc_pool *pool);

#endif
