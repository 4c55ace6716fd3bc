/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_ROLE_H
#define FLEET_FLEET_ROLE_H

/*
 * What a process is in its job: what Paddle's role makers say, and the helpers of UtilBase that
 * depend on it. A role is a value that never changes; it needs no fleet_env_init().
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence that names the variable or the member.
 */

#include <stdbool.h>
#include <stddef.h>

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

enum fleet_role_kind {
    FLEET_WORKER = 1,
    FLEET_SERVER = 2,
    FLEET_HETER_WORKER,
    FLEET_COORDINATOR
};

/* A description by the user: Paddle's UserDefinedRoleMaker. */
struct fleet_role_description {
    bool is_collective;
    enum fleet_role_kind kind;    /* of a job with servers; a collective job has workers only */
    int current_id;               /* among the workers, or among the servers */
    int worker_num;               /* 0: the number of worker_endpoints */
    const char *worker_endpoints; /* "host:port,host:port,…"; may be NULL if worker_num is set */
    const char *server_endpoints; /* likewise; required in a job with servers */
};

struct fleet_role;

/* -EINVAL: the member that is missing, or current_id outside its list. */
int fleet_role_user(const struct fleet_role_description *description, struct fleet_role **out,
                    struct fleet_error *err);

/*
 * From variables: Paddle's PaddleCloudRoleMaker.
 *
 * Collective: PADDLE_TRAINER_ID (0), PADDLE_TRAINERS_NUM (1), PADDLE_TRAINER_ENDPOINTS
 * (127.0.0.1:6170).
 * With servers: PADDLE_PSERVERS_IP_PORT_LIST. Without it this is a local run of one worker, which
 * fleet_role_is_local() tells. PADDLE_TRAINERS_NUM and TRAINING_ROLE (TRAINER, PSERVER,
 * HETER_TRAINER, COORDINATOR) are required. A TRAINER needs PADDLE_TRAINER_ID. A PSERVER needs
 * POD_IP and PADDLE_PORT, and its place is that of "POD_IP:PADDLE_PORT" in the list.
 */
int fleet_role_from_env(bool is_collective, struct fleet_role **out, struct fleet_error *err);

void fleet_role_free(struct fleet_role *role); /* NULL is fine */

bool fleet_role_is_collective(const struct fleet_role *role);
bool fleet_role_is_local(const struct fleet_role *role);
bool fleet_role_is_worker(const struct fleet_role *role);
bool fleet_role_is_first_worker(const struct fleet_role *role);
bool fleet_role_is_server(const struct fleet_role *role);

/* -1 if it is no worker, or no server. */
int fleet_role_worker_index(const struct fleet_role *role);
int fleet_role_server_index(const struct fleet_role *role);

int fleet_role_worker_num(const struct fleet_role *role);
int fleet_role_server_num(const struct fleet_role *role);
int fleet_role_node_num(const struct fleet_role *role); /* distinct hosts of the workers */

/* *count endpoints, borrowed; none if the user gave only a number. */
const char *const *fleet_role_worker_endpoints(const struct fleet_role *role, int *count);
const char *const *fleet_role_server_endpoints(const struct fleet_role *role, int *count);

/*
 * The files of this worker: contiguous blocks of files / workers each, and the first
 * files % workers of them have one more. 5 files on 3 workers: [0,1] [2,3] [4]. -EINVAL: this is no
 * worker, or files < 0.
 */
int fleet_util_file_shard(const struct fleet_role *role, int files, int *first, int *count,
                          struct fleet_error *err);

/*
 * Small exchanges of UtilBase between all workers, which have called fleet_env_init(). mode: "sum",
 * "min" or "max". comm_world: "worker"; "server" and "all" are -ENOTSUP, because servers are
 * connected to workers only. -EINVAL: another word. Else the errors of fleet_all_reduce() and its
 * like.
 */
int fleet_util_all_reduce(const struct fleet_tensor *tensor, const char *mode,
                          const char *comm_world, struct fleet_error *err);
int fleet_util_all_gather(const struct fleet_tensor *out, const struct fleet_tensor *in,
                          const char *comm_world, struct fleet_error *err);
int fleet_util_barrier(const char *comm_world, struct fleet_error *err);

/* Print the line on one worker only. */
void fleet_util_print_on_rank(const struct fleet_role *role, const char *message, int rank);

#ifdef __cplusplus
}
#endif

#endif
