/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_DATASET_H
#define AGENT_RUNTIME_DATA_DATASET_H

/*
 * The samples of a job, by number: sample i is the same on every rank and in every run.
 *
 * Text: all files, one after another, are one sequence of tokens. Sample i is `context` tokens from
 * token i · context; its targets are the same shifted by one. n = ⌊(tokens − 1)/context⌋. The last
 * share `data.validation` of the samples is held out: [0, training_count) is for training,
 * [training_count, count) for validation.
 *
 * `data.path` is a file, a folder or a glob. The files of a folder come in ascending byte order of
 * their names. Sub-folders and hidden files are left out, and also links to a file of the same
 * folder, so that nothing is read twice. The files of a glob come in byte order of their paths.
 * Files may not change while they are read, because ranks that join later would see other samples.
 * Every read detects a change (files.h).
 *
 * Files are read with pread(), not mapped: if a mapped file shrinks, its reader is killed with
 * SIGBUS, but a read returns an error. Both use the same page cache.
 *
 * BPE tokens are computed when the dataset is opened, and stay in memory. Images (CIFAR) are
 * records of their files; in a folder, of the files that end in ".bin" and do not begin with
 * "test". Synthetic text needs no path; it has 2^20 samples.
 *
 * Reads may come from several threads at once.
 */

#include <stdint.h>

#include "libfleet/base/digest.h"
#include "libfleet/training/training.h"

struct fleet_error;
struct dataset;

/*
 * Open the files that `config` names, for samples of `context` tokens (0 for images: the file has
 * the shape). `config` is not kept. Errors name the field and its value. -ENOENT: missing, or no
 * file matches. -EACCES and other -errno: unreadable. -EINVAL: empty, too short for one sample of
 * training (and one of validation, if there is validation), or not in the tokenizer's format.
 */
int dataset_open(const struct training_data *config, int64_t context, uint64_t seed,
                 struct dataset **out, struct fleet_error *err);
/* The same for a reader that needs only the beginning of the data: text that has to be encoded
 * (bpe) may be read up to `enough` tokens only. */
int dataset_open_enough(const struct training_data *config, int64_t context, uint64_t seed,
                        int64_t enough, struct dataset **out, struct fleet_error *err);
void dataset_free(struct dataset *dataset); /* NULL is fine */

/* The number of all samples; of those at the beginning, for training; of those at the end, for
 * validation. */
int64_t dataset_count(const struct dataset *dataset);
int64_t dataset_training_count(const struct dataset *dataset);
int64_t dataset_validation_count(const struct dataset *dataset);

/* Tokens of the whole sequence; 0 for images. */
int64_t dataset_tokens(const struct dataset *dataset);

/* The largest possible token or label plus one: 256 for bytes, 65536 for tokens-u16. */
int64_t dataset_vocabulary(const struct dataset *dataset);

/*
 * Read sample `index` of text: tokens[0 … context) and targets[0 … context). -EIO: the file cannot
 * be read; -ENOENT: it is gone; -ESTALE: it has changed; each with its name. -EINVAL, with the
 * place: a token is not below `vocabulary` (0 = not checked).
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

/* The lowest loss that a model can reach, in nats per token, if it is known (synthetic-markov);
 * else 0. */
double dataset_entropy(const struct dataset *dataset);

/*
 * A digest of the data: tokenizer, context, and for each file its size, and the beginning and the
 * end of its content when it was opened. The ranks compare it, and so find a rank with other data
 * before step 0.
 */
void dataset_digest(const struct dataset *dataset, uint8_t out[FLEET_SHA256_SIZE]);

#endif
