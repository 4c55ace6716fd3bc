/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_UNTAR_H
#define CLI_UNTAR_H

/* Unpacks what export_archive() writes (libfleet/checkpoint/export_folder.h), from a pipe into a
 * folder. */

#include <stddef.h>
#include <stdint.h>

struct fleet_error;

struct untar_result {
    size_t files;
    uint64_t bytes;
};

/*
 * Each file is replaced atomically when it is complete (fleet_file_draft_open()). Names with a
 * slash, other types of entries, wrong checksums and a stream that ends before the archive's end
 * are -EBADMSG; the files that were complete by then stay. -EINTR when a signal came; -errno with
 * the path.
 */
int untar(int fd, const char *folder, struct untar_result *out, struct fleet_error *err);

#endif
