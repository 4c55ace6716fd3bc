/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_FS_FS_H
#define DISTRIBUTED_FS_FS_H

/*
 * The interface of the file systems behind fleet_fs.h. fs.c checks the arguments and the rules that
 * all have in common, so an operation gets only what the comments of struct fs_operations allow.
 */

#include "distributed/distributed.h"
#include "include/fleet/fleet_fs.h"

enum fs_kind {
    FS_NOTHING,
    FS_FILE,
    FS_FOLDER
};

struct fs_operations {
    /* Returns what is at `path` (enum fs_kind), or an error. */
    int (*kind)(struct fleet_fs *fs, const char *path, struct fleet_error *err);
    /* List an existing folder. Add each name with fs_names_add(), in any order. */
    int (*list)(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                struct fleet_fs_names *files, struct fleet_error *err);
    int (*make_folder)(struct fleet_fs *fs, const char *path, struct fleet_error *err);
    /* `path` exists. */
    int (*remove)(struct fleet_fs *fs, const char *path, struct fleet_error *err);
    /* `from` exists, `to` does not. */
    int (*move)(struct fleet_fs *fs, const char *from, const char *to, struct fleet_error *err);
    /* `path` does not exist. */
    int (*touch)(struct fleet_fs *fs, const char *path, struct fleet_error *err);
    int (*read)(struct fleet_fs *fs, const char *path, size_t size_max, char **out, size_t *bytes,
                struct fleet_error *err);
    /* The target of a copy does not exist; with `replaces` it may be a file. A failed copy leaves
     * nothing. */
    int (*upload)(struct fleet_fs *fs, const char *local, const char *path,
                  struct fleet_error *err);
    int (*download)(struct fleet_fs *fs, const char *path, const char *local,
                    struct fleet_error *err);
    /* enum fs_kind, or an error; fills *out of a file. */
    int (*look)(struct fleet_fs *fs, const char *path, struct fleet_fs_info *out,
                struct fleet_error *err);
    int (*read_part)(struct fleet_fs *fs, const char *path, const struct fleet_fs_info *seen,
                     uint64_t offset, uint64_t bytes, int fd,
                     struct fleet_error *err); /* NULL: it cannot */
    void (*free)(struct fleet_fs *fs);         /* free `own`; NULL: `own` is not used */
    bool needs_transfer;                       /* fleet_fs_needs_transfer() */
    bool replaces; /* an upload of a file replaces another file at once */
};

#define FS_DEPTH_MAX 64 /* folders in folders */

struct fleet_fs {
    const struct fs_operations *operations;
    char **settings; /* "key=value", NULL at the end */
    int timeout_ms, attempts, pause_ms;
    void *own; /* the state of the operations */
};

extern const struct fs_operations fs_local, fs_hadoop, fs_s3, fs_webhdfs;

/* Open HDFS by the program: set `own`. -EINVAL: `home` is NULL, and HADOOP_HOME is not set. */
int hadoop_open(struct fleet_fs *fs, const char *home, struct fleet_error *err);

/* Open "webhdfs://HOST:PORT…" or "swebhdfs://…": set `own`. -EINVAL: the URL has no host. */
int webhdfs_open(struct fleet_fs *fs, const char *url, struct fleet_error *err);

/* Append a copy of `name`, which has `length` bytes. -ENOMEM. */
int fs_names_add(struct fleet_fs_names *names, const char *name, size_t length,
                 struct fleet_error *err);

/* Copy a file or folder of this machine. The target does not exist. A failed copy leaves
 * nothing. */
int fs_local_copy(const char *from, const char *to, struct fleet_error *err);

#endif
