/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NCCL_FAKE_FAKE_NCCL_H
#define TESTS_NCCL_FAKE_FAKE_NCCL_H

/* Declarations that the sources of this folder share; README.md says what the library finds. */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/nccl_api.h"
#include "tests/cuda_fake/external.h"

#define PATH_SIZE 512
#define RANKS_MAX 64

#define DECLARE(result, name, parameters) result name parameters;
NCCL_FUNCTIONS(DECLARE)
NCCL_NEW_FUNCTIONS(DECLARE)
#undef DECLARE

enum work_kind {
    WORK_SEND,
    WORK_RECEIVE,
    WORK_COLLECTIVE,
};

/* One operation of a communicator. */
struct work {
    enum work_kind kind;
    struct ncclComm *comm;
    struct work *next; /* of the group, or of the launch */
    cudaStream_t stream;
    int peer;
    uint64_t number; /* of the pair's direction, or of the communicator's collectives */
    bool is_published, is_done;
    /* collectives */
    enum collective {
        ALL_REDUCE,
        REDUCE_SCATTER,
        ALL_GATHER,
        BROADCAST
    } collective;
    const void *send;
    void *receive;
    size_t count, size;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int root;
};

struct ncclComm {
    char folder[PATH_SIZE];
    int rank, ranks;
    int users; /* the program, and launches in streams */
    bool is_aborted, is_revoked;
    int captured;              /* launches of it in graphs */
    int late;                  /* polls until the next thing happens */
    struct work *waiting;      /* group that has not entered its stream */
    uint64_t *sent, *received; /* [ranks] */
    uint64_t collectives, splits;
    bool is_joined;
    struct split *split;      /* being made of this one */
    struct ncclComm *made_of; /* being split: the parent */
};

/* ---- meeting.c: files ------------------------------------------------------------------------ */

void meeting_path(const struct ncclComm *comm, char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Make the file with this content at once: a reader sees all of it or none. */
void meeting_publish(const char *path, const void *data, size_t bytes);
bool meeting_exists(const char *path);
/* False: it is not there. The size must be as expected. */
bool meeting_read(const char *path, void *data, size_t bytes);
void meeting_make_folder(const char *path);

/* ---- work.c: what runs in a stream ----------------------------------------------------------- */

/* Put a list of operations, all of one stream, into it; takes the list and a use of `comm`. */
void work_launch(struct ncclComm *comm, struct work *list);
void work_free(struct work *list);
size_t work_type_size(ncclDataType_t type);

/* ---- nccl.c ---------------------------------------------------------------------------------- */

void fake_nccl_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
uint64_t fake_nccl_draw(void);
void fake_nccl_drop(struct ncclComm *comm); /* a use of it */
void fake_nccl_join_graph(struct ncclComm *comm, const struct work *list);
void fake_nccl_leave_graph(struct ncclComm *comm);
/* Operations of a graph are put into a stream: their numbers, and a use of the communicator. */
void fake_nccl_launch_again(struct ncclComm *comm, struct work *list);
uint64_t fake_nccl_number(struct ncclComm *comm, const struct work *work); /* with the lock */
bool fake_nccl_is_aborted(const struct ncclComm *comm);

extern pthread_mutex_t fake_nccl_lock; /* guards all communicators; held by the functions below */
/* The result of this call of `function`; some fail on request. */
ncclResult_t fake_nccl_call(const char *function);
ncclResult_t fake_nccl_later(struct ncclComm *comm); /* what is asked for ends at a later poll */
void fake_nccl_check_config(const ncclConfig_t *config);
/* A communicator that is made once all its ranks have come to the folder. */
struct ncclComm *fake_nccl_join(const char *folder, int ranks, int rank);
void fake_nccl_expect_quiet(const struct ncclComm *comm, const char *name); /* else abort */

#endif
