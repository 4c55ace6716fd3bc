/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OWN_FILES_H
#define AGENT_OWN_FILES_H

/*
 * Files for own trainers, in a private folder of the agent. Variables of the trainer name them:
 *
 *   strategy.prototxt        the job's strategy as fleet.DistributedStrategy loads it
 *   auto_parallel.json       spec.autoParallel: arguments of MindSpore's set_auto_parallel_context
 *   rank_table.json          MindSpore's table of servers, devices and ranks, for each generation
 *   backup_env.<rank>.json   variables too long for an environment
 */

#include <stdbool.h>

#include "libfleet/rendezvous/message.h"
#include "libfleet/strategy/strategy_spec.h"

struct fleet_error;

struct own_files {
    char *folder;             /* NULL = none */
    char *strategy_json;      /* the job's strategy; NULL without a job file */
    char *strategy_file;      /* strategy.prototxt; NULL also if that format cannot express it */
    char *auto_parallel_json; /* spec.autoParallel in MindSpore's names; NULL if there is none */
    char *auto_parallel_file; /* path of auto_parallel.json; NULL if there is none */
    struct strategy_spec *strategy; /* as the job has it; NULL without a job file */
    bool encrypts;                  /* runPolicy.dataEncryption; false without a job file */
};

/*
 * Make the folder, below the first of $TMPDIR, /tmp and /dev/shm that can be written, and the files
 * that do not change. `job_file` as link.h's FLEET_JOB_FILE, NULL = none. -errno; -EINVAL names
 * what is wrong in the file. Release *out after success and failure.
 */
int own_files_open(const char *job_file, struct own_files *out, struct fleet_error *err);
void own_files_release(struct own_files *files); /* removes the folder, too */

/* The nccl_comm_num that takes effect with `world` ranks: 1 to 8. With one rank it is 1. */
int own_files_nccl_rings(const struct own_files *files, int world);

/* Write the table of this generation: path as heap text in *out_path. -errno with the path. */
int own_files_rank_table(const struct own_files *files, const struct message_assign *assign,
                         char **out_path, struct fleet_error *err);

/* Write backup_env.<rank>.json: path as heap text in *out_path. -errno with the path. */
int own_files_backup(const struct own_files *files, int rank, const char *json, char **out_path,
                     struct fleet_error *err);

/* The text of the table, heap. */
char *own_files_format_rank_table(const struct message_assign *assign);

#endif
