/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_ORIGIN_H
#define AGENT_RUNTIME_ORIGIN_H

/*
 * The record of the job that wrote a checkpoint (struct manifest, `job`). A job that continues from
 * the checkpoint compares it with itself:
 *
 *     {"uid":…, "name":…, "dataSha256":…, "training":{…}, "strategy":{…}, "strategyOptions":{…},
 *      "strategyPolicy":"Full", "evaluationBatches":0, "tokenizer":{"vocabulary":PATH, …}}
 *
 * The blocks are those of the spec, with defaults written out. Fields that do not change the
 * weights after a step are left out: paths, the number of steps, how often something is saved,
 * evaluated or reported. The last three keys are for users of the weights
 * (libfleet/checkpoint/job_record.h) and are not compared.
 */

#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/checkpoint/job_record.h"

struct fleet_error;
struct fleet_strbuf;
struct strategy;
struct strategy_options;
struct training_config;
struct training_data;

struct origin {
    const char *uid, *name; /* of the job */
    const uint8_t *data;    /* SHA-256 of the data */
    const struct training_config *training;
    const struct strategy *strategy;
    const struct strategy_options *options;
    enum strategy_policy policy;
    const struct job_record_tokenizer *tokenizer; /* NULL unless the tokenizer is bpe */
};

/* Read the vocabulary and the merges of a bpe tokenizer. -errno with the path. On success release
 * *out. */
int origin_tokenizer_read(const struct training_data *data, struct job_record_tokenizer *out,
                          struct fleet_error *err);
void origin_tokenizer_release(struct job_record_tokenizer *tokenizer);

/* Owned by the caller. */
cJSON *origin_encode(const struct origin *origin);

/*
 * Append the fields in which `theirs` differs from `ours`, separated by ", ", and not more than a
 * few: "spec.training.seed, the data of spec.training.data.path". Settings that only divide the
 * work over ranks may differ. Appends nothing if they agree, or if `theirs` is NULL.
 */
void origin_compare(const cJSON *theirs, const cJSON *ours, struct fleet_strbuf *out);

#endif
