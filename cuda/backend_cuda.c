/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A handle is a stream of the process's device. What a kernel reads beside its operands (scalars,
 * tables) is written by store kernels in the same stream, so the next step may change it while this
 * one still runs.
 */
#include "cuda/backend_cuda.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/backend.h"
#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/operators.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/ops/operand.h"

struct handle {
    struct backend base;
    struct cuda_device *device;
    cudaStream_t stream;
    struct handle *second; /* of the other queue; NULL in that handle itself */
};

static struct handle *handle_of(struct backend *backend)
{
    return (struct handle *)backend;
}

struct CUstream_st *cuda_backend_stream(struct backend *backend)
{
    return handle_of(backend)->stream;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *cuda_allocate(struct backend *backend, size_t bytes, struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    void *memory;

    if (bytes > PTRDIFF_MAX) {
        (void)fleet_error(err, -ENOMEM, "allocate %zu bytes on the GPU: too many", bytes);
        return NULL;
    }
    return device_allocate(h->device, h->stream, bytes, &memory, err) < 0 ? NULL : memory;
}

static void cuda_deallocate(struct backend *backend, void *memory)
{
    (void)backend;
    (void)cudaFree(memory); /* waits for what still uses it; a lost context has freed it */
}

static void *cuda_allocate_host(struct backend *backend, size_t bytes, struct fleet_error *err)
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

static void cuda_deallocate_host(struct backend *backend, void *memory)
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
    cudaError_t status = cudaMemcpyAsync(device, give, bytes, cudaMemcpyHostToDevice, h->stream);

    if (status == cudaSuccess)
        status = staging_give_later(&h->device->staging, give, h->stream);
    device_die(h->device, status, "copy to the device");
}

static void receive_later(struct handle *h, void *host, const void *device, size_t bytes)
{
    device_die(h->device, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, h->stream),
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

static void cuda_copy_in(struct backend *backend, void *device, const void *host, size_t bytes)
{
    struct handle *h = handle_of(backend);

    for (size_t at = 0; at < bytes; at += piece(bytes - at)) {
        void *pinned = take(h, piece(bytes - at));
        memcpy(pinned, (const char *)host + at, piece(bytes - at));
        send(h, (char *)device + at, pinned, piece(bytes - at));
    }
}

static void cuda_copy_out(struct backend *backend, void *host, const void *device, size_t bytes)
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

static void cuda_copy_out_later(struct backend *backend, void *host, const void *device,
                                size_t bytes)
{
    if (bytes)
        receive_later(handle_of(backend), host, device, bytes);
}

static void cuda_clear(struct backend *backend, void *device, size_t bytes)
{
    struct handle *h = handle_of(backend);

    if (bytes)
        device_die(h->device, cudaMemsetAsync(device, 0, bytes, h->stream), "clear memory");
}

static void *cuda_map(struct backend *backend, void *device, size_t bytes,
                      enum backend_access access)
{
    struct handle *h = handle_of(backend);
    void *host = take(h, bytes ? bytes : 1);

    if (bytes && access != BACKEND_WRITE && access != BACKEND_FEED)
        receive(h, host, device, bytes);
    return host;
}

static void cuda_unmap(struct backend *backend, void *device, size_t bytes,
                       enum backend_access access, void *host)
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
    device_die(h->device, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, h->stream),
               "copy to the device");
    wait_for(h, "copy to the device"); /* another thread's queue may read it next */
    end_copy(h);
    staging_give(&h->device->staging, host);
}

/* ---- arithmetic outside of programs ---------------------------------------------------------- */

static void cuda_add(struct backend *backend, float *accumulator, const float *addend,
                     int64_t count)
{
    struct handle *h = handle_of(backend);

    device_die(h->device, fleet_cuda_accumulate(h->stream, accumulator, addend, count), "add");
}

/* The host reads or reuses `halves` next. */
static void cuda_narrow(struct backend *backend, uint16_t *halves, const float *from, float scale,
                        int64_t count)
{
    struct handle *h = handle_of(backend);

    device_die(h->device, fleet_cuda_narrow(h->stream, halves, from, scale, count),
               "convert to fp16");
    wait_for(h, "convert to fp16");
}

static void cuda_widen(struct backend *backend, float *to, const uint16_t *halves, float scale,
                       int64_t count)
{
    struct handle *h = handle_of(backend);

    device_die(h->device, fleet_cuda_widen(h->stream, to, halves, scale, count),
               "convert from fp16");
    wait_for(h, "convert from fp16");
}

/* ---- operators ------------------------------------------------------------------------------- */

static bool is_copy(enum op_kind kind)
{
    return kind == OP_RESHAPE || kind == OP_MEMCPY;
}

static enum device_fault_kind fault_kind(enum op_kind kind)
{
    switch (kind) {
    case OP_EMBEDDING:
        return DEVICE_FAULT_ID;
    case OP_CROSS_ENTROPY:
        return DEVICE_FAULT_TARGET;
    case OP_CROSS_ENTROPY_GRAD:
        return DEVICE_FAULT_TARGET_GRAD;
    default:
        return DEVICE_FAULT_NONE;
    }
}

static void expect_fault(struct cuda_device *device, const struct program *program,
                         const struct program_op *op)
{
    const struct program_var *first = operand_in(program, op, 0);
    enum device_fault_kind kind = fault_kind(op->kind);

    if (kind == DEVICE_FAULT_ID)
        device->fault_of[kind] = (struct device_fault){
            .limit = operand_in(program, op, 1)->shape[0], .row = first->shape[1]};
    else if (kind != DEVICE_FAULT_NONE)
        device->fault_of[kind].limit = operand_columns(first);
}

