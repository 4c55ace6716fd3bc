/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_DATASET_H
#define AGENT_RUNTIME_DATA_DATASET_H

/*
 * The samples of a job, by number: sample i is the same on every rank and in every run.
 *
 * Text: all files concatenated in order are one sequence of tokens; sample i is `context` tokens
 * from token i · context, its targets are the same shifted by one; n = ⌊(tokens − 1)/context⌋.
 * The last share `data.validation` of the samples is held out: training is [0, training_count),
 * validation [training_count, count).
 *
 * `data.path` is a file, a folder (its files in ascending byte order of their names; left out are
 * sub-folders, hidden files, and links to a file of the same folder, so that nothing is read twice)
 * or a glob (all files that match, in byte order of their paths). Files may not change while they
 * are read: that is noticed at every read (files.h says how), because ranks that join later would
 * see other samples than the ones before.
 *
 * Files are read with pread(), not mapped: a mapped file that shrinks kills its reader with SIGBUS,
 * where a read says what happened; the page cache behind both is the same.
 *
 * BPE tokens are made when the dataset is opened and stay in memory. Images (CIFAR) are records of
 * their files; of a folder, those that end in ".bin" and do not begin with "test". Made-up text
 * needs no path; it has 2^20 samples.
 *
 * Reads may come from several threads at once.
 */

#include <stdint.h>

#include "libfleet/base/digest.h"
#include "libfleet/training/training.h"

struct fleet_error;
struct dataset;

/*
 * Open what `config` names, for samples of `context` tokens (0 for images: the file says the
 * shape). `config` is not kept. Errors name the field and its value: -ENOENT missing or nothing
 * matches, -EACCES and other -errno unreadable, -EINVAL empty, too short for one sample of training
 * (and one of validation, where asked for), or not of the tokenizer's format.
 */
int dataset_open(const struct training_data *config, int64_t context, uint64_t seed,
                 struct dataset **out, struct fleet_error *err);
/* The same, where text that has to be encoded (bpe) may be read up to `enough` tokens only: for
 * a reader of the beginning of the data. */
int dataset_open_enough(const struct training_data *config, int64_t context, uint64_t seed,
                        int64_t enough, struct dataset **out, struct fleet_error *err);
void dataset_free(struct dataset *dataset); /* NULL is fine */

/* Samples in all; the first so many are for training, the last so many for validation. */
int64_t dataset_count(const struct dataset *dataset);
int64_t dataset_training_count(const struct dataset *dataset);
int64_t dataset_validation_count(const struct dataset *dataset);

/* Tokens of the whole sequence; 0 for images. */
int64_t dataset_tokens(const struct dataset *dataset);

/* One more than the largest token or label that can appear: 256 for bytes, 65536 for tokens-u16. */
int64_t dataset_vocabulary(const struct dataset *dataset);

/*
 * Sample `index` of text: tokens[0 … context) and targets[0 … context). -EIO, -ENOENT, -ESTALE if
 * the file fails, is gone, has changed (with its name); -EINVAL if a token is not below
 * `vocabulary` (0 = not checked), with the place.
 */
int dataset_read(const struct dataset *dataset, int64_t index, int64_t vocabulary, int32_t *tokens,
                 int32_t *targets, struct fleet_error *err);

/* The shape of image samples; all 0 for text. */
struct dataset_image {
    int channels, height, width;
};
struct dataset_image dataset_image(const struct dataset *dataset);

/* Image `index`: pixels[channels][height][width], (u/255 - 0.5)/0.25, and its label. Errors as
 * dataset_read(). */
int dataset_read_image(const struct dataset *dataset, int64_t index, float *pixels, int32_t *label,
                       struct fleet_error *err);

/* Nats a token that no model can get below, where it is known (synthetic-markov); else 0. */
double dataset_entropy(const struct dataset *dataset);

/*
 * A digest of the data: tokenizer, context, and for each file its size, the beginning and the
 * end of its content when it was opened. Ranks compare it, so that other data on one
 * of them is found before step 0.
 */
void dataset_digest(const struct dataset *dataset, uint8_t out[FLEET_SHA256_SIZE]);

#endif
