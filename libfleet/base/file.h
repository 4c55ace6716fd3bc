/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_FILE_H
#define LIBFLEET_BASE_FILE_H

/* Whole files: read with a limit, written so that a reader sees the old or the new one. */

#include <stdbool.h>
#include <stddef.h>

struct fleet_error;

/*
 * The whole of `path` ("-" = standard input) as heap text with a final NUL that `*out_size` does
 * not count. -errno if it cannot be read (with the path), -EFBIG if it is larger than `size_max`.
 */
int fleet_file_read(const char *path, size_t size_max, char **out_text, size_t *out_size,
                    struct fleet_error *err);

/*
 * A file on its way: written under a temporary name in the folder of `path`, then renamed to it.
 * Every file that replaces another is made by this.
 *
 * Invariants
 *  (1) The temporary name is random, the file is new (O_EXCL) and no link is followed: processes
 *      with the same number on a shared volume do not meet, and no other process can make the name
 *      point elsewhere.
 *  (2) Only a regular file is replaced. A device, pipe, socket, link or folder at `path` stays.
 *  (3) After a failure the old content stays and the temporary file is removed. A process that is
 *      killed leaves it: a hidden file ".NAME.<16 hex digits>.tmp", which fleet_file_prepare()
 *      removes.
 */
struct fleet_file_draft {
    int fd;          /* write here; -1 = none is open */
    char *path;      /* heap */
    char *temporary; /* heap */
};

enum fleet_file_durability {
    FLEET_FILE_VOLATILE, /* a reader sees the old or the new one; a power cut may lose both */
    /* and a reported write survives a power cut: fsync of the file and its folder */
    FLEET_FILE_DURABLE,
};

/* -EINVAL where (2) forbids it, saying what is there; -errno, with the path. On success commit or
 * discard it. A file that is replaced keeps its permissions. */
int fleet_file_draft_open(const char *path, struct fleet_file_draft *out, struct fleet_error *err);

/* Put it in its place; the draft is gone either way. -errno or -EINVAL as above. */
int fleet_file_draft_commit(struct fleet_file_draft *draft, enum fleet_file_durability durability,
                            struct fleet_error *err);
void fleet_file_draft_discard(struct fleet_file_draft *draft); /* nothing if none is open */

/* All of `data` to a descriptor that blocks. -errno. */
int fleet_file_write_all(int fd, const void *data, size_t size);

/* The whole content at once, by a draft: FLEET_FILE_DURABLE in fleet_file_write(). Errors as
 * above. */
int fleet_file_write(const char *path, const void *data, size_t size, struct fleet_error *err);
int fleet_file_replace(const char *path, const void *data, size_t size,
                       enum fleet_file_durability durability, struct fleet_error *err);

/*
 * For a file that is written much later: make its folder if need be, remove temporary files of
 * `path` that killed processes left at least an hour ago, and check whether fleet_file_write()
 * would work. Errors as above.
 */
int fleet_file_prepare(const char *path, struct fleet_error *err);

/* Can files be made in `folder`? One is made and removed, because permissions alone do not show
 * what a file system allows. -errno with the folder. */
int fleet_file_try_folder(const char *folder, struct fleet_error *err);

/* mkdir -p. -errno with the part that could not be made. */
int fleet_file_make_folder(const char *path, struct fleet_error *err);

/* The folder of the running program's file, heap. -errno if /proc has no answer. */
int fleet_file_own_folder(char **out_folder, struct fleet_error *err);

/* Does it name a place in an object store or HDFS ("s3://…", "hdfs://…", "webhdfs://…",
 * "swebhdfs://…"), and no file of this machine? NULL does not. */
bool fleet_path_is_remote(const char *path);

/* "folder/name" as heap text; `name` alone if it is absolute or remote, or `folder` is "". */
char *fleet_file_join(const char *folder, const char *name);

#endif
