/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_MEMBERS_H
#define DISTRIBUTED_RPC_MEMBERS_H

/*
 * The list of workers, which rank 0 keeps: which workers have joined, want to leave, or were lost.
 * When all workers have joined, rank 0 answers all joins. When each worker wants to leave or is
 * lost, rank 0 answers all leaves. Pure: an answer is a call of a function, and a caller is an
 * opaque pointer (NULL: rank 0 itself).
 */

#include "distributed/rpc/frame.h"

struct rpc_members;

/* code 0: `data` is the result. code < 0: `data` is the text of the error. */
typedef void (*rpc_answer)(void *owner, void *caller, uint64_t id, int code, const void *data,
                           size_t bytes);

int rpc_members_new(int world, rpc_answer answer, void *owner, struct rpc_members **out,
                    struct fleet_error *err);
void rpc_members_free(struct rpc_members *members); /* NULL is fine */

/* A worker joins. `data` is rpc_workers_encode() of this worker. Wrong data and a second join are
 * answered with an error at once. */
void rpc_members_join(struct rpc_members *members, void *caller, uint64_t id, const void *data,
                      size_t bytes);

/* A worker wants to leave. */
void rpc_members_leave(struct rpc_members *members, void *caller, uint64_t id);

/* The caller's connection ended. */
void rpc_members_lost(struct rpc_members *members, const void *caller);

/* Answer all joins with -ETIMEDOUT and a text that names the missing ranks. Returns the same
 * error. */
int rpc_members_give_up(struct rpc_members *members, struct fleet_error *err);

#endif
