/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The binary files of CIFAR-10 (records: label, pixels) and CIFAR-100 (coarse label, fine label,
 * pixels); a record's pixels are 3 planes of 32 × 32 bytes, red, green, blue. A pixel u becomes
 * (u/255 − 0.5)/0.25; the label of CIFAR-100 is the fine one.
 *
 * In a folder only files are read that end in ".bin" and do not begin with "test", so a job does
 * not train on the authors' test set by accident. A file or a glob can name that set.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/data/files.h"
#include "agent/runtime/data/source.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define CHANNELS 3
#define SIDE     32
#define PIXELS   (CHANNELS * SIDE * SIDE)

struct cifar_source {
    struct source source;
    struct data_files files;
    int labels; /* bytes before the pixels; the last of them counts */
};

static int record_bytes(const struct cifar_source *s)
{
    return s->labels + PIXELS;
}

static int read_image(const struct source *source, int64_t index, float *pixels, int32_t *label,
                      struct fleet_error *err)
{
    const struct cifar_source *s = (const struct cifar_source *)source;
    uint8_t record[2 + PIXELS];
    int64_t at = index * record_bytes(s);
    int rc = files_read(&s->files, SOURCE_FIELD, at, (size_t)record_bytes(s), record, err);

    if (rc < 0)
        return rc;
    if (record[s->labels - 1] >= s->source.vocabulary)
        return fleet_error(
            err, -EINVAL, SOURCE_FIELD ": %s: label %d of a record is not below %lld",
            files_at(&s->files, at)->path, record[s->labels - 1], (long long)s->source.vocabulary);
    *label = record[s->labels - 1];
    for (int i = 0; i < PIXELS; i++)
        pixels[i] = ((float)record[s->labels + i] / 255.0f - 0.5f) / 0.25f;
    return 0;
}

static void digest(const struct source *source, struct fleet_sha256 *sha)
{
    source_digest_files(&((const struct cifar_source *)source)->files, sha);
}

static void free_source(struct source *source)
{
    files_release(&((struct cifar_source *)source)->files);
    free(source);
}

static const struct source_vtable vtable = {
    .read_image = read_image,
    .digest = digest,
    .free = free_source,
};

static bool is_training_file(const char *name)
{
    size_t length = strlen(name);

    return length > 4 && strcmp(name + length - 4, ".bin") == 0 && strncmp(name, "test", 4) != 0;
}

static const struct data_file_names training_files = {.wanted = is_training_file,
                                                      .words = "*.bin, but not test*"};

int source_cifar_open(const struct training_data *config, struct source **out,
                      struct fleet_error *err)
{
    struct cifar_source *s = calloc(1, sizeof(*s));
    bool is_100 = config->tokenizer == TRAINING_TOKENIZER_CIFAR100;
    int rc;

    fleet_assert(s != NULL);
    s->labels = is_100 ? 2 : 1;
    rc = files_open_some(SOURCE_FIELD, config->path, &training_files, &s->files, err);
    if (rc == 0)
        rc = files_check_sizes(&s->files, SOURCE_FIELD, record_bytes(s), "a record", err);
    if (rc < 0) {
        free_source(&s->source);
        return rc;
    }
    s->source = (struct source){
        .vtable = &vtable,
        .samples = s->files.size / record_bytes(s),
        .vocabulary = is_100 ? 100 : 10,
        .channels = CHANNELS,
        .height = SIDE,
        .width = SIDE,
    };
    *out = &s->source;
    return 0;
}
