/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_JOB_RECORD_H
#define LIBFLEET_CHECKPOINT_JOB_RECORD_H

/*
 * The job that trained some weights, read back from what a checkpoint says of it
 * (agent/runtime/origin.h writes it into manifest.json as `job`), or from what an export keeps of
 * that in its metadata.
 *
 * The record has the blocks of the spec without paths and without how long to train. Decoding fills
 * these with neutral values, so that a plan can be built from it.
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

/* A file of the tokenizer, where it was when the job ran. */
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
    bool has_tokenizer;         /* bpe */
    struct job_record_tokenizer tokenizer;
};

extern const struct fleet_object job_record_text_type;

struct job_record {
    struct training_config training; /* data.path is "-", steps is large */
    struct strategy_spec strategy;
    struct job_record_file vocabulary, merges; /* tokenizer bpe */
    int64_t evaluation_batches;                /* as above */
    char data_sha256[FLEET_SHA256_HEX_SIZE];   /* as above */
};

/* -ENOENT: `job` is NULL or does not hold the training block (an old checkpoint). -EINVAL with
 * what is wrong. On success release *out. */
int job_record_decode(const cJSON *job, struct job_record *out, struct fleet_error *err);
void job_record_release(struct job_record *record); /* fine on a zeroed one */

/*
 * The part of `job` that an export keeps: the fields on which the forward program and its data
 * depend. So jobs that reach the same weights in different ways export the same file. Heap text;
 * NULL if `job` holds no training block.
 */
char *job_record_metadata(const cJSON *job);

#endif
