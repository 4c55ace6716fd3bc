/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A handle is a stream of the process's device: its queues, events and graphs, and the table of the
 * back end. backend_cuda_memory.c copies, backend_cuda_operators.c runs operators.
 */
#include "cuda/backend_cuda.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "cuda/backend_cuda_internal.h"
#include "cuda/graph.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

struct CUstream_st *cuda_backend_stream(struct backend *backend)
{
    return handle_of(backend)->stream;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static struct backend *cuda_second(struct backend *backend)
{
    struct handle *second = handle_of(backend)->second;

    return second ? &second->base : backend;
}

static struct backend *cuda_aside(struct backend *backend)
{
    return &handle_of(backend)->aside->base;
}

static int cuda_event_new(struct backend *backend, struct backend_event **out,
                          struct fleet_error *err)
{
    cudaEvent_t event = NULL;
    cudaError_t status = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);

    if (status != cudaSuccess)
        return device_fail(handle_of(backend)->device, status, "make an event", err);
    *out = (struct backend_event *)event;
    return 0;
}

static void cuda_event_free(struct backend *backend, struct backend_event *event)
{
    (void)backend;
    (void)cudaEventDestroy((cudaEvent_t)event);
}

static int cuda_record(struct backend *backend, struct backend_event *event,
                       struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    cudaError_t status = cudaEventRecord((cudaEvent_t)event, h->stream);

    return status == cudaSuccess ? 0 : device_fail(h->device, status, "record an event", err);
}

static int cuda_await(struct backend *backend, struct backend_event *event, struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    cudaError_t status = cudaStreamWaitEvent(h->stream, (cudaEvent_t)event, 0);

    return status == cudaSuccess ? 0 : device_fail(h->device, status, "wait for an event", err);
}

static int cuda_event_wait(struct backend *backend, struct backend_event *event,
                           struct fleet_error *err)
{
    cudaError_t status = cudaEventSynchronize((cudaEvent_t)event);

    return status == cudaSuccess
               ? 0
               : device_fail(handle_of(backend)->device, status, "wait for a copy", err);
}

/* A capture of the first queue goes on without us (device.h, first_use). */
static int cuda_wait(struct backend *backend, struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    cudaError_t status;

    if (h->second)
        pthread_mutex_lock(&h->device->first_use);
    status = cudaStreamSynchronize(h->stream);
    if (h->second)
        pthread_mutex_unlock(&h->device->first_use);
    return status == cudaSuccess ? 0 : device_fail(h->device, status, "wait for the kernels", err);
}

static bool cuda_captures(struct backend *backend)
{
    (void)backend;
    return graph_is_wanted();
}

static int cuda_capture_begin(struct backend *backend, struct fleet_error *err)
{
    struct handle *h = handle_of(backend);

    return graph_begin(h->device, h->stream, err);
}

static int cuda_capture_end(struct backend *backend, struct backend_graph **out,
                            struct fleet_error *err)
{
    struct handle *h = handle_of(backend);

    return graph_end(h->device, h->stream, out, err);
}

static int cuda_replay(struct backend *backend, struct backend_graph *graph,
                       const struct run_scalars *scalars, struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    int rc = device_check(h->device, err);
    cudaError_t status = rc < 0 ? cudaSuccess : cuda_bring_scalars(h, scalars);

    if (status != cudaSuccess)
        return device_fail(h->device, status, "bring what a graph reads", err);
    return rc < 0 ? rc : graph_launch(h->device, h->stream, graph, err);
}

static void cuda_graph_free(struct backend *backend, struct backend_graph *graph)
{
    graph_free(handle_of(backend)->stream, graph);
}

static int say_fault(const struct cuda_device *device, enum device_fault_kind kind, uint64_t found,
                     struct fleet_error *err)
{
    const struct device_fault *fault = &device->fault_of[kind];
    int64_t at = (int64_t)found - 1;

    if (kind == DEVICE_FAULT_ID)
        return fleet_error(err, -EINVAL,
                           "embedding: the id at position %" PRId64 " of sample %" PRId64
                           " is out of range, must be 0 to %" PRId64,
                           at % fault->row, at / fault->row, fault->limit - 1);
    return fleet_error(err, -EINVAL,
                       "cross_entropy: the target of row %" PRId64
                       " is out of range, must be 0 to %" PRId64,
                       at, fault->limit - 1);
}

/* Faults are read here only; they are cleared for the next run. */
static int find_fault(struct handle *h, struct fleet_error *err)
{
    struct cuda_device *device = h->device;
    uint64_t found[DEVICE_FAULTS];

    cuda_copy_out(&h->base, found, device->faults, sizeof(found));
    for (int kind = 0; kind < DEVICE_FAULTS; kind++)
        if (found[kind]) {
            cuda_clear(&h->base, device->faults, sizeof(found));
            return say_fault(device, kind, found[kind], err);
        }
    return 0;
}

static int cuda_finish(struct backend *backend, struct fleet_error *err)
{
    struct handle *h = handle_of(backend);

    for (int q = 0; q < DEVICE_QUEUES; q++) {
        cudaError_t status = cudaStreamSynchronize(h->device->streams[q]);
        if (status != cudaSuccess)
            return device_fail(h->device, status, "wait for the kernels", err);
    }
    return find_fault(h, err);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void cuda_free(struct backend *backend)
{
    struct handle *h = handle_of(backend);

    device_close(h->device);
    free(h->second);
    free(h->aside);
    free(h);
}

static const struct backend_vtable cuda_vtable = {
    .name = "cuda",
    .allocate = cuda_allocate,
    .deallocate = cuda_deallocate,
    .allocate_host = cuda_allocate_host,
    .deallocate_host = cuda_deallocate_host,
    .kernel = cuda_kernel,
    .add = cuda_add,
    .narrow = cuda_narrow,
    .widen = cuda_widen,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy_out_later = cuda_copy_out_later,
    .clear = cuda_clear,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .prepare = cuda_prepare,
    .second = cuda_second,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .record = cuda_record,
    .await = cuda_await,
    .finish = cuda_finish,
    .wait = cuda_wait,
    .aside = cuda_aside,
    .copy_aside = cuda_copy_aside,
    .event_wait = cuda_event_wait,
    .captures = cuda_captures,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .replay = cuda_replay,
    .graph_free = cuda_graph_free,
    .free = cuda_free,
};

static struct handle *handle_new(struct cuda_device *device, int queue)
{
    struct handle *h = calloc(1, sizeof(*h));

    fleet_assert(h != NULL);
    *h = (struct handle){
        .base.vtable = &cuda_vtable, .device = device, .stream = device->streams[queue]};
    return h;
}

int fleet_cuda_backend(struct backend **out, struct fleet_error *err)
{
    struct cuda_device *device;
    struct handle *first;
    int rc = device_open(&device, err);

    if (rc < 0)
        return rc;
    first = handle_new(device, 0);
    first->second = handle_new(device, 1);
    first->aside = handle_new(device, DEVICE_ASIDE);
    *out = &first->base;
    return 0;
}

const char *fleet_cuda_version(void)
{
    return FLEET_VERSION;
}
