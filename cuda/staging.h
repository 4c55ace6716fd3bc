/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_STAGING_H
#define CUDA_STAGING_H

/*
 * Pinned memory of the host, through which copies to and from the device go. Buffers are kept for
 * the next copies of their size, so a step that repeats allocates none. A buffer that the device
 * still reads is not given out.
 *
 * Any thread.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

#define STAGING_BUFFERS   32
#define STAGING_KEPT_MAX  ((size_t)64 << 20) /* larger buffers are freed when they are given back */
#define STAGING_PIECE_MAX ((size_t)4 << 20)  /* copies of more are cut */

struct staging_buffer {
    void *memory;
    size_t bytes;
    cudaEvent_t done; /* the device has read it */
    bool is_taken, is_read_by_device;
};

struct staging {
    pthread_mutex_t lock;
    struct staging_buffer buffers[STAGING_BUFFERS];
    int count;
};

void staging_init(struct staging *staging);
void staging_release(struct staging *staging);

/* *out has room for `bytes`, and is the caller's until one of the two below. */
cudaError_t staging_take(struct staging *staging, size_t bytes, void **out);

/* Give it back: at once, or as soon as what `stream` holds now has ended. */
void staging_give(struct staging *staging, void *memory);
cudaError_t staging_give_later(struct staging *staging, void *memory, cudaStream_t stream);

#endif
