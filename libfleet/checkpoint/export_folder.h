/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_EXPORT_FOLDER_H
#define LIBFLEET_CHECKPOINT_EXPORT_FOLDER_H

/*
 * An export as a folder that transformers' from_pretrained() reads:
 *
 *     model.safetensors      the weights (export.h)
 *     config.json            gpt and llama
 *     vocab.json, merges.txt, tokenizer_config.json      tokenizers bytes and bpe
 *
 * Folder and archive hold the same files with the same content. A model that transformers does not
 * have under these names (resnet, mlp) gets model.safetensors alone.
 */

#include "libfleet/checkpoint/export.h"

/* The small files, made before anything is written. */
struct export_files {
    struct export_small_file {
        const char *name; /* static */
        char *text;       /* heap */
        size_t size;
    } items[4]; /* [count], in the order in which they are written */
    size_t count;
};

/*
 * Make the small files of `source`. The bpe tokenizer's are read from `tokenizer`, a folder with
 * vocab.json and merges.txt; NULL: from where they were when the job ran. -ENOENT, -EINVAL: they
 * are gone or have changed, or the checkpoint has no record of its model. On success release *out.
 */
int export_files_make(const struct export_source *source, const char *tokenizer,
                      struct export_files *out, struct fleet_error *err);
void export_files_release(struct export_files *files);

/* See whether export_folder() could write to `folder`, which is made if need be. -errno, -EINVAL as
 * fleet_file_prepare(). */
int export_folder_prepare(const char *folder, const struct export_files *files,
                          struct fleet_error *err);

/* Each file is replaced atomically; config.json comes last. Errors with the path. */
int export_folder(const struct export_source *source, const struct export_files *files,
                  const char *folder, struct export_result *out, struct fleet_error *err);

/* The same files as a tar archive (POSIX.1-1988 ustar; sizes from 8 GiB on in base 256, as GNU
 * tar). */
int export_archive(const struct export_source *source, const struct export_files *files, int fd,
                   struct export_result *out, struct fleet_error *err);

#endif
