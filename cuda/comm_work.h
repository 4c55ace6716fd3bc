/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_COMM_WORK_H
#define CUDA_COMM_WORK_H

/*
 * What all communicators over GPU memory do alike (agent/runtime/comm/device.h): copies, types,
 * additions, working memory, and an event behind all of it. A library's struct comm_device begins
 * with a struct comm_work; then the functions below that have a struct comm_device are its slots.
 * Threads and errors are those of device.h.
 */

#include "agent/runtime/comm/device.h"
#include "cuda/device.h"

struct comm_scratch;

struct comm_work {
    struct cuda_device *device;
    cudaStream_t stream; /* of the last work; NULL: there was none */
    cudaEvent_t done;
    bool is_recorded;             /* `done` is behind all work */
    bool is_captured;             /* operations of it are in graphs, with the scratch memory */
    struct comm_scratch *scratch; /* the newest one; NULL: none yet */
};

/* A new struct comm_device of `bytes` bytes, zeroed behind its work. Errors of device_open(), and
 * -EIO. */
int comm_work_new(size_t bytes, struct comm_device **out, struct fleet_error *err);
void comm_work_free(struct comm_device *device); /* waits for what uses its memory */

/* Work goes into the stream of `queue` from now on. */
cudaStream_t comm_work_use(struct comm_work *work, struct backend *queue);

/* test() of COMM_DEVICE_ENDED. */
int comm_work_has_ended(struct comm_work *work, struct fleet_error *err);

void *comm_work_scratch(struct comm_device *device, size_t bytes, struct fleet_error *err);
void comm_work_follow(struct comm_device *device, struct backend *queue);
int comm_work_copy(struct comm_device *device, struct backend *queue, void *to, const void *from,
                   size_t bytes, struct fleet_error *err);
int comm_work_cast(struct comm_device *device, struct backend *queue,
                   const struct comm_device_cast *cast, struct fleet_error *err);
int comm_work_fold(struct comm_device *device, struct backend *queue,
                   const struct comm_device_fold *fold, struct fleet_error *err);
int comm_work_walk(struct comm_device *device, struct backend *queue,
                   const struct comm_device_walk *walk, struct fleet_error *err);

#endif
