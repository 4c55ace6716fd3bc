/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_EXPORT_H
#define LIBFLEET_CHECKPOINT_EXPORT_H

/*
 * The weights of a checkpoint as one plain safetensors file: parameters and buffers under their
 * exported names in ascending byte order. Pieces are joined, optimizer states are left out. The
 * file's metadata describe the model (job_record.h). export_folder.h writes the files that
 * transformers needs beside it.
 */

#include <stddef.h>
#include <stdint.h>

#include "libfleet/checkpoint/manifest.h"

struct fleet_error;

/* A checkpoint that was found, verified and opened. */
struct export_source;

/*
 * `path` is a checkpoint's folder, or a folder of checkpoints: the newest undamaged one is
 * taken. Every file is verified first. -ENOENT: no checkpoint there; -EBADMSG: all are damaged;
 * -errno with the path.
 */
int export_open(const char *path, struct export_source **out, struct fleet_error *err);
void export_close(struct export_source *source); /* NULL is fine */

/* Its manifest; its folder (with the path before it); the bytes of the file that will be
 * written. Borrowed. */
const struct manifest *export_manifest(const struct export_source *source);
const char *export_path(const struct export_source *source);
uint64_t export_bytes(const struct export_source *source);

struct export_result {
    char folder[MANIFEST_FOLDER_MAX]; /* the checkpoint's folder, "" if `path` was it */
    int64_t step;
    size_t tensor_count;
    uint64_t bytes;                             /* of the file of weights */
    char weights_sha256[FLEET_SHA256_HEX_SIZE]; /* of the parameters, as the job's end prints it */
};

/* Write the file of weights to a descriptor that blocks. -errno. */
int export_weights(const struct export_source *source, int fd, struct export_result *out,
                   struct fleet_error *err);

/* The same to `out_path` as fleet_file_draft_open() says: atomically, over a regular file or
 * none. "-" is standard output. */
int export_file(const struct export_source *source, const char *out_path, struct export_result *out,
                struct fleet_error *err);

/* export_open(), export_file() and export_close(). */
int export_checkpoint(const char *path, const char *out_path, struct export_result *out,
                      struct fleet_error *err);

#endif
