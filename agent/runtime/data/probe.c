/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/data/probe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/data/dataset.h"
#include "agent/runtime/data/source.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"

/* Enough for a batch beside what is held out, and for one sample of each kind. */
static int64_t enough_tokens(const struct training_config *config)
{
    int64_t samples = 2 * config->global_batch_size + 2, tokens;

    if (__builtin_mul_overflow(samples, config->model.context, &tokens) || tokens == INT64_MAX)
        return INT64_MAX;
    return tokens + 1;
}

/* "spec.field: words" of a reader as one of a list. */
static void add_located(const char *text, struct fleet_errors *errors)
{
    FLEET_AUTO_FREE char *path = NULL;
    const char *colon = strstr(text, ": ");

    if (strncmp(text, "spec.", strlen("spec.")) != 0 || !colon) {
        fleet_errors_add(errors, SOURCE_FIELD, "%s", text);
        return;
    }
    path = strndup(text, (size_t)(colon - text));
    fleet_assert(path != NULL);
    fleet_errors_add(errors, path, "%s", colon + strlen(": "));
}

static int read_one(const struct dataset *dataset, int64_t index,
                    const struct training_config *config, void *memory, struct fleet_error *err)
{
    int32_t label;

    if (dataset_image(dataset).channels > 0)
        return dataset_read_image(dataset, index, memory, &label, err);
    return dataset_read(dataset, index, config->model.vocabulary, memory,
                        (int32_t *)memory + config->model.context, err);
}

static void *memory_of_sample(const struct dataset *dataset, const struct training_config *config)
{
    struct dataset_image image = dataset_image(dataset);
    size_t pixels = (size_t)image.channels * (size_t)image.height * (size_t)image.width;
    size_t values = pixels > 0 ? pixels : 2 * (size_t)config->model.context;
    void *memory = calloc(values, sizeof(float));

    fleet_assert(memory != NULL);
    return memory;
}

/* The first error is enough: the others are of the same kind. */
static void look_at_samples(const struct dataset *dataset, const struct training_config *config,
                            struct fleet_errors *errors)
{
    FLEET_AUTO_FREE void *memory = memory_of_sample(dataset, config);
    int64_t count = dataset_count(dataset), looks = count < PROBE_SAMPLES ? count : PROBE_SAMPLES;
    struct fleet_error err;

    for (int64_t i = 0; i < looks; i++) {
        int64_t index = looks > 1 ? (count - 1) / (looks - 1) * i : 0;

        if (read_one(dataset, index, config, memory, &err) < 0) {
            add_located(err.text, errors);
            return;
        }
    }
}

static void check_vocabulary(const struct dataset *dataset, const struct training_config *config,
                             struct fleet_errors *errors)
{
    if (config->data.tokenizer == TRAINING_TOKENIZER_BPE && config->model.vocabulary > 0 &&
        dataset_vocabulary(dataset) > config->model.vocabulary)
        fleet_errors_add(errors, "spec.training.model.vocabulary",
                         "%" PRId64 " is less than the %" PRId64 " tokens that the tokenizer makes",
                         config->model.vocabulary, dataset_vocabulary(dataset));
}

static void warn_of_few(const struct dataset *dataset, const struct training_config *config,
                        struct fleet_errors *warnings)
{
    int64_t count = dataset_training_count(dataset);

    if (count < config->global_batch_size)
        fleet_errors_add(warnings, SOURCE_FIELD,
                         "%s holds %" PRId64 " sample%s to train on, less than globalBatchSize "
                         "(%" PRId64 "): each batch has samples more than once",
                         config->data.path, count, count == 1 ? "" : "s",
                         config->global_batch_size);
}

void probe_data(const struct training_config *config, struct fleet_errors *errors,
                struct fleet_errors *warnings)
{
    struct dataset *dataset;
    struct fleet_error err;
    size_t before = errors->count;

    if (config->data.tokenizer == TRAINING_TOKENIZER_SYNTHETIC_MARKOV)
        return;
    if (dataset_open_enough(&config->data, config->model.context, config->seed,
                            enough_tokens(config), &dataset, &err) < 0) {
        add_located(err.text, errors);
        return;
    }
    check_vocabulary(dataset, config, errors);
    if (errors->count == before)
        look_at_samples(dataset, config, errors);
    warn_of_few(dataset, config, warnings);
    dataset_free(dataset);
}
