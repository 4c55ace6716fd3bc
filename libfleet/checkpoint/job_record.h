/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_JOB_RECORD_H
#define LIBFLEET_CHECKPOINT_JOB_RECORD_H

/*
 * The record of the job that trained some weights. A checkpoint has it in manifest.json as `job`
 * (agent/runtime/origin.h writes it). An export has a part of it in the metadata of its safetensors
 * file.
 *
 * The record has the blocks of the spec, but no paths. It may lack the number of steps and the
 * optimizer. Decoding fills in neutral values for them, so that a plan can be built from the
 * record.
 */

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/digest.h"
#include "libfleet/base/field.h"
#include "libfleet/strategy/strategy_spec.h"
#include "libfleet/training/training.h"

struct fleet_error;

#define JOB_RECORD_METADATA "fleetjob.job" /* key in the metadata of an exported safetensors file */
#define JOB_RECORD_SIZE_MAX (1u << 20)     /* bytes of JSON */

/* A file of the tokenizer; `path` is where the job read it. */
struct job_record_file {
    char *path;                         /* NULL = not recorded */
    char sha256[FLEET_SHA256_HEX_SIZE]; /* "" = not recorded */
};

struct job_record_tokenizer {
    struct job_record_file vocabulary, merges;
};

/* The record in a manifest: the blocks of the spec are still JSON. */
struct job_record_text {
    char *uid, *name;
    char data_sha256[FLEET_SHA256_HEX_SIZE]; /* of the training data; "" = not recorded */
    cJSON *training, *strategy, *options;    /* NULL = not recorded */
    enum strategy_policy policy;
    int64_t evaluation_batches; /* evaluation.batches; -1: the job had no evaluation */
    bool has_tokenizer;         /* the job used `tokenizer: bpe`; `tokenizer` has its files */
    struct job_record_tokenizer tokenizer;
};

extern const struct fleet_object job_record_text_type;

struct job_record {
    struct training_config training; /* data.path is "-"; steps is 10^9 if not recorded */
    struct strategy_spec strategy;
    struct job_record_file vocabulary, merges; /* of `tokenizer: bpe` */
    int64_t evaluation_batches;                /* as above */
    char data_sha256[FLEET_SHA256_HEX_SIZE];   /* as above */
};

/* -ENOENT: `job` is NULL or lacks the training block (an old checkpoint). -EINVAL: the record is
 * malformed; the error has the reason. On success release *out. */
int job_record_decode(const cJSON *job, struct job_record *out, struct fleet_error *err);
void job_record_release(struct job_record *record); /* may be zeroed */

/*
 * The part of `job` that an export keeps: the fields that determine the forward program and its
 * data. So two jobs with the same weights export the same file, even if they ran on different
 * numbers of workers. JSON as a heap string, which the caller frees; NULL if `job` lacks the
 * training block.
 */
char *job_record_metadata(const cJSON *job);

#endif
