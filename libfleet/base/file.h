/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_FILE_H
#define LIBFLEET_BASE_FILE_H

/* Whole files: read with a limit, written so that a reader sees the old or the new one. */

#include <stddef.h>

struct fleet_error;

/*
 * The whole of `path` ("-" = standard input) as heap text with a final NUL that `*out_size` does not
 * count. -errno if it cannot be read (with the path), -EFBIG if it is larger than `size_max`.
 */
int fleet_file_read(const char *path, size_t size_max, char **out_text, size_t *out_size,
                    struct fleet_error *err);

/*
 * Write `path` atomically and durably: a temporary file beside it, fsync, rename, fsync of the
 * directory. On any failure (-errno, with the path) the old content stays and no file is left over.
 */
int fleet_file_write(const char *path, const void *data, size_t size, struct fleet_error *err);

/*
 * For what is to be written much later: make its folder if need be, and see whether fleet_file_write()
 * would work. -errno with the path, -EISDIR where `path` itself is a folder.
 */
int fleet_file_prepare(const char *path, struct fleet_error *err);

/* Whether files can be made in `folder`: one is made and removed, since permissions alone do not say
 * what a file system allows. -errno with the folder. */
int fleet_file_try_folder(const char *folder, struct fleet_error *err);

/* mkdir -p. -errno with the part that could not be made. */
int fleet_file_make_folder(const char *path, struct fleet_error *err);

/* "folder/name" as heap text; `name` alone if it is absolute or `folder` is "". */
char *fleet_file_join(const char *folder, const char *name);

#endif
