/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_H
#define FLEET_FLEET_H

/*
 * Collective communication for trainers in C and C++: what `paddle.distributed` offers in Python.
 * docs/reference/api.md lists Paddle's names and the functions here.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence. On success *err is untouched.
 *
 * Ranks in arguments are those of the world. `group` NULL means the world. Tensors lie in the
 * host's memory, contiguous. All ranks of a group call the same operations in the same order, with
 * the same type, reduction and shape; if two ranks differ, -EPROTO names both and what each does.
 *
 * Errors of every operation:
 *   FLEET_NOT_INITIALIZED  fleet_env_init() was not called, or fleet_env_release() was
 *   FLEET_NOT_MEMBER       this rank is outside the group; nothing happens
 *   -EINVAL                an argument that this rank can judge alone
 *   -EPROTO                another rank runs another operation
 *   -ETIMEDOUT             the other ranks did not come within the group's time limit
 *   -ECONNRESET            a rank was lost; the text names it
 *   -ECONNABORTED          an earlier operation failed: the world and all groups are dead
 *   -EBUSY                 the group has a task that was not waited for
 *
 * An object or a result that is NULL is -EINVAL in all headers; functions without *err then return
 * 0, -1, NULL or false.
 *
 * Threads: one thread at a time calls these functions.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLEET_NOT_INITIALIZED (-19)  /* -ENODEV */
#define FLEET_NOT_MEMBER      (-107) /* -ENOTCONN */

#ifndef FLEET_ERROR_SIZE /* the library itself has the same structure from its own header */
#define FLEET_ERROR_SIZE 512
struct fleet_error {
    int code;                    /* the negative errno value that was returned */
    int kind;                    /* 0 */
    char text[FLEET_ERROR_SIZE]; /* one line; ends in "..." if it was cut */
};
#endif

enum fleet_type {
    FLEET_UINT8,
    FLEET_INT8,
    FLEET_INT32,
    FLEET_INT64,
    FLEET_FP16,
    FLEET_BF16,
    FLEET_FP32,
    FLEET_FP64,
    FLEET_BOOL,       /* one byte, 0 or 1; reduced by MAX (or) and MIN (and) only */
    FLEET_COMPLEX64,  /* pairs of fp32; never reduced */
    FLEET_COMPLEX128, /* pairs of fp64; never reduced */
};

/* Paddle's ReduceOp, with its numbers. Sums add in rank order; fp16 and bf16 are added in fp32. */
enum fleet_reduce_op {
    FLEET_SUM,
    FLEET_MAX,
    FLEET_MIN,
    FLEET_PROD,
    FLEET_AVG, /* not for integers */
};

#define FLEET_DIMENSIONS_MAX 8

struct fleet_tensor {
    void *data;
    enum fleet_type type;
    int dimensions; /* 0 to FLEET_DIMENSIONS_MAX; 0: one element */
    int64_t shape[FLEET_DIMENSIONS_MAX];
};

struct fleet_group;
struct fleet_task;

/* ---- environment ----------------------------------------------------------------------------- */

/* What this process is, from the variables that the agent of a FleetJob sets (own-trainer.md). */
struct fleet_env {
    int rank, world; /* PADDLE_TRAINER_ID (0), PADDLE_TRAINERS_NUM (1) */
    int generation;  /* FLEET_GENERATION (0) */
    int timeout_ms;  /* PADDLE_PG_TIMEOUT (1800000) */
};

/* Read them. -EINVAL names the variable and its value. It needs no fleet_env_init(). */
int fleet_env_read(struct fleet_env *out, struct fleet_error *err);

/*
 * Connect all ranks: Paddle's init_parallel_env(). Each rank listens on its own entry of
 * PADDLE_TRAINER_ENDPOINTS ("host:port,host:port,…", by rank) and connects to the others. A world
 * of one needs no endpoints. A second call returns 0 at once. It returns when every rank is there.
 * -EINVAL: a variable that is missing or wrong. -ETIMEDOUT names a rank that did not come.
 *
 * FLEET_WORLD_SECRET, if set, must be the same on all ranks: each connection proves it. Without it
 * the proof is made of FLEET_JOB_UID, FLEET_GENERATION and the endpoints. This keeps processes of
 * another job or an older generation away, but not an attacker who knows these values.
 *
 * FLEET_DATA_ENCRYPTION=AES-GCM encrypts what ranks on different machines send each other, with
 * keys made of FLEET_WORLD_SECRET, which it needs. It must be the same on all ranks: a rank with
 * another value cannot connect. "None", or not set: only the proof at the beginning.
 */
int fleet_env_init(struct fleet_error *err);

/* Free the world and all groups. Unfinished tasks are given up. Without a world it does nothing. */
void fleet_env_release(void);

bool fleet_is_available(void); /* true: the library always has communication */
bool fleet_is_initialized(void);

/* Rank in the group, number of its ranks; -1 where this rank is no member. For the world before
 * fleet_env_init(): what the variables say, -1 if they are wrong. */
int fleet_rank(const struct fleet_group *group);
int fleet_world_size(const struct fleet_group *group);

/* ---- groups ---------------------------------------------------------------------------------- */

/*
 * A group over ranks[0 … count), in ascending order; NULL: all ranks. Every rank of the world calls
 * it with the same list, in the same order as its other operations on the world, members or not.
 * timeout_ms: for each operation, > 0; 0: that of the world. The library owns the group.
 * -EINVAL: no ranks, an unknown or a duplicate rank.
 */
