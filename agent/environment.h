/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_ENVIRONMENT_H
#define AGENT_ENVIRONMENT_H

/*
 * The environment of an own trainer: the agent's own environment, and the variables that the
 * trainer's framework expects.
 *
 *   Paddle       PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM, PADDLE_CURRENT_ENDPOINT, …
 *   PyTorch      MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, …
 *   MindSpore    MS_WORKER_NUM, MS_SCHED_HOST, MS_SCHED_PORT, MS_NODE_ID, RANK_ID, RANK_SIZE, …
 *
 *   any          FLEET_STRATEGY_FILE (prototxt), FLEET_STRATEGY_JSON, FLEET_AUTO_PARALLEL_JSON,
 *                FLEET_AUTO_PARALLEL_FILE, FLEET_GENERATION, FLEET_PROGRESS_FILE,
 *                FLEET_GENERATION_PIPE, and FLEET_RESUME_STEP and FLEET_RESUME_PATH once the job
 *                has reported a checkpoint
 *   fleet.h      with runPolicy.dataEncryption: FLEET_DATA_ENCRYPTION=AES-GCM, and
 *                FLEET_WORLD_SECRET, the hub's key of the generation
 *
 * A variable longer than ENVIRONMENT_VALUE_SIZE_MAX goes into a JSON file that
 * PADDLE_BACKUP_ENV_PATH names, as Paddle's launcher does.
 *
 * LD_PRELOAD is that of the pod template, even if the agent itself was started by a preloaded
 * library (entrypoint/entrypoint.h).
 *
 * Removed are http_proxy and https_proxy, as Paddle's launcher does, and the variables about the
 * hub: FLEET_HUB, FLEET_HUB_FILE, FLEET_CA_FILE, FLEET_TOKEN_FILE and FLEET_ENVIRONMENT_FILE.
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/rendezvous/message.h"

#define ENVIRONMENT_VALUE_SIZE_MAX 48000 /* bytes of NAME=value; PADDLE_ENV_LIMIT_LEN in Paddle */

struct environment_input {
    char *const *base; /* the agent's own environment, NULL-terminated */
    const struct message_assign *assign;
    int place;      /* of this pod in the assignment */
    int first_rank; /* of local rank 0 */
    int local_rank;
    const char *job_id, *pod_name;

    /* Of own_files.h; each may be NULL. */
    const char *folder, *strategy_json, *strategy_file, *rank_table_file, *auto_parallel_json;
    const char *auto_parallel_file;
    bool encrypts;               /* runPolicy.dataEncryption */
    int nccl_rings;              /* 0 = not said */
    const char *progress_file;   /* progress_channel.h; NULL = none */
    const char *generation_pipe; /* generation_channel.h; NULL = none */
};

/* "NAME=value", NULL-terminated, all heap: environment_free(). Variables of `base` that are set
 * again are replaced. These of the user stay: MASTER_ADDR with MASTER_PORT, OMP_NUM_THREADS,
 * PADDLE_MASTER_ENDPOINT, PADDLE_DISTRI_BACKEND, PADDLE_PG_TIMEOUT, FLAGS_stop_check_timeout,
 * PADDLE_AUTO_CLUSTER, PADDLE_LOG_DIR, FLEET_DATA_ENCRYPTION, FLEET_WORLD_SECRET.
 * PADDLE_DISTRI_BACKEND is gloo if no variable of `base` names a device: CUDA_VISIBLE_DEVICES, else
 * NVIDIA_VISIBLE_DEVICES, XPU_VISIBLE_DEVICES or XPULINK_VISIBLE_DEVICES. */
char **environment_build(const struct environment_input *input);

/*
 * Remove variables that are too long: *out_json gets {"NAME": "value"} (heap), or NULL if all fit.
 * environment_set() then adds the path of the file.
 */
char **environment_shorten(char **environment, char **out_json);

/* Set one more; takes and returns the list. */
char **environment_set(char **environment, const char *name, const char *value);

/* A copy without the variables that no trainer may see: for the built-in trainer. */
char **environment_inherit(char *const *base);

/* One GPU for each of several built-in trainers: CUDA_VISIBLE_DEVICES gets the entry of this local
 * rank, of the variable's own list or, without one, of 0, 1, …. The list ends before: "", no GPU.
 * Nothing changes for a single trainer and for trainers that compute on the CPU. Takes and returns
 * the list. */
char **environment_choose_gpu(char **environment, int local_rank, int processes);

/* Free the list and its entries. NULL is fine. */
void environment_free(char **environment);

#endif
