/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/staging.h"

#include <string.h>

#include "libfleet/base/assert.h"

#define LEAST_BYTES ((size_t)4096)

void staging_init(struct staging *staging)
{
    *staging = (struct staging){.lock = PTHREAD_MUTEX_INITIALIZER};
}

static void free_buffer(struct staging_buffer *buffer)
{
    if (buffer->done)
        (void)cudaEventDestroy(buffer->done);
    (void)cudaFreeHost(buffer->memory);
    *buffer = (struct staging_buffer){0};
}

void staging_release(struct staging *staging)
{
    for (int i = 0; i < staging->count; i++)
        free_buffer(&staging->buffers[i]);
    pthread_mutex_destroy(&staging->lock);
    *staging = (struct staging){0};
}

/* Powers of two, so that copies of about one size share buffers. */
static size_t rounded(size_t bytes)
{
    size_t size = LEAST_BYTES;

    while (size < bytes && size < STAGING_KEPT_MAX)
        size *= 2;
    return size < bytes ? bytes : size;
}

static bool is_free(struct staging_buffer *buffer)
{
    if (buffer->is_taken)
        return false;
    if (buffer->is_read_by_device && cudaEventQuery(buffer->done) != cudaSuccess)
        return false;
    buffer->is_read_by_device = false;
    return true;
}

/* A place for a new buffer: an unused one, else that of a free one of another size. */
static struct staging_buffer *place_for_new(struct staging *staging)
{
    if (staging->count < STAGING_BUFFERS)
        return &staging->buffers[staging->count++];
    for (int i = 0; i < STAGING_BUFFERS; i++)
        if (is_free(&staging->buffers[i])) {
            free_buffer(&staging->buffers[i]);
            return &staging->buffers[i];
        }
    return NULL;
}

static cudaError_t make(struct staging_buffer *buffer, size_t bytes)
{
    cudaError_t status = cudaMallocHost(&buffer->memory, bytes);

    if (status != cudaSuccess) {
        buffer->memory = NULL;
        return status;
    }
    buffer->bytes = bytes;
    status = cudaEventCreateWithFlags(&buffer->done, cudaEventDisableTiming);
    if (status != cudaSuccess) {
        buffer->done = NULL;
        free_buffer(buffer);
    }
    return status;
}

/* Waits for the device if it reads all that are not taken. */
static cudaError_t wait_for_one(struct staging *staging)
{
    for (int i = 0; i < staging->count; i++)
        if (!staging->buffers[i].is_taken && staging->buffers[i].is_read_by_device)
            return cudaEventSynchronize(staging->buffers[i].done);
    return cudaErrorMemoryAllocation; /* more threads at work than there are buffers */
}

static cudaError_t take(struct staging *staging, size_t size, void **out)
{
    struct staging_buffer *buffer = NULL;
    cudaError_t status = cudaSuccess;

    for (int i = 0; i < staging->count && !buffer; i++)
        if (staging->buffers[i].memory && staging->buffers[i].bytes == size &&
            is_free(&staging->buffers[i]))
            buffer = &staging->buffers[i];
    if (!buffer) {
        buffer = place_for_new(staging);
        if (!buffer && (status = wait_for_one(staging)) == cudaSuccess)
            buffer = place_for_new(staging);
        if (!buffer)
            return status == cudaSuccess ? cudaErrorMemoryAllocation : status;
        status = make(buffer, size);
    }
    if (status == cudaSuccess) {
        buffer->is_taken = true;
        *out = buffer->memory;
    }
    return status;
}

cudaError_t staging_take(struct staging *staging, size_t bytes, void **out)
{
    cudaError_t status;

    pthread_mutex_lock(&staging->lock);
    status = take(staging, rounded(bytes), out);
    pthread_mutex_unlock(&staging->lock);
    return status;
}

static struct staging_buffer *buffer_of(struct staging *staging, const void *memory)
{
    for (int i = 0; i < staging->count; i++)
        if (staging->buffers[i].memory == memory && staging->buffers[i].is_taken)
            return &staging->buffers[i];
    fleet_assert(!"memory that was taken here");
    return NULL;
}

void staging_give(struct staging *staging, void *memory)
{
    struct staging_buffer *buffer;

    pthread_mutex_lock(&staging->lock);
    buffer = buffer_of(staging, memory);
    buffer->is_taken = false;
    if (buffer->bytes > STAGING_KEPT_MAX)
        free_buffer(buffer);
    pthread_mutex_unlock(&staging->lock);
}

cudaError_t staging_give_later(struct staging *staging, void *memory, cudaStream_t stream)
{
    struct staging_buffer *buffer;
    cudaError_t status;

    pthread_mutex_lock(&staging->lock);
    buffer = buffer_of(staging, memory);
    status = cudaEventRecord(buffer->done, stream);
    buffer->is_taken = false;
    buffer->is_read_by_device = status == cudaSuccess;
    pthread_mutex_unlock(&staging->lock);
    return status;
}
