/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_FS_H
#define FLEET_FLEET_FS_H

/*
 * Files and folders on this machine, in HDFS or in S3: what `fleet.utils.LocalFS` and
 * `fleet.utils.HDFSClient` offer in Python. All have the same functions.
 *
 * HDFS is reached through the program HADOOP_HOME/bin/hadoop. Its arguments are passed as a list,
 * never through a shell. A command that fails is tried again; a path that exists or does not exist
 * is not a failure.
 *
 * HDFS without that program is reached by its REST API, WebHDFS: "webhdfs://HOST:PORT/path", or
 * "/path", where HOST:PORT is the name node's address for HTTP; "swebhdfs:" is the same over TLS.
 * The name of the user is the setting "user.name=NAME", or HADOOP_USER_NAME. Kerberos is not
 * supported. A file is written beside its place and renamed.
 *
 * S3 and what speaks its protocol is reached by HTTP, with AWS' signatures of version 4. A path is
 * "s3://BUCKET/KEY", or KEY with or without "/" before it. A folder is what keys with "/" make of
 * it. A request is tried again after broken connections, timeouts and answers that the server is
 * busy. An object is written whole or not at all; files above FLEET_S3_PART_BYTES are sent in parts
 * and appear with the last one. A move copies and deletes, object by object. With `overwrite` an
 * upload of a file replaces a file: the old one stays until the new one is complete. These
 * variables say where it is; entries of `settings` with their names go before them:
 *
 *   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY   needed
 *   AWS_SESSION_TOKEN                          of temporary keys
 *   AWS_REGION, AWS_DEFAULT_REGION             [us-east-1]
 *   AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL      http(s)://HOST[:PORT] of MinIO and others; the
 *                                              bucket is in the path then [AWS itself]
 *   AWS_CA_BUNDLE                              certificates that are trusted [the system's]
 *   FLEET_S3_PART_BYTES                        5242880 or more [67108864]
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence:
 *   -ENOENT    the path does not exist (Paddle's FSFileNotExistsError)
 *   -EEXIST    the path exists already (FSFileExistsError)
 *   -ETIMEDOUT a command of hadoop, or a request, took too long and was ended (FSTimeOut)
 *   -ECANCELED hadoop aborted with exit code 134 (FSShellCmdAborted)
 *   -EIO       a command of hadoop failed, with its last line of output (ExecuteError); S3 refused
 *              a request, with its words, or cannot be reached
 *   -EACCES    S3 does not accept the keys, or does not allow it
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

/* Of HDFS and S3. Zeros are the defaults in brackets. */
struct fleet_fs_options {
    const char *hadoop_home;     /* [HADOOP_HOME of the environment] */
    const char *const *settings; /* "key=value", NULL ends the list. HDFS: each is passed as
                                    -Dkey=value. S3: see above */
    int timeout_ms;              /* of one command or request [300000] */
    int attempts;                /* of one command or request [5] */
    int pause_ms;                /* between two attempts [3000] */
};

/*
 * `url` chooses the file system: "file:…" or a path without a scheme is local, "hdfs:…" is HDFS by
 * the program, "webhdfs:…" and "swebhdfs:…" by HTTP, "s3://BUCKET…" is a bucket of S3. options may
 * be NULL. -EINVAL: another scheme, no hadoop_home, a setting that is missing or wrong.
 */
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
