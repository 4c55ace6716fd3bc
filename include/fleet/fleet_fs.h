/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_FS_H
#define FLEET_FLEET_FS_H

/*
 * Files and folders on this machine, in HDFS or in S3. The functions are the same for all file
 * systems. They are those of Paddle's `fleet.utils.LocalFS` and `fleet.utils.HDFSClient`.
 *
 * HDFS ("hdfs:…"): the library runs the program HADOOP_HOME/bin/hadoop, without a shell. If a
 * command fails, the library tries it again. A test for a path that does not exist is not a failed
 * command.
 *
 * WebHDFS ("webhdfs://HOST:PORT/path"): the library uses the REST API of HDFS, without the program.
 * HOST:PORT is the address of the name node for HTTP; "swebhdfs:" is the same over TLS. After
 * fleet_fs_open() a path may also be "/path". The setting "user.name=NAME", or else
 * HADOOP_USER_NAME, has the name of the user. Kerberos is not supported. A file is written beside
 * its place and then renamed. If the name node is in safe mode, the library tries the request
 * again.
 *
 * S3 ("s3://BUCKET/KEY"): the library uses the REST API of S3, with AWS' signatures of version 4.
 * After fleet_fs_open() a path may also be KEY or "/KEY". Keys that contain "/" make folders. If a
 * connection breaks, a request times out or the server is busy, the library tries the request
 * again. An object is written whole or not at all. A file above FLEET_S3_PART_BYTES is sent in
 * parts, and appears with the last one. A move copies and deletes one object after the other. An
 * upload of a file with `overwrite` replaces a file at once: the old one stays until the new one is
 * complete. S3 has these settings; an entry of `settings` has priority over a variable of the same
 * name:
 *
 *   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY   required
 *   AWS_SESSION_TOKEN                          for temporary keys
 *   AWS_REGION, AWS_DEFAULT_REGION             [us-east-1]
 *   AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL      http(s)://HOST[:PORT] of another server, as MinIO.
 *                                              URLs then have the bucket in their path [AWS]
 *   AWS_CA_BUNDLE                              file of trusted certificates [the system's]
 *   FLEET_S3_PART_BYTES                        5242880 or more [67108864]
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence:
 *   -ENOENT    the path does not exist (Paddle's FSFileNotExistsError)
 *   -EEXIST    the path exists already (FSFileExistsError)
 *   -ETIMEDOUT a command of hadoop, or a request, took too long and was ended (FSTimeOut)
 *   -ECANCELED hadoop aborted with exit code 134 (FSShellCmdAborted)
 *   -EIO       a command of hadoop failed; *err has the last line of its output (ExecuteError). Or
 *              a server refused a request; *err has its words. Or the server cannot be reached
 *   -EACCES    the server does not accept the keys or the user, or does not allow the request
 *   -ENOTDIR   a parent of the path is a file (local files, WebHDFS)
 *   -ESTALE    the file is not the one that was looked at before
 *   -ENOTSUP   this file system does not have the function
 *   -EINVAL    an argument is wrong. Or S3 would refuse the request every time: there is no such
 *              bucket, it is in another region
 *   -ENOMEM    memory is exhausted
 *   -errno     of the local file system, with the path
 *
 * Threads: several threads may use one struct fleet_fs at once.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fleet_fs;

#define FLEET_FS_SETTINGS_MAX 64

/* Options of HDFS, WebHDFS and S3. A member that is 0 or NULL has the default in brackets. */
struct fleet_fs_options {
    const char *hadoop_home;     /* [HADOOP_HOME of the environment] */
    const char *const *settings; /* "key=value", NULL ends the list. HDFS: hadoop gets each entry as
                                    -Dkey=value. WebHDFS and S3: see above */
    int timeout_ms;              /* of one command or request [300000] */
    int attempts;                /* of one command or request [5] */
    int pause_ms;                /* between two attempts [3000] */
};

