/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Cuts a source (source.h) into samples and holds some of them out; the sources know files and
 * formats.
 */
#include "agent/runtime/data/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/data/files.h"
#include "agent/runtime/data/source.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

struct dataset {
    enum training_tokenizer tokenizer;
    struct source *source;
    int64_t context;
    int64_t count;
    int64_t validation_count;
};

/* ---- opening --------------------------------------------------------------------------------- */

static int open_source(const struct training_data *config, uint64_t seed, int64_t enough,
                       struct source **out, struct fleet_error *err)
{
    if (config->tokenizer == TRAINING_TOKENIZER_SYNTHETIC_MARKOV) {
        *out = source_markov_new(config, seed);
        return 0;
    }
    if (!config->path)
        return fleet_error(err, -EINVAL, SOURCE_FIELD ": required");
    switch (config->tokenizer) {
    case TRAINING_TOKENIZER_BPE:
        return source_bpe_open(config, enough, out, err);
    case TRAINING_TOKENIZER_CIFAR10:
    case TRAINING_TOKENIZER_CIFAR100:
        return source_cifar_open(config, out, err);
    default:
        return source_tokens_open(config, out, err);
    }
}

static int count_samples(struct dataset *dataset, const char *path, struct fleet_error *err)
{
    const struct source *source = dataset->source;

    dataset->count = source->samples;
    if (source->vtable->read_tokens)
        dataset->count = source->tokens > 0 ? (source->tokens - 1) / dataset->context : 0;
    if (dataset->count < 1)
        return fleet_error(err, -EINVAL,
                           SOURCE_FIELD
                           ": %s holds %lld token%s, one sample of model.context %lld needs %lld",
                           path, (long long)source->tokens, source->tokens == 1 ? "" : "s",
                           (long long)dataset->context, (long long)dataset->context + 1);
    return 0;
}

/* The last share of the samples is held out; at least one of each kind. */
static int hold_out(struct dataset *dataset, double share, const char *path,
                    struct fleet_error *err)
{
    if (share <= 0)
        return 0;
    dataset->validation_count = (int64_t)((double)dataset->count * share);
    if (dataset->validation_count < 1)
        dataset->validation_count = 1;
    if (dataset->validation_count >= dataset->count)
        return fleet_error(
            err, -EINVAL,
            SOURCE_FIELD
            ": %s holds %lld sample%s, too few to hold out spec.training.data.validation %g",
            path, (long long)dataset->count, dataset->count == 1 ? "" : "s", share);
    return 0;
}

int dataset_open(const struct training_data *config, int64_t context, uint64_t seed,
                 struct dataset **out, struct fleet_error *err)
{
    return dataset_open_enough(config, context, seed, INT64_MAX, out, err);
}

int dataset_open_enough(const struct training_data *config, int64_t context, uint64_t seed,
                        int64_t enough, struct dataset **out, struct fleet_error *err)
{
    struct dataset *dataset = calloc(1, sizeof(*dataset));
    int rc;

    fleet_assert(dataset != NULL);
    dataset->tokenizer = config->tokenizer;
    dataset->context = context;
    rc = open_source(config, seed, enough, &dataset->source, err);
    if (rc == 0 && context < 1 && !dataset->source->vtable->read_image)
        rc = fleet_error(err, -EINVAL,
                         "spec.training.data.tokenizer: the tokenizer makes text, but the model "
                         "reads images: must be cifar10 or cifar100");
    if (rc == 0)
        rc = count_samples(dataset, config->path, err);
    if (rc == 0)
        rc = hold_out(dataset, config->validation, config->path, err);
    if (rc < 0) {
        dataset_free(dataset);
        return rc;
    }
    *out = dataset;
    return 0;
}

void dataset_free(struct dataset *dataset)
{
    if (dataset && dataset->source)
        dataset->source->vtable->free(dataset->source);
    free(dataset);
}

int64_t dataset_count(const struct dataset *dataset)
{
    return dataset->count;
}

int64_t dataset_training_count(const struct dataset *dataset)
{
    return dataset->count - dataset->validation_count;
}

