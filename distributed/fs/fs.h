/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_FS_H
#define DISTRIBUTED_FS_FS_H

/* What a file system is made of. fs.c checks arguments and rules that all have in common. */

#include "distributed/distributed.h"
#include "include/fleet/fleet_fs.h"

enum fs_kind {
    FS_NOTHING,
    FS_FILE,
    FS_FOLDER
};

struct fs_operations {
    /* What is at `path`: enum fs_kind, or an error. */
    int (*kind)(struct fleet_fs *fs, const char *path, struct fleet_error *err);
    /* Of an existing folder. Names are added with fs_names_add(). */
    int (*list)(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                struct fleet_fs_names *files, struct fleet_error *err);
    int (*make_folder)(struct fleet_fs *fs, const char *path, struct fleet_error *err);
    int (*remove)(struct fleet_fs *fs, const char *path, struct fleet_error *err); /* exists */
    int (*move)(struct fleet_fs *fs, const char *from, const char *to, struct fleet_error *err);
    int (*touch)(struct fleet_fs *fs, const char *path, struct fleet_error *err); /* is not there */
    int (*read)(struct fleet_fs *fs, const char *path, size_t size_max, char **out, size_t *bytes,
                struct fleet_error *err);
    /* The target is not there. A failure leaves nothing. */
    int (*upload)(struct fleet_fs *fs, const char *local, const char *path,
                  struct fleet_error *err);
    int (*download)(struct fleet_fs *fs, const char *path, const char *local,
                    struct fleet_error *err);
    void (*free)(struct fleet_fs *fs); /* what `own` holds; NULL: it is not used */
    bool needs_transfer;
    bool replaces; /* an upload of a file puts it in the place of another file at once */
};

#define FS_DEPTH_MAX 64 /* folders in folders */

struct fleet_fs {
    const struct fs_operations *operations;
    char **settings; /* "key=value", NULL at the end */
    int timeout_ms, attempts, pause_ms;
    void *own; /* of the operations */
};

extern const struct fs_operations fs_local, fs_hadoop, fs_s3, fs_webhdfs;

/* Set `own`. -EINVAL: `home` is NULL, and HADOOP_HOME is not set. */
int hadoop_open(struct fleet_fs *fs, const char *home, struct fleet_error *err);

/* Of "webhdfs://HOST:PORT…" and "swebhdfs://…". -EINVAL: there is no host. */
int webhdfs_open(struct fleet_fs *fs, const char *url, struct fleet_error *err);

/* A copy of `name` of `length` bytes. -ENOMEM. */
int fs_names_add(struct fleet_fs_names *names, const char *name, size_t length,
                 struct fleet_error *err);

/* Copy a file or folder of this machine. The target is not there. A failure leaves nothing. */
int fs_local_copy(const char *from, const char *to, struct fleet_error *err);

#endif
