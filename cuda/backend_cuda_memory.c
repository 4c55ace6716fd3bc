/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Memory of the device and of the host, copies between the two, and arithmetic outside of programs.
 */
#include <errno.h>
#include <string.h>

#include "cuda/backend_cuda_internal.h"
#include "libfleet/base/error.h"

/* ---- memory ---------------------------------------------------------------------------------- */

void *cuda_allocate(struct backend *backend, size_t bytes, struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    void *memory;

    if (bytes > PTRDIFF_MAX) {
        (void)fleet_error(err, -ENOMEM, "allocate %zu bytes on the GPU: too many", bytes);
        return NULL;
    }
    return device_allocate(h->device, h->stream, bytes, &memory, err) < 0 ? NULL : memory;
}

void cuda_deallocate(struct backend *backend, void *memory)
{
    (void)backend;
    (void)cudaFree(memory); /* waits for what still uses it; a lost context has freed it */
}

void *cuda_allocate_host(struct backend *backend, size_t bytes, struct fleet_error *err)
{
    struct cuda_device *device = handle_of(backend)->device;
    void *memory = NULL;
    cudaError_t status = bytes > PTRDIFF_MAX ? cudaErrorMemoryAllocation
                                             : cudaMallocHost(&memory, bytes ? bytes : 1);

    if (status != cudaSuccess) {
        (void)device_fail(device, status, "allocate memory of the host", err);
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

void cuda_deallocate_host(struct backend *backend, void *memory)
{
    (void)backend;
    (void)cudaFreeHost(memory);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Copies may come from any thread; those in the first queue stay out of captures. */
static void begin_copy(struct handle *h)
{
    if (h->second)
        pthread_mutex_lock(&h->device->first_use);
}

static void end_copy(struct handle *h)
{
    if (h->second)
        pthread_mutex_unlock(&h->device->first_use);
}

static void wait_for(struct handle *h, const char *what)
{
    device_die(h->device, cudaStreamSynchronize(h->stream), what);
}

static void *take(struct handle *h, size_t bytes)
{
    void *memory = NULL;

    device_die(h->device, staging_take(&h->device->staging, bytes, &memory),
               "allocate pinned memory");
    return memory;
}

/* `give` is pinned and taken; the device reads it later. */
static void send(struct handle *h, void *device, void *give, size_t bytes)
{
    cudaError_t status = cudaMemcpyAsync(device, give, bytes, cudaMemcpyDefault, h->stream);

    if (status == cudaSuccess)
        status = staging_give_later(&h->device->staging, give, h->stream);
    device_die(h->device, status, "copy to the device");
}

static void receive_later(struct handle *h, void *host, const void *device, size_t bytes)
{
    device_die(h->device, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, h->stream),
               "copy from the device");
}

static void receive(struct handle *h, void *host, const void *device, size_t bytes)
{
    begin_copy(h);
    receive_later(h, host, device, bytes);
    wait_for(h, "copy from the device");
    end_copy(h);
}

static size_t piece(size_t left)
{
    return left < STAGING_PIECE_MAX ? left : STAGING_PIECE_MAX;
}

void cuda_copy_in(struct backend *backend, void *device, const void *host, size_t bytes)
{
    struct handle *h = handle_of(backend);

    for (size_t at = 0; at < bytes; at += piece(bytes - at)) {
        void *pinned = take(h, piece(bytes - at));
        memcpy(pinned, (const char *)host + at, piece(bytes - at));
        send(h, (char *)device + at, pinned, piece(bytes - at));
    }
}

void cuda_copy_out(struct backend *backend, void *host, const void *device, size_t bytes)
{
    struct handle *h = handle_of(backend);
    void *pinned = bytes ? take(h, piece(bytes)) : NULL;

    for (size_t at = 0; at < bytes; at += piece(bytes - at)) {
        receive(h, pinned, (const char *)device + at, piece(bytes - at));
        memcpy((char *)host + at, pinned, piece(bytes - at));
    }
    if (pinned)
        staging_give(&h->device->staging, pinned);
}

void cuda_copy_out_later(struct backend *backend, void *host, const void *device, size_t bytes)
{
    if (bytes)
        receive_later(handle_of(backend), host, device, bytes);
}

/* States that are offloaded are the host's already. */
int cuda_copy_aside(struct backend *backend, void *host, const void *device, size_t bytes,
                    struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    cudaError_t status = cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, h->stream);

    return status == cudaSuccess ? 0 : device_fail(h->device, status, "copy from the device", err);
}

void cuda_clear(struct backend *backend, void *device, size_t bytes)
{
    struct handle *h = handle_of(backend);

    if (bytes)
        device_die(h->device, cudaMemsetAsync(device, 0, bytes, h->stream), "clear memory");
}

void *cuda_map(struct backend *backend, void *device, size_t bytes, enum backend_access access)
{
    struct handle *h = handle_of(backend);
    void *host = take(h, bytes ? bytes : 1);

    if (bytes && access != BACKEND_WRITE && access != BACKEND_FEED)
        receive(h, host, device, bytes);
    return host;
}

void cuda_unmap(struct backend *backend, void *device, size_t bytes, enum backend_access access,
                void *host)
{
    struct handle *h = handle_of(backend);

    if (bytes && access == BACKEND_FEED) {
        send(h, device, host, bytes);
        return;
    }
    if (!bytes || access == BACKEND_READ) {
        staging_give(&h->device->staging, host);
        return;
    }
    begin_copy(h);
    device_die(h->device, cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, h->stream),
               "copy to the device");
    wait_for(h, "copy to the device"); /* another thread's queue may read it next */
    end_copy(h);
    staging_give(&h->device->staging, host);
}

/* ---- arithmetic outside of programs ---------------------------------------------------------- */

void cuda_add(struct backend *backend, float *accumulator, const float *addend, int64_t count)
{
    struct handle *h = handle_of(backend);

    device_die(h->device, fleet_cuda_accumulate(h->stream, accumulator, addend, count), "add");
}

/* The host reads or reuses `halves` next. */
void cuda_narrow(struct backend *backend, uint16_t *halves, const float *from, float scale,
                 int64_t count)
{
    struct handle *h = handle_of(backend);

    device_die(
        h->device,
        fleet_cuda_convert(h->stream, halves, PROGRAM_FP16, from, PROGRAM_FP32, scale, count),
        "convert to fp16");
    wait_for(h, "convert to fp16");
}

void cuda_widen(struct backend *backend, float *to, const uint16_t *halves, float scale,
                int64_t count)
{
    struct handle *h = handle_of(backend);

    device_die(h->device,
               fleet_cuda_convert(h->stream, to, PROGRAM_FP32, halves, PROGRAM_FP16, scale, count),
               "convert from fp16");
    wait_for(h, "convert from fp16");
}
