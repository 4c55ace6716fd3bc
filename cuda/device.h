/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

/*
 * The GPU of this process: its streams, pinned staging memory, the working memory of kernels, and
 * what it has done wrong.
 *
 * Threads: the stream of a queue belongs to one thread at a time. Only copies come from any thread,
 * for example of one that saves; they would be captured, so first_use keeps them out of a capture.
 *
 * Errors: cudaErrorInvalidValue, cudaErrorMemoryAllocation and what CUDA does not capture into a
 * graph concern one call. After any other
 * error the context is lost: all calls of this process fail from then on (CUDA's "sticky" errors),
 * and device_fail() remembers the first one. A function without a result ends the process by
 * device_die(), for its caller would go on with wrong values.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/kernels_update.h"
#include "cuda/staging.h"

struct fleet_error;
struct products;

#define DEVICE_QUEUES    2
#define DEVICE_ASIDE     DEVICE_QUEUES /* the stream behind them: copies beside the step */
#define DEVICE_TEXT_SIZE 300

/* The operators that find ids or targets out of range, by kind. */
enum device_fault_kind {
    DEVICE_FAULT_NONE = -1,
    DEVICE_FAULT_ID,          /* EMBEDDING */
    DEVICE_FAULT_TARGET,      /* CROSS_ENTROPY, also of LINEAR */
    DEVICE_FAULT_TARGET_GRAD, /* its gradient */
    DEVICE_FAULTS,
};

/* For the message: sizes of the newest operator of the kind. */
struct device_fault {
    int64_t limit; /* valid numbers are 0 … limit - 1 */
    int64_t row;   /* ids of a sample */
};

struct cuda_device {
    int users;      /* handles */
    int capability; /* compute capability: major · 10 + minor */
    cudaStream_t streams[DEVICE_QUEUES + 1];
    struct staging staging;

    /* of kernels; only the first queue runs operators */
    void *scratch;
    size_t scratch_bytes;
    struct products *products; /* products.h; NULL: there is no cuBLASLt */
    void *product_workspace;
    struct fleet_cuda_scalars *scalars, known; /* on the device, and what they hold */
    bool knows_scalars;
    struct fleet_cuda_gradient *gradients;
    size_t gradients_bytes;
    struct fleet_cuda_parameter *parameter;
    struct fleet_cuda_gradient *gradient_rows; /* of the host, for `gradients` */
    uint64_t *faults;                          /* [DEVICE_FAULTS], kernels.h */
    struct device_fault fault_of[DEVICE_FAULTS];

    bool is_capturing;         /* a graph of the first queue: kernels do not run */
    pthread_mutex_t first_use; /* of the first queue: by a capture, or by a copy of any thread */

    pthread_mutex_t lock; /* guards the two below */
    bool has_failed;
    char failure[DEVICE_TEXT_SIZE];
};

/* The process's device; it starts for its first user, and ends with its last one. Errors of
 * fleet_cuda_backend(). */
int device_open(struct cuda_device **out, struct fleet_error *err);
void device_close(struct cuda_device *device);

/* Make an error of a status, `what` in front. -ENOMEM, -EINVAL, -ENOTSUP for what cannot be
 * captured, or -EIO for what is sticky. */
int device_fail(struct cuda_device *device, cudaError_t status, const char *what,
                struct fleet_error *err);

/* 0, or -EIO with the first sticky error. */
int device_check(struct cuda_device *device, struct fleet_error *err);

/* Log the error and end the process with exit code 1. Does nothing for cudaSuccess. */
void device_die(struct cuda_device *device, cudaError_t status, const char *what);

/* Zeroed device memory; the fill is in `stream`. -ENOMEM says how much is free. */
int device_allocate(struct cuda_device *device, cudaStream_t stream, size_t bytes, void **out,
                    struct fleet_error *err);

/* Make *memory at least `bytes` long; its content is lost. Waits for the first queue. */
int device_reserve(struct cuda_device *device, void **memory, size_t *has, size_t bytes,
                   struct fleet_error *err);

#endif
