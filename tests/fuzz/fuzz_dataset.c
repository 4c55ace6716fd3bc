/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as a data file. The first byte chooses the tokenizer, the second the context, the third
 * the share held out. Refused, or every sample can be read, has tokens or a label in range, and
 * reads the same a second time; bytes are what the file holds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/data/dataset.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

#define HEAD        3
#define CONTEXT_MAX 17
#define SAMPLES_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *data_path(void)
{
    static char path[64];

    (void)snprintf(path, sizeof(path), "/dev/shm/fleetjob-fuzz-%ld.bin", (long)getpid());
    return path;
}

static void remove_file(void)
{
    (void)unlink(data_path());
}

static void write_content(const uint8_t *content, size_t size)
{
    FILE *file = fopen(data_path(), "w");

    fleet_assert(file && (size == 0 || fwrite(content, size, 1, file) == 1));
    fleet_assert(fclose(file) == 0);
}

static void read_text(const struct dataset *dataset, int64_t context, const uint8_t *bytes)
{
    int32_t tokens[CONTEXT_MAX], targets[CONTEXT_MAX], again[2][CONTEXT_MAX];
    int64_t vocabulary = dataset_vocabulary(dataset);

    fleet_assert(dataset_count(dataset) * context < dataset_tokens(dataset));
    for (int64_t i = 0; i < dataset_count(dataset) && i < SAMPLES_MAX; i++) {
        struct fleet_error err;
        if (dataset_read(dataset, i, vocabulary, tokens, targets, &err) < 0)
            continue; /* a token beyond what a number can be */
        fleet_assert(dataset_read(dataset, i, vocabulary, again[0], again[1], &err) == 0);
        fleet_assert(memcmp(again[0], tokens, (size_t)context * sizeof(int32_t)) == 0);
        fleet_assert(memcmp(again[1], targets, (size_t)context * sizeof(int32_t)) == 0);
        for (int64_t t = 0; t < context; t++) {
            fleet_assert(tokens[t] >= 0 && tokens[t] < vocabulary);
            fleet_assert(targets[t] >= 0 && targets[t] < vocabulary);
            fleet_assert(t + 1 == context || targets[t] == tokens[t + 1]);
            fleet_assert(!bytes || tokens[t] == bytes[i * context + t]);
        }
    }
}

static void read_images(const struct dataset *dataset)
{
    struct dataset_image shape = dataset_image(dataset);
    size_t count = (size_t)shape.channels * (size_t)shape.height * (size_t)shape.width;
    FLEET_AUTO_FREE float *pixels = calloc(count, sizeof(*pixels));

    fleet_assert(pixels);
    for (int64_t i = 0; i < dataset_count(dataset) && i < SAMPLES_MAX; i++) {
        struct fleet_error err;
        int32_t label = -1;
        if (dataset_read_image(dataset, i, pixels, &label, &err) < 0)
            continue; /* a label that there is not */
        fleet_assert(label >= 0 && label < dataset_vocabulary(dataset));
        for (size_t p = 0; p < count; p++)
            fleet_assert(pixels[p] >= -2.0f && pixels[p] <= 2.0f);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum training_tokenizer tokenizers[] = {
        TRAINING_TOKENIZER_BYTES, TRAINING_TOKENIZER_TOKENS_U16, TRAINING_TOKENIZER_TOKENS_U32,
        TRAINING_TOKENIZER_CIFAR10, TRAINING_TOKENIZER_CIFAR100};
    static bool is_ready;
    struct training_data config = {.shuffle = true};
    struct dataset *dataset = NULL;
    uint8_t digest[FLEET_SHA256_SIZE];
    struct fleet_error err;
    int64_t context;
    bool images;

    if (size < HEAD)
        return 0;
    if (!is_ready)
        is_ready = atexit(remove_file) == 0;
    config.tokenizer = tokenizers[data[0] % FLEET_COUNT(tokenizers)];
    config.path = (char *)(uintptr_t)data_path();
    config.validation = (data[2] % 6) * 0.1;
    images = config.tokenizer == TRAINING_TOKENIZER_CIFAR10 ||
             config.tokenizer == TRAINING_TOKENIZER_CIFAR100;
    context = images ? 0 : 1 + data[1] % CONTEXT_MAX;
    write_content(data + HEAD, size - HEAD);
    if (dataset_open(&config, context, 7, &dataset, &err) < 0)
        return 0;
    fleet_assert(dataset_training_count(dataset) >= 1);
    fleet_assert(dataset_training_count(dataset) + dataset_validation_count(dataset) ==
                 dataset_count(dataset));
    dataset_digest(dataset, digest);
    if (images)
        read_images(dataset);
    else
        read_text(dataset, context,
                  config.tokenizer == TRAINING_TOKENIZER_BYTES ? data + HEAD : NULL);
    dataset_free(dataset);
    return 0;
}
