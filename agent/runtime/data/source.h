/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_SOURCE_H
#define AGENT_RUNTIME_DATA_SOURCE_H

/*
 * The source of a dataset's samples: one kind of files, read by the number of the sample. dataset.c
 * chooses a source by the tokenizer, holds out the validation share and checks the numbers. No
 * other file uses a source.
 */

#include <stdint.h>

#include "libfleet/base/digest.h"
#include "libfleet/training/training.h"

struct fleet_error;
struct source;

struct source_vtable {
    /*
     * Text: write tokens [first, first + count) of the one long sequence to out. A value that does
     * not fit an int32 becomes -1, which the caller refuses. NULL: the source has no such sequence.
     */
    int (*read_tokens)(const struct source *source, int64_t first, int64_t count, int32_t *out,
                       struct fleet_error *err);

    /* Synthetic text: write the first `count` tokens of sample `index` to out, and the token after
     * them to *out_next. NULL: samples are cut from the sequence. */
    int (*read_sample)(const struct source *source, int64_t index, int64_t count, int32_t *out,
                       int32_t *out_next, struct fleet_error *err);

    /* Images: write pixels [channels][height][width] and the label of sample `index`. NULL: the
     * source has no images. */
    int (*read_image)(const struct source *source, int64_t index, float *pixels, int32_t *label,
                      struct fleet_error *err);

    /* "FILE at token N" for errors about a token; NULL: none. Written to `out`. */
    void (*place_of)(const struct source *source, int64_t token, char *out, size_t size);

    /* Add data to `sha` that distinguishes this source's content from another's. */
    void (*digest)(const struct source *source, struct fleet_sha256 *sha);
    void (*free)(struct source *source);
};

struct source {
    const struct source_vtable *vtable;
    int64_t tokens;              /* of the sequence; 0 without one */
    int64_t samples;             /* 0: follows from tokens and context */
    int64_t vocabulary;          /* the largest possible token or label plus one */
    int channels, height, width; /* images */
    double entropy;              /* nats per token of synthetic text; 0 = not known */
};

#define SOURCE_FIELD "spec.training.data.path" /* the beginning of errors about files */

/* One function per kind of source; config->tokenizer selects it. Errors as dataset_open(). bpe: the
 * text is encoded until there are `enough` tokens. */
int source_tokens_open(const struct training_data *config, struct source **out,
                       struct fleet_error *err);
int source_bpe_open(const struct training_data *config, int64_t enough, struct source **out,
                    struct fleet_error *err);
int source_cifar_open(const struct training_data *config, struct source **out,
                      struct fleet_error *err);
struct source *source_markov_new(const struct training_data *config, uint64_t seed);

/* Add to a digest: a number; the size, beginning and end of every file. */
struct data_files;
void source_digest_number(struct fleet_sha256 *sha, int64_t number);
void source_digest_files(const struct data_files *files, struct fleet_sha256 *sha);

#endif
