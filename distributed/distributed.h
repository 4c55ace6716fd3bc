/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_DISTRIBUTED_H
#define DISTRIBUTED_DISTRIBUTED_H

/* What the sources of libfleet.so share. Its users see include/fleet/fleet.h only. */

/* error.h comes first: fleet.h defines the same structure where error.h is absent. */
/* clang-format off */
#include <errno.h>

#include "libfleet/base/error.h"
#include "include/fleet/fleet.h"
/* clang-format on */

struct comm;
struct comm_call;

struct fleet_group {
    int id;
    struct comm *comm; /* NULL: this rank is no member */
    int *ranks;        /* [count] of the world */
    int count;
    int timeout_ms;
    struct fleet_task *task; /* in flight, or NULL */
    struct fleet_group *next;
};

/* -EINVAL if the argument `name` of the function `what` is NULL. */
static inline int argument_check(const void *argument, const char *what, const char *name,
                                 struct fleet_error *err)
{
    return argument ? 0 : fleet_error(err, -EINVAL, "%s: %s is NULL", what, name);
}

/* Find the group that `group` means (NULL: the world). This rank must be a member, without a task.
 * Errors: FLEET_NOT_INITIALIZED, FLEET_NOT_MEMBER, -EBUSY. `what` names the caller. */
int group_ready(const char *what, struct fleet_group *group, struct fleet_group **out,
                struct fleet_error *err);

/* The place of a rank of the world in the group. -EINVAL: it is no rank, or not in the group. */
int group_place(const char *what, const struct fleet_group *group, int rank, int *out,
                struct fleet_error *err);

/* The time at which a task that begins now times out, in monotonic ms. */
double group_deadline(const struct fleet_group *group);

/* The key that the processes of one job and generation share. It is made of FLEET_WORLD_SECRET or
 * FLEET_JOB_UID, the generation, and `text`, which tells one use from another. */
void world_key(const char *text, int generation, uint8_t out[32]);

/* *out: whether connections between machines are encrypted. FLEET_DATA_ENCRYPTION is AES-GCM, None
 * or not set. -EINVAL: it has another value, or it is AES-GCM without FLEET_WORLD_SECRET. Then
 * every process could make the keys. */
int world_encryption(bool *out, struct fleet_error *err);

/* Listen on host:port of `rank`. Returns the socket, which does not block. Errors of
 * tcp_address_parse(); -errno. */
int endpoint_listen(const char *endpoint, int rank, struct fleet_error *err);

/* fleet_env_init() that fails with -ECANCELED when the descriptor `stop` is readable; -1: none. */
int world_connect(int stop, struct fleet_error *err);

/* Any thread: abort the operations of the world and its groups, if there is a world. */
void world_abort(void);

/* The agent has ended the generation of a process that stays (fleet_job.h): -ECANCELED. */
int generation_check(const char *what, struct fleet_error *err);

/* Give up the group's task; its owner still frees it. */
void task_give_up(struct fleet_task *task);

#endif
