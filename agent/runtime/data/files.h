/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_FILES_H
#define AGENT_RUNTIME_DATA_FILES_H

/*
 * The files that `data.path` names, read as one sequence of bytes that must not change.
 *
 * Every read opens the file, compares it with what files_open() saw and reads from that descriptor:
 * a file that was rewritten, replaced or removed is an error that names it, any number of files
 * needs no descriptors, and several threads may read at once. An open costs about 2 µs, a micro-batch
 * milliseconds.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct fleet_error;

struct data_file {
    char *path;
    struct stat seen; /* by files_open() */
    int64_t first;    /* byte of the whole sequence at which it starts */
};

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

/* The same, errors too; of a folder only the files whose names `wanted` takes (NULL = all). */
int files_open_some(const char *field, const char *path, bool (*wanted)(const char *name),
                    struct data_files *out, struct fleet_error *err);
void files_release(struct data_files *files);

/*
 * out[0 … size) = the bytes from `offset` of the sequence, which must lie inside (asserted). -ESTALE
 * if a file is not what it was, -ENOENT if it is gone, -errno; with its name.
 */
int files_read(const struct data_files *files, const char *field, int64_t offset, size_t size,
               void *out, struct fleet_error *err);

/* The file that holds byte `offset` of the sequence. Logarithmic. */
const struct data_file *files_at(const struct data_files *files, int64_t offset);

#endif
