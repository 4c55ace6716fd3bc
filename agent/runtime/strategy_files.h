/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STRATEGY_FILES_H
#define AGENT_RUNTIME_STRATEGY_FILES_H

/*
 * MindSpore's strategy and group files of a job (spec.autoParallel.strategy_ckpt_*,
 * group_ckpt_save_file). `fleetjob run` has read the strategies already; in a cluster the workers
 * are the first that can read the file, and they refuse one that asks for another grid than theirs.
 */

#include <stdbool.h>

#include <cjson/cJSON.h>

struct fleet_error;
struct trainer;

struct strategy_files {
    char *load, *save, *groups; /* heap; NULL: none */
    bool only_trainable;
    bool is_done; /* this process has used them */
};

/* What the context (NULL: none) names; relative paths start at `folder`. */
void strategy_files_init(struct strategy_files *files, const cJSON *context, const char *folder);
void strategy_files_release(struct strategy_files *files);

/*
 * Once in a process, when the trainer has the plan of a generation: check the strategies of the
 * file to load; rank 0 writes the others, with mode 0600, and makes their folders. -EINVAL: the
 * file is none, or asks for another grid; -errno: a file cannot be read or written.
 */
int strategy_files_use(struct trainer *trainer, struct fleet_error *err);

#endif
