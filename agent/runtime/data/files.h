/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_FILES_H
#define AGENT_RUNTIME_DATA_FILES_H

/*
 * The files that `data.path` names, read as one sequence of bytes that must not change.
 *
 * Every read opens the file, compares it with what files_open() saw and reads from that descriptor:
 * a file that was rewritten, replaced or removed is an error that names it, any number of files
 * needs no descriptors, and several threads may read at once. An open costs about 2 µs, a
 * micro-batch milliseconds.
 *
 * Identity, size and time of the last write tell a change. If a program writes and sets the old
 * time again, the time of the inode has changed. Owner, mode and links change that time, too (a
 * volume that is mounted again, a backup), so the beginning and the end of the content decide
 * then.
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
    int64_t first;                   /* byte of the whole sequence at which it starts */
    uint8_t ends[FLEET_SHA256_SIZE]; /* digest of the first and the last FILES_END bytes */
    _Atomic int64_t inode_ns;        /* time of the inode at which the ends were those */
};

#define FILES_END 65536

struct data_files {
    struct data_file *items; /* [count], empty ones left out */
    int count;
    int64_t size; /* bytes of all */
};

#define FILES_MAX 100000

/*
 * `path`: a file, a folder or a glob, as dataset.h says. `field` is what errors call it
 * ("spec.training.data.path"). -ENOENT missing or nothing matches, -EINVAL all empty or not a file,
 * -errno.
 */
int files_open(const char *field, const char *path, struct data_files *out,
               struct fleet_error *err);

/* Which files of a folder are meant. */
struct data_file_names {
    bool (*wanted)(const char *name);
    const char *words; /* the same for people */
};

/* The same, errors too; of a folder only the files of these `names` (NULL = all). */
int files_open_some(const char *field, const char *path, const struct data_file_names *names,
                    struct data_files *out, struct fleet_error *err);

/* -EINVAL unless every file holds whole units of `bytes`, so that none lies in two files. `unit` is
 * what errors call it ("a token"). */
int files_check_sizes(const struct data_files *files, const char *field, int bytes,
                      const char *unit, struct fleet_error *err);
void files_release(struct data_files *files);

/*
 * out[0 … size) = the bytes from `offset` of the sequence, which must lie inside (asserted).
 * -ESTALE if a file is not what it was, -ENOENT if it is gone, -errno; with its name.
 */
int files_read(const struct data_files *files, const char *field, int64_t offset, size_t size,
               void *out, struct fleet_error *err);

/* Only whether file `index` is what it was. Errors as files_read(). */
int files_check(const struct data_files *files, const char *field, int index,
                struct fleet_error *err);

/* The file that holds byte `offset` of the sequence. Logarithmic. */
const struct data_file *files_at(const struct data_files *files, int64_t offset);

#endif
