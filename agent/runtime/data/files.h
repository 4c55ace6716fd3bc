/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_FILES_H
#define AGENT_RUNTIME_DATA_FILES_H

/*
 * The files that `data.path` names, read as one sequence of bytes that must not change.
 *
 * Every read opens the file, compares it with what files_open() saw, and reads from that
 * descriptor. So a file that was rewritten, replaced or removed gives an error that names it. No
 * descriptors stay open, however many files there are, and several threads may read at once. An
 * open costs about 2 µs, a micro-batch milliseconds.
 *
 * Identity, size and time of the last write detect a change. If a program writes and restores the
 * old time, the time of the inode has changed. A change of owner, mode or links changes that time,
 * too (a volume that is mounted again, a backup). So if only the time of the inode differs, the
 * beginning and the end of the content decide.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "libfleet/base/digest.h"

struct fleet_error;

struct data_file {
    char *path;
    struct stat seen;                /* by files_open() */
    int64_t first;                   /* its first byte in the whole sequence */
    uint8_t ends[FLEET_SHA256_SIZE]; /* digest of the first and the last FILES_END bytes */
    _Atomic int64_t inode_ns;        /* time of the inode when `ends` was last compared */
};

#define FILES_END 65536

struct data_files {
    struct data_file *items; /* [count], empty ones left out */
    int count;
    int64_t size; /* bytes of all */
};

#define FILES_MAX 100000

/*
 * `path`: a file, a folder or a glob, as in dataset.h. `field` is its name in errors
 * ("spec.training.data.path"). -ENOENT: missing, or no file matches. -EINVAL: all files are empty,
 * or it is not a file. -errno.
 */
int files_open(const char *field, const char *path, struct data_files *out,
               struct fleet_error *err);

/* A choice among the files of a folder. */
struct data_file_names {
    bool (*wanted)(const char *name);
    const char *words; /* the rule in words, for messages */
};

/* As files_open(), but takes only the files of a folder that `names` selects (NULL = all). */
int files_open_some(const char *field, const char *path, const struct data_file_names *names,
                    struct data_files *out, struct fleet_error *err);

/* -EINVAL unless the size of every file is a multiple of `bytes`, so that no unit lies in two
 * files. `unit` is the unit's name in errors ("a token"). */
int files_check_sizes(const struct data_files *files, const char *field, int bytes,
                      const char *unit, struct fleet_error *err);
void files_release(struct data_files *files);

/*
 * out[0 … size) = the bytes from `offset` of the sequence, which must lie inside (asserted).
 * -ESTALE if a file has changed, -ENOENT if it is gone, -errno; with its name.
 */
int files_read(const struct data_files *files, const char *field, int64_t offset, size_t size,
               void *out, struct fleet_error *err);

/* Check that file `index` has not changed. Errors as files_read(). */
int files_check(const struct data_files *files, const char *field, int index,
                struct fleet_error *err);

/* The file that holds byte `offset` of the sequence. Logarithmic time. */
const struct data_file *files_at(const struct data_files *files, int64_t offset);

#endif
