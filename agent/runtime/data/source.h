/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_SOURCE_H
#define AGENT_RUNTIME_DATA_SOURCE_H

/*
 * Where a dataset's samples come from: one kind of files, read by number of the sample. dataset.c
 * chooses one by the tokenizer, holds out the validation share and checks numbers; no other file
 * uses a source.
 */

#include <stdint.h>

#include "libfleet/base/digest.h"
#include "libfleet/training/training.h"

struct fleet_error;
struct source;

struct source_vtable {
    /*
     * Text: tokens [first, first + count) of the one long sequence into out; values that do not fit
     * an int32 as -1 (the caller refuses them). NULL: the source has no such sequence.
     */
    int (*read_tokens)(const struct source *source, int64_t first, int64_t count, int32_t *out,
                       struct fleet_error *err);

    /* Made-up text: the first `count` tokens of sample `index` into out, and the one after them
     * into *out_next. NULL: samples are cut from the sequence. */
    int (*read_sample)(const struct source *source, int64_t index, int64_t count, int32_t *out,
                       int32_t *out_next, struct fleet_error *err);

    /* Images: pixels [channels][height][width] and the label of sample `index`. NULL: not
     * images. */
    int (*read_image)(const struct source *source, int64_t index, float *pixels, int32_t *label,
                      struct fleet_error *err);

    /* "FILE at token N" for errors about a token; NULL: none. Written to `out`. */
    void (*place_of)(const struct source *source, int64_t token, char *out, size_t size);

    /* Add to `sha` what distinguishes this source's content from another's. */
    void (*digest)(const struct source *source, struct fleet_sha256 *sha);
    void (*free)(struct source *source);
};

struct source {
    const struct source_vtable *vtable;
    int64_t tokens;              /* of the sequence; 0 without one */
    int64_t samples;             /* where the source knows; 0: by tokens and context */
    int64_t vocabulary;          /* one more than the largest token or label there can be */
    int channels, height, width; /* images */
    double entropy;              /* nats a token, of made-up text; 0 = not known */
};

#define SOURCE_FIELD "spec.training.data.path" /* what errors about files begin with */

/* One each, chosen by config->tokenizer. Errors as dataset_open(). bpe: the text is encoded
 * until there are `enough` tokens. */
int source_tokens_open(const struct training_data *config, struct source **out,
                       struct fleet_error *err);
int source_bpe_open(const struct training_data *config, int64_t enough, struct source **out,
                    struct fleet_error *err);
int source_cifar_open(const struct training_data *config, struct source **out,
                      struct fleet_error *err);
struct source *source_markov_new(const struct training_data *config, uint64_t seed);

/* Add a number, or size, beginning and end of every file, to a digest. */
struct data_files;
void source_digest_number(struct fleet_sha256 *sha, int64_t number);
void source_digest_files(const struct data_files *files, struct fleet_sha256 *sha);

#endif
