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
 * Read the archive from `fd` and write its files into the existing `folder`. A complete file
 * replaces an older one atomically (fleet_file_draft_open()). *out is set on success only.
 * -EBADMSG: a name has a slash, an entry is not a regular file, a checksum is wrong, or the stream
 * ends too early. -EINTR: a signal interrupted a read. Else -errno; the error names the path. After
 * an error the files that were complete stay.
 */
int untar(int fd, const char *folder, struct untar_result *out, struct fleet_error *err);

#endif
