/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLEET_FLEET_DATA_H
#define FLEET_FLEET_DATA_H

/*
 * Data sets of lines with slots: what `paddle.distributed.InMemoryDataset` and `QueueDataset`
 * offer. An in-memory data set is loaded, shuffled on this worker or over all workers, and read in
 * batches. A queue streams its files in order and holds one batch.
 *
 * A line is one instance. It has all slots in order, each as "n v1 … vn", separated by single
 * blanks. With parse_ins_id the line begins with "1 ID", with parse_content then comes "1 TEXT".
 *  - n is at least 1.
 *  - A dense slot has exactly as many values as its variable has elements; all are kept.
 *  - A sparse slot drops ids that are 0, and floats whose magnitude is below 1e-6. If nothing is
 *    left, it has a single 0.
 *
 * Each file goes through pipe_command, a shell command that the user gives; it reads the file and
 * writes lines. Its stderr goes to ours, up to FLEET_DATA_STDERR_MAX bytes a file. The same seed
 * and files give the same order.
 *
 * Every function that can fail returns 0 or a negative errno value, and then fills *err (the last
 * argument, NULL is fine) with one sentence. Errors of a file's content carry file and line.
 *
 * Threads: one thread at a time uses a data set.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fleet.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLEET_DATA_SLOTS_MAX   4096
#define FLEET_DATA_THREADS_MAX 64
#define FLEET_DATA_LINE_MAX    (16 << 20) /* bytes of a line */
#define FLEET_DATA_STDERR_MAX  (1 << 20)  /* bytes of stderr, of the commands of one file */

enum fleet_slot_type {
    FLEET_SLOT_FLOAT,
    FLEET_SLOT_INT64
};

struct fleet_slot {
    const char *name; /* unique */
    enum fleet_slot_type type;
    int64_t elements; /* dense: the variable's elements; 0: sparse */
};

/* Zeros are the defaults in brackets. Texts and slots are copied. */
struct fleet_data_options {
    const struct fleet_slot *slots;
    int slot_count;
    int batch_size;           /* [1] */
    int threads;              /* that read files, at most one for each file [1] */
    const char *pipe_command; /* [cat] */
    const char *download;     /* a shell command that writes the file "$1" [read it here] */
    int timeout_ms;           /* of the commands of one file [3600000] */
    uint64_t bytes_max;       /* in memory, of this worker [16 GiB] */
    bool parse_ins_id, parse_content;
    bool merge_by_ins_id; /* global_shuffle brings equal ids to one worker; parse_ins_id */
    uint64_t seed;
};

struct fleet_dataset;

/* -EINVAL names the option. */
int fleet_dataset_memory(const struct fleet_data_options *options, struct fleet_dataset **out,
                         struct fleet_error *err);
int fleet_dataset_queue(const struct fleet_data_options *options, struct fleet_dataset **out,
                        struct fleet_error *err);
void fleet_dataset_free(struct fleet_dataset *dataset); /* NULL is fine */

/* The files of this worker. They replace earlier ones; loaded instances stay. */
int fleet_dataset_set_files(struct fleet_dataset *dataset, const char *const *files, int count,
                            struct fleet_error *err);

/* ---- in memory ------------------------------------------------------------------------------- */

/*
 * Read all files, in their order with any number of threads; what was loaded before is
 * replaced, but only on success. -EBADMSG: a line that is wrong. -EIO: a command failed.
 * -ETIMEDOUT, -ENOMEM, -EFBIG (stderr): a limit. -ENOTSUP: a queue.
 */
int fleet_dataset_load(struct fleet_dataset *dataset, struct fleet_error *err);

/* The same in threads of its own. wait has the errors of load. -EALREADY: one runs. */
int fleet_dataset_preload(struct fleet_dataset *dataset, struct fleet_error *err);
int fleet_dataset_preload_wait(struct fleet_dataset *dataset, struct fleet_error *err);

/* Put the instances of this worker into a random order. */
int fleet_dataset_local_shuffle(struct fleet_dataset *dataset, struct fleet_error *err);

/*
 * Send each instance to a random worker, or with merge_by_ins_id to worker XXH64(id) mod N; then
 * shuffle there. Every rank of the group calls it. Errors: those of the group's operations; then
 * nothing has changed.
 */
int fleet_dataset_global_shuffle(struct fleet_dataset *dataset, struct fleet_group *group,
                                 struct fleet_error *err);

/* Permute the values of some slots among the instances of this worker, to measure what a slot is
 * worth. -ENOENT names a slot that does not exist. */
int fleet_dataset_slots_shuffle(struct fleet_dataset *dataset, const char *const *names, int count,
                                struct fleet_error *err);

/* Forget all instances. */
void fleet_dataset_release_memory(struct fleet_dataset *dataset);

/* Number of instances: of this worker, or of all ranks of the group (a collective). */
int fleet_dataset_size(struct fleet_dataset *dataset, int64_t *out, struct fleet_error *err);
int fleet_dataset_size_of_all(struct fleet_dataset *dataset, struct fleet_group *group,
                              int64_t *out, struct fleet_error *err);

/* ---- batches --------------------------------------------------------------------------------- */

struct fleet_slot_values {
    union {
        const float *floats;
        const uint64_t *ids;
    } values;
    const int64_t *offsets; /* [size + 1]: instance i has values[offsets[i] … offsets[i + 1]) */
};

struct fleet_batch {
    int size;                        /* instances; the last batch may be smaller */
    struct fleet_slot_values *slots; /* [slot_count] */
    const char *const *ids;          /* [size], NULL without parse_ins_id */
    const char *const *contents;     /* likewise */
};

/* Begin at the first instance. A queue opens its files again. */
int fleet_dataset_begin(struct fleet_dataset *dataset, struct fleet_error *err);

/* The next batch, valid until the next call: 1; 0 at the end; or an error. */
int fleet_dataset_next(struct fleet_dataset *dataset, struct fleet_batch *out,
                       struct fleet_error *err);

#ifdef __cplusplus
}
#endif

#endif