/*
 * Open a file system. `url` chooses it: "file:…" or a path without a scheme is local, "hdfs:…" is
 * HDFS by the program, "webhdfs:…" and "swebhdfs:…" by HTTP, "s3://BUCKET…" is a bucket of S3.
 * options may be NULL; they are copied. The caller frees *out with fleet_fs_free(). -EINVAL: the
 * scheme is another one, hadoop_home is missing, or a setting is missing or wrong.
 */
int fleet_fs_open(const char *url, const struct fleet_fs_options *options, struct fleet_fs **out,
                  struct fleet_error *err);
void fleet_fs_free(struct fleet_fs *fs); /* NULL is fine */

/* False: the file system is local. True: a program can open a file only after a download. */
bool fleet_fs_needs_transfer(const struct fleet_fs *fs);

struct fleet_fs_names {
    char **list; /* sorted */
    size_t count;
};
void fleet_fs_names_release(struct fleet_fs_names *names);

/* List the names (not paths) of the folders and files in `path`. If `path` does not exist, both
 * lists are empty. `files` may be NULL. Release both lists. */
int fleet_fs_list(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                  struct fleet_fs_names *files, struct fleet_error *err);

/* Each returns 1 (yes), 0 (no), or an error. */
int fleet_fs_exists(struct fleet_fs *fs, const char *path, struct fleet_error *err);
int fleet_fs_is_file(struct fleet_fs *fs, const char *path, struct fleet_error *err);
int fleet_fs_is_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err);

/* Make a folder and its parents. An existing folder is no error. -EEXIST: the path is a file. */
int fleet_fs_make_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err);

/* Delete a file, or a folder with its content. A missing path is no error. Links are removed, not
 * followed. */
int fleet_fs_delete(struct fleet_fs *fs, const char *path, struct fleet_error *err);

/* Move a file or folder. With `overwrite` the target is deleted first. -ENOENT: the source is
 * missing. -EEXIST: the target exists and `overwrite` is false. */
int fleet_fs_move(struct fleet_fs *fs, const char *from, const char *to, bool overwrite,
                  struct fleet_error *err);

/* Make an empty file. An existing file does not change. -EEXIST: it exists and exist_ok is
 * false. */
int fleet_fs_touch(struct fleet_fs *fs, const char *path, bool exist_ok, struct fleet_error *err);

/* Read a whole file. *out has *bytes bytes and a NUL behind them; the caller frees it. -EFBIG: the
 * file has more than size_max bytes. */
int fleet_fs_read(struct fleet_fs *fs, const char *path, size_t size_max, char **out, size_t *bytes,
                  struct fleet_error *err);

/*
 * Copy a file, or a folder with its content, from this machine (upload) or to it (download). If a
 * copy fails, its partial target is removed, and the copy is tried again. -ENOENT: the source is
 * missing. -EEXIST: the target exists and `overwrite` is false.
 */
int fleet_fs_upload(struct fleet_fs *fs, const char *local, const char *path, bool overwrite,
                    struct fleet_error *err);
int fleet_fs_download(struct fleet_fs *fs, const char *path, const char *local, bool overwrite,
                      struct fleet_error *err);

#define FLEET_FS_TAG_SIZE 128

struct fleet_fs_info {
    bool is_folder;
    uint64_t bytes;              /* of a file */
    char tag[FLEET_FS_TAG_SIZE]; /* of a file; another one after each change: S3's ETag, else the
                                    time of the change */
};

/* What is at `path`. 1, 0 (nothing), or an error. */
int fleet_fs_look(struct fleet_fs *fs, const char *path, struct fleet_fs_info *out,
                  struct fleet_error *err);

/*
 * Write `bytes` bytes of a file, from `offset`, into `fd` at the same offset; `fd` then ends there.
 * So a download that was interrupted can go on. `seen` is what fleet_fs_look() has said of the
 * file. -ESTALE: S3's file is another one now. -ENOTSUP: local files, and HDFS by the program.
 */
int fleet_fs_read_part(struct fleet_fs *fs, const char *path, const struct fleet_fs_info *seen,
                       uint64_t offset, uint64_t bytes, int fd, struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
