/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_TRAINING_TRAINER_FILE_H
#define LIBFLEET_TRAINING_TRAINER_FILE_H

/*
 * job.json, the job as a worker gets it. The controller writes it into the job's Secret, and
 * `fleetjob run` into its folder. The built-in trainer reads it; for an own trainer the agent does.
 *
 *   {"training":{…}, "strategy":{…}, "strategyPolicy":"Full", "strategyOptions":{…},
 *    "autoParallel":{…}, "jobName":"gpt", "baseDir":"/", "elasticReplicas":1,
 *    "encryptData":false}
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/strategy/strategy_spec.h"

struct fleet_error;

#define TRAINER_FILE_SIZE_MAX (4u << 20) /* bytes */

struct trainer_file {
    cJSON *root;                /* owned; the rest is borrowed from it, or from the writer */
    const cJSON *training;      /* as given, not decoded; NULL = none: {} is written */
    const cJSON *auto_parallel; /* NULL = none */
    const char *job_name, *base_folder; /* relative paths of the training block start there */
    int64_t elastic_replicas;           /* runPolicy.elastic.replicas: 0 or 1 */
    bool encrypts;                      /* runPolicy.dataEncryption, with the default applied */
};

/* The text, on the heap. `file->root` is not used. */
char *trainer_file_format(const struct trainer_file *file, const struct strategy *strategy,
                          enum strategy_policy policy, const struct strategy_options *options);

/* Parse the text. strategy_spec_decode() and training_config_decode() then read the blocks.
 * Defaults of missing keys: jobName "job", baseDir "", elasticReplicas 1, encryptData false.
 * -EINVAL if the text is not JSON, if one of these has another type, or if elasticReplicas is
 * neither 0 nor 1. On success release *out. */
int trainer_file_parse(const char *text, size_t size, struct trainer_file *out,
                       struct fleet_error *err);
void trainer_file_release(struct trainer_file *file);

#endif
