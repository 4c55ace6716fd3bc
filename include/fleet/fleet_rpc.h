/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_RPC_H
#define FLEET_FLEET_RPC_H

/*
 * Calls between the workers of a job: what `paddle.distributed.rpc` offers in Python. A worker has
 * a name and registers functions. Any worker calls a function of any other by the two names, and
 * gets its bytes back. Only bytes travel, never code. fleet_rpc_pack() makes bytes of tensors.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence.
 *
 * Connections are encrypted and authenticated by TLS 1.3 with a key that both sides derive from
 * FLEET_WORLD_SECRET (or else from FLEET_JOB_UID, as fleet_env_init() does), the generation and
 * the address of rank 0.
 *
 * Threads: any thread may call these functions, except that fleet_rpc_init() and
 * fleet_rpc_shutdown() are called by one thread. Functions of a worker run in threads of the
 * library, several at once.
 */

#include <stddef.h>
#include <stdint.h>

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLEET_RPC_NAME_MAX    128         /* bytes of a name, without the final NUL */
#define FLEET_RPC_BYTES_MAX   (256 << 20) /* bytes of an argument or a result */
#define FLEET_RPC_WORKERS_MAX 4096
#define FLEET_RPC_THREADS_MAX 64 /* calls that one worker carries out at once; others wait */

/*
 * A function that others may call. `in` is the caller's argument and belongs to the library. The
 * function sets *out to memory from malloc() that the library frees, or leaves it NULL for an empty
 * result. If it returns a negative value, the caller's call fails with this value and the text of
 * *err.
 */
typedef int (*fleet_rpc_function)(const void *in, size_t in_bytes, void **out, size_t *out_bytes,
                                  void *argument, struct fleet_error *err);

/* Before or after fleet_rpc_init(). A second call with one name replaces the function. Names are
 * letters, digits and "._-". -EINVAL: the name. */
int fleet_rpc_register(const char *name, fleet_rpc_function function, void *argument,
                       struct fleet_error *err);

/*
 * Join the workers. `name` is unique among them. rank < 0: PADDLE_TRAINER_ID. world < 1:
 * PADDLE_TRAINERS_NUM. master NULL: PADDLE_MASTER_ENDPOINT, "host:port". Rank 0 listens there. The
 * others listen at PADDLE_WORKER_ENDPOINT, or at a free port of the address from which they reach
 * rank 0. Returns when all workers are there.
 *
 * Errors: -EINVAL a name, rank, size or endpoint that is wrong; -EEXIST another worker has the name
 * or the rank; -ETIMEDOUT PADDLE_PG_TIMEOUT is over (the text lists the ranks that did not come);
 * -EALREADY it was called before; -EACCES the other side has another secret.
 */
int fleet_rpc_init(const char *name, int rank, int world, const char *master,
                   struct fleet_error *err);

/*
 * Call function `function` of worker `to` (it may be this one) and wait. timeout_ms < 1: no limit.
 * *out is the result, free() it; it is NULL if the result is empty.
 *
 * Errors: FLEET_NOT_INITIALIZED; -ENOENT no worker or no function of that name; -EMSGSIZE more than
 * FLEET_RPC_BYTES_MAX; -ETIMEDOUT; -ECONNRESET the worker was lost; -ECONNREFUSED it cannot be
 * reached; else what the function returned, with its text behind the names.
 */
int fleet_rpc_call(const char *to, const char *function, const void *in, size_t in_bytes,
                   int timeout_ms, void **out, size_t *out_bytes, struct fleet_error *err);

/* The same without waiting. `in` may be freed at once. The caller frees *future. */
struct fleet_rpc_future;
int fleet_rpc_start(const char *to, const char *function, const void *in, size_t in_bytes,
                    int timeout_ms, struct fleet_rpc_future **future, struct fleet_error *err);

/* Wait for the result, at most until the call's time limit. The first successful wait takes the
 * result; later ones get NULL. Errors: those of fleet_rpc_call(). */
int fleet_rpc_wait(struct fleet_rpc_future *future, void **out, size_t *out_bytes,
                   struct fleet_error *err);

/* 1: the result or the error is there, 0: not yet. */
int fleet_rpc_done(const struct fleet_rpc_future *future);

/* Does not wait: the result of an unfinished call is dropped. NULL is fine. */
void fleet_rpc_future_free(struct fleet_rpc_future *future);

struct fleet_rpc_worker {
    char name[FLEET_RPC_NAME_MAX + 1];
    int rank;
    char ip[64];
    int port;
};

/* -ENOENT: no worker has that name. */
int fleet_rpc_worker(const char *name, struct fleet_rpc_worker *out, struct fleet_error *err);
int fleet_rpc_self(struct fleet_rpc_worker *out, struct fleet_error *err);

/* By rank. *out has *count workers, free() it. */
int fleet_rpc_workers(struct fleet_rpc_worker **out, int *count, struct fleet_error *err);

/*
 * Wait for this worker's calls, then until every worker is here, without a time limit; then end all
 * connections. Calls that others still make to this worker are carried out meanwhile. A later
 * fleet_rpc_init() starts again. -ECONNRESET: a worker was lost and will not come; all is ended
 * nevertheless.
 */
int fleet_rpc_shutdown(struct fleet_error *err);

/* ---- tensors as bytes ------------------------------------------------------------------------ */

#define FLEET_RPC_TENSORS_MAX 1024

/* *out has *bytes, free() it. -EINVAL: a tensor that no collective would take. */
int fleet_rpc_pack(const struct fleet_tensor *tensors, int count, void **out, size_t *bytes,
                   struct fleet_error *err);

/* Fill tensors[0 … *count) of `room`. Their data lies in `data`, which must be aligned as malloc()
 * does. -EBADMSG: the bytes are not what fleet_rpc_pack() makes. -ENOSPC: more than `room`. */
int fleet_rpc_unpack(void *data, size_t bytes, struct fleet_tensor *tensors, int room, int *count,
                     struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