/* Room for a row a tensor of the gradient. */
static int reserve_gradients(struct cuda_device *device, const struct program *program,
                             struct fleet_error *err)
{
    size_t bytes = (size_t)program->var_count * sizeof(*device->gradients);
    size_t had = device->gradients_bytes;
    int rc =
        device_reserve(device, (void **)&device->gradients, &device->gradients_bytes, bytes, err);

    if (rc < 0 || bytes <= had)
        return rc;
    free(device->gradient_rows);
    device->gradient_rows = calloc(1, bytes);
    fleet_assert(device->gradient_rows != NULL);
    return 0;
}

static int cuda_prepare(struct backend *backend, const struct program *program,
                        const struct program_op *op, struct fleet_error *err)
{
    struct cuda_device *device = handle_of(backend)->device;
    const char *refusal = is_copy(op->kind) ? NULL : cuda_operator_refusal(program, op);
    int rc;

    if (refusal)
        return fleet_error(err, -ENOTSUP, "the GPU has no kernel for this: %s", refusal);
    expect_fault(device, program, op);
    rc = device_reserve(device, &device->scratch, &device->scratch_bytes,
                        is_copy(op->kind) ? 0 : cuda_operator_scratch(program, op), err);
    if (rc == 0)
        rc = cuda_operator_plan(device->products, program, op, err);
    return rc == 0 && op->kind == OP_GRAD_NORM ? reserve_gradients(device, program, err) : rc;
}

static bool is_known(const struct fleet_cuda_scalars *a, const struct fleet_cuda_scalars *b)
{
    return a->step == b->step && a->first_sample == b->first_sample &&
           a->update_1based == b->update_1based && a->gradient_scale == b->gradient_scale &&
           a->learning_rate == b->learning_rate;
}

/* What differs from run to run, once for all kernels of the run; a graph's come before it. */
static cudaError_t bring_scalars(struct handle *h, const struct run_scalars *s)
{
    struct cuda_device *device = h->device;
    struct fleet_cuda_scalars wanted = {.step = s->step,
                                        .first_sample = s->first_sample,
                                        .update_1based = s->update_1based,
                                        .gradient_scale = s->gradient_scale,
                                        .learning_rate = s->learning_rate,
                                        .votes = 1, /* the trainer has all of them by now */
                                        .world = 1};
    cudaError_t status;

    if (device->is_capturing || (device->knows_scalars && is_known(&device->known, &wanted)))
        return cudaSuccess;
    status = fleet_cuda_store(h->stream, device->scalars, &wanted, sizeof(wanted));
    if (status == cudaSuccess) {
        device->known = wanted;
        device->knows_scalars = true;
    }
    return status;
}

static cudaError_t bring_gradients(struct handle *h, const struct kernel_call *call)
{
    struct cuda_device *device = h->device;
    int64_t blocks;
    int count = cuda_operator_gradients(call->program, cuda_operator_held(call), call->in[0],
                                        device->gradient_rows, call->program->var_count, &blocks);

    return count < 0 ? cudaErrorInvalidValue
                     : fleet_cuda_store(h->stream, device->gradients, device->gradient_rows,
                                        (size_t)count * sizeof(*device->gradients));
}

static cudaError_t run(struct handle *h, const struct kernel_call *call)
{
    struct cuda_device *device = h->device;
    struct kernel_call with_scratch = *call;
    struct cuda_operator_context context = {.scalars = device->scalars,
                                            .fault = device->faults,
                                            .gradients = device->gradients,
                                            .parameter = device->parameter,
                                            .products = device->products};
    struct fleet_cuda_parameter row;
    cudaError_t status = bring_scalars(h, call->scalars);

    if (status == cudaSuccess && call->op->kind == OP_GRAD_NORM)
        status = bring_gradients(h, call);
    if (status == cudaSuccess && cuda_operator_is_optimizer(call->op->kind)) {
        row = cuda_operator_parameter(call);
        status = fleet_cuda_store(h->stream, device->parameter, &row, sizeof(row));
    }
    if (fault_kind(call->op->kind) != DEVICE_FAULT_NONE)
        context.fault = device->faults + fault_kind(call->op->kind);
    with_scratch.scratch = device->scratch;
    return status == cudaSuccess ? cuda_operator_launch(h->stream, &with_scratch, &context)
                                 : status;
}

static cudaError_t copy(struct handle *h, const struct kernel_call *call)
{
    const struct program_var *x = operand_in(call->program, call->op, 0);

    if (call->in[0] == call->out[0] || program_var_bytes(x) == 0)
        return cudaSuccess;
    return cudaMemcpyAsync(call->out[0], call->in[0], program_var_bytes(x), cudaMemcpyDefault,
                           h->stream);
}

static int cuda_run(struct backend *backend, const struct kernel_call *call,
                    struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    int rc = device_check(h->device, err);
    cudaError_t status;

    if (rc < 0)
        return rc;
    status = is_copy(call->op->kind) ? copy(h, call) : run(h, call);
    return status == cudaSuccess ? 0 : device_fail(h->device, status, "start a kernel", err);
}

static kernel_fn cuda_kernel(struct backend *backend, enum op_kind kind)
{
    (void)backend;
    return is_copy(kind) || cuda_operator_exists(kind) ? cuda_run : NULL;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static struct backend *cuda_second(struct backend *backend)
{
    struct handle *second = handle_of(backend)->second;

    return second ? &second->base : backend;
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
    cudaError_t status = rc < 0 ? cudaSuccess : bring_scalars(h, scalars);

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
    *out = &first->base;
    return 0;
}

const char *fleet_cuda_version(void)
{
    return FLEET_VERSION;
}
