/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_DATA_DATASET_H
#define DISTRIBUTED_DATA_DATASET_H

/*
 * A data set (fleet_data.h): its options, and either its instances (an in-memory data set) or its
 * place in the files (a queue).
 */

#include <pthread.h>

#include "distributed/data/instance.h"
#include "distributed/data/reader.h"

struct instances {
    struct instance **list;
    size_t count, room;
    uint64_t bytes;
};

/* The memory of the newest batch. */
struct batch_memory {
    struct fleet_slot_values *slots; /* [slot_count] */
    uint8_t **values;                /* [slot_count] */
    size_t *value_room;              /* bytes of each */
    int64_t **offsets;               /* [slot_count][batch_size + 1] */
    char **ids, **contents;          /* [batch_size], each owned */
    int filled;                      /* of ids and contents */
};

struct fleet_dataset {
    bool is_queue;
    struct data_format format;
    struct reader_options commands;
    char *pipe_command, *download;
    int batch_size, threads;
    uint64_t bytes_max, seed, shuffles; /* shuffles so far: each has another order */
    bool merge_by_ins_id;
    char **files;
    int file_count;
    struct instances loaded;
    struct batch_memory batch;
    /* reading batches */
    size_t next;           /* in memory: the next instance */
    int file;              /* a queue: the file that `reader` reads */
    struct reader *reader; /* NULL: none is open */
    bool has_begun;
    /* preloading */
    bool is_preloading;
    pthread_t preloader;
    int preload_result;
    struct fleet_error preload_error;
};

/* Add an instance, which is taken also on failure. -ENOMEM: memory is exhausted, or the instances
 * would have more than bytes_max bytes (0: no limit). */
int instances_add(struct instances *instances, struct instance *instance, uint64_t bytes_max,
                  struct fleet_error *err);
void instances_release(struct instances *instances);

/* Read and parse the next line of `reader`. Returns 1, or 0 after the last line, or an error that
 * names file and line. */
int instance_read(const struct fleet_dataset *dataset, const char *file, struct reader *reader,
                  struct instance **out, struct fleet_error *err);

int batch_open(struct fleet_dataset *dataset, struct fleet_error *err);
void batch_close(struct fleet_dataset *dataset);

/* Is it one in memory, and is nothing being loaded? -EINVAL: NULL; -ENOTSUP, -EALREADY. */
int dataset_in_memory(const char *what, const struct fleet_dataset *d, struct fleet_error *err);

#endif
