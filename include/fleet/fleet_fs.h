/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_FS_H
#define FLEET_FLEET_FS_H

/*
 * Files and folders on this machine or in HDFS: what `fleet.utils.LocalFS` and
 * `fleet.utils.HDFSClient` offer in Python. Both have the same functions.
 *
 * HDFS is reached through the program HADOOP_HOME/bin/hadoop. Its arguments are passed as a list,
 * never through a shell. A command that fails is tried again; a path that exists or does not exist
 * is not a failure.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence:
 *   -ENOENT    the path does not exist (Paddle's FSFileNotExistsError)
 *   -EEXIST    the path exists already (FSFileExistsError)
 *   -ETIMEDOUT a command of hadoop took too long and was killed (FSTimeOut)
 *   -ECANCELED hadoop aborted with exit code 134 (FSShellCmdAborted)
 *   -EIO       a command of hadoop failed, with its last line of output (ExecuteError)
 *   -ENOTSUP   this file system does not have the function
 *   -EINVAL    an argument
 *   -errno     of the local file system, with the path
 *
 * Threads: one file system may be used by several threads.
 */

#include <stdbool.h>
#include <stddef.h>

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fleet_fs;

#define FLEET_FS_SETTINGS_MAX 64

/* Of HDFS. Zeros are the defaults in brackets. */
struct fleet_fs_options {
    const char *hadoop_home;     /* [HADOOP_HOME of the environment] */
    const char *const *settings; /* "key=value", each passed as -Dkey=value; NULL ends the list */
    int timeout_ms;              /* of one command [300000] */
    int attempts;                /* of one command [5] */
    int pause_ms;                /* between two attempts [3000] */
};

/* `url` chooses the file system: "file:…" or a path without a scheme is local, "hdfs:…" is HDFS.
 * options may be NULL. -EINVAL: another scheme, or no hadoop_home. */
int fleet_fs_open(const char *url, const struct fleet_fs_options *options, struct fleet_fs **out,
                  struct fleet_error *err);
void fleet_fs_free(struct fleet_fs *fs); /* NULL is fine */

/* false: local; true: files have to be copied to be opened by programs. */
bool fleet_fs_needs_transfer(const struct fleet_fs *fs);

struct fleet_fs_names {
    char **list; /* sorted */
    size_t count;
};
void fleet_fs_names_release(struct fleet_fs_names *names);

/* Names, not paths, of the folders and files in `path`. Both are empty if it does not exist. files
 * may be NULL: folders only. */
int fleet_fs_list(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                  struct fleet_fs_names *files, struct fleet_error *err);

/* 1, 0, or an error. */
int fleet_fs_exists(struct fleet_fs *fs, const char *path, struct fleet_error *err);
int fleet_fs_is_file(struct fleet_fs *fs, const char *path, struct fleet_error *err);
int fleet_fs_is_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err);

/* With its parents. An existing folder is fine. -EEXIST: it is a file. */
int fleet_fs_make_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err);

/* A file, or a folder with all in it. A missing path is fine. Links are removed, not followed. */
int fleet_fs_delete(struct fleet_fs *fs, const char *path, struct fleet_error *err);

/* -ENOENT: no source. -EEXIST: the target is there and `overwrite` is false. With `overwrite` the
 * target is deleted first. */
int fleet_fs_move(struct fleet_fs *fs, const char *from, const char *to, bool overwrite,
                  struct fleet_error *err);

/* An empty file. An existing one stays as it is; -EEXIST if exist_ok is false. */
int fleet_fs_touch(struct fleet_fs *fs, const char *path, bool exist_ok, struct fleet_error *err);

/* The whole content, at most size_max bytes (-EFBIG), with a NUL behind it; free(*out). */
int fleet_fs_read(struct fleet_fs *fs, const char *path, size_t size_max, char **out, size_t *bytes,
                  struct fleet_error *err);

/*
 * Copy a file, or a folder with all in it, from or to this machine. -ENOENT: no source. -EEXIST:
 * the target is there and `overwrite` is false. If a copy fails, its partial target is removed and
 * the copy is tried again. On the local file system both copy.
 */
int fleet_fs_upload(struct fleet_fs *fs, const char *local, const char *path, bool overwrite,
                    struct fleet_error *err);
int fleet_fs_download(struct fleet_fs *fs, const char *path, const char *local, bool overwrite,
                      struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
