/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_EXPORT_H
#define LIBFLEET_PROGRAM_EXPORT_H

/*
 * The weights of a checkpoint as one plain safetensors file: parameters and buffers under their
 * exported names in ascending byte order, pieces joined, optimizer states left out.
 */

#include <stddef.h>
#include <stdint.h>

#include "libfleet/program/manifest.h"

struct fleet_error;

struct export_result {
    char folder[MANIFEST_FOLDER_MAX]; /* the checkpoint's folder, "" if `path` was it */
    int64_t step;
    size_t tensor_count;
    uint64_t bytes;                             /* of the file written */
    char weights_sha256[FLEET_SHA256_HEX_SIZE]; /* of the parameters, as the job's end prints it */
};

/*
 * Write the weights of the checkpoint at `path` to `out_path`, as fleet_file_draft_open() says:
 * atomically, over a regular file or none. "-" is standard output. `path` is a checkpoint's folder,
 * or a folder of checkpoints: the newest sound one of them is taken. Every file is verified first.
 * -ENOENT: no checkpoint there; -EBADMSG: none that is sound; -errno with the path.
 */
int export_checkpoint(const char *path, const char *out_path, struct export_result *out,
                      struct fleet_error *err);

#endif