int64_t dataset_validation_count(const struct dataset *dataset)
{
    return dataset->validation_count;
}

int64_t dataset_tokens(const struct dataset *dataset)
{
    return dataset->source->tokens;
}

int64_t dataset_vocabulary(const struct dataset *dataset)
{
    return dataset->source->vocabulary;
}

double dataset_entropy(const struct dataset *dataset)
{
    return dataset->source->entropy;
}

struct dataset_image dataset_image(const struct dataset *dataset)
{
    const struct source *source = dataset->source;

    return (struct dataset_image){source->channels, source->height, source->width};
}

/* ---- reading --------------------------------------------------------------------------------- */

static int refuse_token(const struct source *source, int64_t position, int32_t token,
                        int64_t vocabulary, struct fleet_error *err)
{
    char place[300] = "the text";

    if (source->vtable->place_of)
        source->vtable->place_of(source, position, place, sizeof(place));
    if (token < 0)
        return fleet_error(err, -EINVAL, SOURCE_FIELD ": %s: a token is larger than 2^31 - 1",
                           place);
    return fleet_error(err, -EINVAL,
                       SOURCE_FIELD ": %s: token %d is not below model.vocabulary %lld", place,
                       token, (long long)vocabulary);
}

/* The tokens of sample `index` and the one after them. */
static int read_tokens(const struct dataset *dataset, int64_t index, int32_t *tokens,
                       int32_t *out_next, struct fleet_error *err)
{
    const struct source *source = dataset->source;
    int64_t context = dataset->context, first = index * context;
    int rc;

    if (source->vtable->read_sample)
        return source->vtable->read_sample(source, index, context, tokens, out_next, err);
    rc = source->vtable->read_tokens(source, first, context, tokens, err);
    return rc < 0 ? rc : source->vtable->read_tokens(source, first + context, 1, out_next, err);
}

int dataset_read(const struct dataset *dataset, int64_t index, int64_t vocabulary, int32_t *tokens,
                 int32_t *targets, struct fleet_error *err)
{
    const struct source *source = dataset->source;
    int64_t context = dataset->context, first = index * context;
    int64_t limit = vocabulary ? vocabulary : INT64_C(1) << 31;
    int rc;

    fleet_assert(index >= 0 && index < dataset->count && !source->vtable->read_image);
    rc = read_tokens(dataset, index, tokens, &targets[context - 1], err);
    if (rc < 0)
        return rc;
    memcpy(targets, tokens + 1, (size_t)(context - 1) * sizeof(*targets));
    for (int64_t i = 0; i <= context; i++) {
        int32_t token = i < context ? tokens[i] : targets[context - 1];
        if (token < 0 || token >= limit)
            return refuse_token(source, first + i, token, limit, err);
    }
    return 0;
}

int dataset_read_image(const struct dataset *dataset, int64_t index, float *pixels, int32_t *label,
                       struct fleet_error *err)
{
    const struct source *source = dataset->source;

    fleet_assert(index >= 0 && index < dataset->count && source->vtable->read_image);
    return source->vtable->read_image(source, index, pixels, label, err);
}

/* ---- the digest ------------------------------------------------------------------------------ */

void source_digest_number(struct fleet_sha256 *sha, int64_t number)
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)number >> (8 * i));
    fleet_sha256_update(sha, bytes, sizeof(bytes));
}

void source_digest_files(const struct data_files *files, struct fleet_sha256 *sha)
{
    for (int i = 0; i < files->count; i++) {
        source_digest_number(sha, files->items[i].seen.st_size);
        fleet_sha256_update(sha, files->items[i].ends, sizeof(files->items[i].ends));
    }
}

void dataset_digest(const struct dataset *dataset, uint8_t out[FLEET_SHA256_SIZE])
{
    struct fleet_sha256 *sha = fleet_sha256_new();

    source_digest_number(sha, (int64_t)dataset->tokenizer);
    source_digest_number(sha, dataset->context);
    dataset->source->vtable->digest(dataset->source, sha);
    fleet_sha256_finish(sha, out);
}