int fleet_group_new(const int *ranks, int count, int timeout_ms, struct fleet_group **out,
                    struct fleet_error *err);

/* 0 is the world, the others count up from 1. NULL: there is no such group. */
struct fleet_group *fleet_group_by_id(int id);
int fleet_group_id(const struct fleet_group *group); /* NULL: 0 */

/* End one group; NULL: everything, as fleet_env_release(). */
void fleet_group_free(struct fleet_group *group);

/* "GLOO", as Paddle calls its transport for host memory; NULL where this rank is no member. */
const char *fleet_group_backend(const struct fleet_group *group);

/* ---- collectives ----------------------------------------------------------------------------- */

/*
 * `task` NULL: the call returns when the result is there. Else the call returns at once, and *task
 * must be waited for and freed. Until then the group's next operation gives -EBUSY, and the caller
 * leaves the tensors' memory alone; the structures and lists may go.
 * Parts are in the group's order, which is that of the ranks.
 */

/* In place, on every rank. */
int fleet_all_reduce(const struct fleet_tensor *tensor, enum fleet_reduce_op op,
                     struct fleet_group *group, struct fleet_task **task, struct fleet_error *err);

/* In place on rank `dst`. The other ranks' tensors stay as they are. */
int fleet_reduce(const struct fleet_tensor *tensor, int dst, enum fleet_reduce_op op,
                 struct fleet_group *group, struct fleet_task **task, struct fleet_error *err);

/* `out` has size() × the elements of `in`, and gets every rank's `in` in the group's order. */
int fleet_all_gather(const struct fleet_tensor *out, const struct fleet_tensor *in,
                     struct fleet_group *group, struct fleet_task **task, struct fleet_error *err);

/* `in` has size() × the elements of `out`; part r is reduced into rank r's `out`. */
int fleet_reduce_scatter(const struct fleet_tensor *out, const struct fleet_tensor *in,
                         enum fleet_reduce_op op, struct fleet_group *group,
                         struct fleet_task **task, struct fleet_error *err);

/* In place: every rank gets src's. */
int fleet_broadcast(const struct fleet_tensor *tensor, int src, struct fleet_group *group,
                    struct fleet_task **task, struct fleet_error *err);

/* src's `in` has size() × the elements of `out`; part r goes to rank r. The other ranks' `in` is
 * not read. */
int fleet_scatter(const struct fleet_tensor *out, const struct fleet_tensor *in, int src,
                  struct fleet_group *group, struct fleet_task **task, struct fleet_error *err);

/* Equal parts, size() of them: part r of `in` goes to rank r, part r of `out` comes from rank r. */
int fleet_all_to_all(const struct fleet_tensor *out, const struct fleet_tensor *in,
                     struct fleet_group *group, struct fleet_task **task, struct fleet_error *err);

/*
 * The same with parts of any length: in_rows[r] rows of `in` go to rank r, out_rows[r] rows of
 * `out` come from it. Rows are along the first dimension, [size()] entries each; 0 is fine. The
 * rows must add up to the tensor. -EPROTO: rank r sends another number than expected.
 */
int fleet_all_to_all_v(const struct fleet_tensor *out, const int64_t *out_rows,
                       const struct fleet_tensor *in, const int64_t *in_rows,
                       struct fleet_group *group, struct fleet_task **task,
                       struct fleet_error *err);

/* Returns when every member has called it. */
int fleet_barrier(struct fleet_group *group, struct fleet_error *err);

/* To and from one rank. The messages of a pair match in their order. A rank never sends to itself
 * (-EINVAL). */
int fleet_send(const struct fleet_tensor *tensor, int dst, struct fleet_group *group,
               struct fleet_task **task, struct fleet_error *err);
int fleet_recv(const struct fleet_tensor *tensor, int src, struct fleet_group *group,
               struct fleet_task **task, struct fleet_error *err);

/* Several messages at once, so no order of them blocks: Paddle's batch_isend_irecv(). */
struct fleet_p2p {
    bool is_receive;
    int peer;
    struct fleet_tensor tensor;
};
int fleet_batch_p2p(const struct fleet_p2p *list, int count, struct fleet_group *group,
                    struct fleet_task **task, struct fleet_error *err);

/* ---- bytes: Paddle's object collectives ------------------------------------------------------ */

/* Every rank's bytes; sizes may differ. sizes[size()] is the caller's, *out is packed in the
 * group's order and freed with free(). */
int fleet_all_gather_bytes(const void *mine, size_t bytes, size_t *sizes, void **out,
                           struct fleet_group *group, struct fleet_error *err);

/* *data and *bytes are read on src. On the other ranks they are set; free(*data). */
int fleet_broadcast_bytes(void **data, size_t *bytes, int src, struct fleet_group *group,
                          struct fleet_error *err);

/* parts[r], sizes[r] bytes of src, goes to the group's rank r; on other ranks both may be NULL.
 * free(*out). */
int fleet_scatter_bytes(void **out, size_t *bytes, const void *const *parts, const size_t *sizes,
                        int src, struct fleet_group *group, struct fleet_error *err);

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Wait for the end, in the group's time limit. A second call has the same result. */
int fleet_task_wait(struct fleet_task *task, struct fleet_error *err);

/* 1: done, 0: not yet, or its error. */
int fleet_task_done(struct fleet_task *task, struct fleet_error *err);

/* Waits for it if the caller has not. NULL is fine. */
void fleet_task_free(struct fleet_task *task);

#ifdef __cplusplus
}
#endif

#endif
