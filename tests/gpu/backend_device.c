/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/backend_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cuda/cuda_library.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/ops/operand.h"
#include "tests/numerics/kernel_bytes.h"

#define SEEDS_MAX   4
#define FRAME_BYTES 256 /* before and after an operand; the front one also moves it */
#define FRAME_BYTE  0xa5

struct device_rig {
    struct backend base;
    struct backend *gpu;
    size_t front; /* bytes before an operand: a multiple of 64 */
};

/* An operand on the device: front, data, back. */
struct placed {
    char *memory;
    size_t bytes;
};

static void *place(const struct device_rig *rig, const void *host, size_t bytes, struct placed *out)
{
    const struct backend_vtable *gpu = rig->gpu->vtable;
    size_t all = rig->front + bytes + FRAME_BYTES;
    char *image = malloc(all);
    struct fleet_error err;

    fleet_assert(image != NULL);
    memset(image, FRAME_BYTE, all);
    memcpy(image + rig->front, host, bytes);
    *out = (struct placed){.memory = gpu->allocate(rig->gpu, all, &err), .bytes = bytes};
    if (!out->memory) {
        (void)fprintf(stderr, "%s\n", err.text);
        abort();
    }
    gpu->copy_in(rig->gpu, out->memory, image, all);
    free(image);
    return out->memory + rig->front;
}

/* Bring an operand back; `host` NULL: only look at its frame. */
static bool fetch(const struct device_rig *rig, const struct placed *placed, void *host)
{
    size_t all = rig->front + placed->bytes + FRAME_BYTES;
    unsigned char *image = malloc(all);
    bool whole = true;

    fleet_assert(image != NULL);
    rig->gpu->vtable->copy_out(rig->gpu, image, placed->memory, all);
    for (size_t i = 0; i < all; i++)
        if (i < rig->front || i >= rig->front + placed->bytes)
            whole = whole && image[i] == FRAME_BYTE;
    if (host)
        memcpy(host, image + rig->front, placed->bytes);
    free(image);
    return whole;
}

struct operands {
    struct placed in[OP_INPUTS_MAX], out[OP_OUTPUTS_MAX];
    int over[OP_OUTPUTS_MAX]; /* 1 + the input that the output lies over; 0: none */
};

static void bring(const struct device_rig *rig, const struct kernel_call *call,
                  struct operands *operands, struct kernel_call *device)
{
    *device = *call;
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        if (call->in[i])
            device->in[i] = place(rig, call->in[i], kernel_input_bytes(call, i), &operands->in[i]);
    for (int o = 0; o < call->op->output_count; o++) {
        if (!call->out[o])
            continue;
        for (int i = 0; i < OP_INPUTS_MAX; i++)
            if (call->in[i] == call->out[o])
                operands->over[o] = 1 + i;
        if (operands->over[o])
            device->out[o] = (void *)(uintptr_t)device->in[operands->over[o] - 1];
        else
            device->out[o] =
                place(rig, call->out[o], program_var_bytes(operand_out(call->program, call->op, o)),
                      &operands->out[o]);
    }
}

static int take_back(const struct device_rig *rig, const struct kernel_call *call,
                     const struct operands *operands, struct fleet_error *err)
{
    const char *name = op_definition(call->op->kind)->name;

    for (int i = 0; i < OP_INPUTS_MAX; i++)
        if (operands->in[i].memory && !fetch(rig, &operands->in[i], NULL))
            return fleet_error(err, -EIO, "%s wrote outside of input %d", name, i);
    for (int o = 0; o < call->op->output_count; o++) {
        const struct placed *from =
            operands->over[o] ? &operands->in[operands->over[o] - 1] : &operands->out[o];
        if (from->memory && !fetch(rig, from, call->out[o]))
            return fleet_error(err, -EIO, "%s wrote outside of output %d", name, o);
    }
    return 0;
}

static void put_away(const struct device_rig *rig, const struct operands *operands)
{
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        if (operands->in[i].memory)
            rig->gpu->vtable->deallocate(rig->gpu, operands->in[i].memory);
    for (int o = 0; o < OP_OUTPUTS_MAX; o++)
        if (operands->out[o].memory)
            rig->gpu->vtable->deallocate(rig->gpu, operands->out[o].memory);
}

/* Messages of dgc lie in pinned memory; `scalars` are those of the device's call. */
static void bring_messages(const struct device_rig *rig, const struct kernel_call *call,
                           struct run_scalars *scalars, struct kernel_call *device)
{
    struct run_messages *m = &scalars->messages;
    struct fleet_error err;
    size_t bytes;

    *scalars = *call->scalars;
    device->scalars = scalars;
    if (!m->all)
        return;
    bytes = (size_t)m->words * (size_t)m->ranks * sizeof(*m->all);
    m->all = rig->gpu->vtable->allocate_host(rig->gpu, bytes, &err);
    if (!m->all) {
        (void)fprintf(stderr, "%s\n", err.text);
        abort();
    }
    memcpy(m->all, call->scalars->messages.all, bytes);
}

/* DGC_SELECT writes its part of the messages, DGC the gradient. */
static void take_messages_back(const struct device_rig *rig, const struct kernel_call *call,
                               const struct operands *operands, const struct run_messages *m)
{
    if (call->op->kind == OP_DGC)
        (void)fetch(rig, &operands->in[1], (void *)(uintptr_t)call->in[1]);
    if (!m->all)
        return;
    memcpy(call->scalars->messages.all, m->all,
           (size_t)m->words * (size_t)m->ranks * sizeof(*m->all));
    rig->gpu->vtable->deallocate_host(rig->gpu, m->all);
}

static int device_kernel(struct backend *backend, const struct kernel_call *call,
                         struct fleet_error *err)
{
    const struct device_rig *rig = (struct device_rig *)backend;
    kernel_fn kernel = rig->gpu->vtable->kernel(rig->gpu, call->op->kind);
    struct operands operands = {0};
    struct run_scalars scalars;
    struct kernel_call device;
    int rc = kernel ? backend_prepare(rig->gpu, call->program, call->op, err)
                    : fleet_error(err, -ENOTSUP, "there is no kernel");

    if (rc < 0)
        return rc;
    bring(rig, call, &operands, &device);
    bring_messages(rig, call, &scalars, &device);
    rc = kernel(rig->gpu, &device, err);
    if (rc == 0)
        rc = backend_finish(rig->gpu, err);
    if (rc == 0)
        rc = take_back(rig, call, &operands, err);
    take_messages_back(rig, call, &operands, &scalars.messages);
    put_away(rig, &operands);
    return rc;
}

static kernel_fn device_kernel_of(struct backend *backend, enum op_kind kind)
{
    (void)backend;
    return kind == OP_ALL_REDUCE ? NULL : device_kernel;
}

struct backend *backend_device(uint64_t seed)
{
    static const struct backend_vtable vtable = {.name = "device", .kernel = device_kernel_of};
    static struct device_rig made[SEEDS_MAX];
    static struct backend *gpu;
    struct fleet_error err;

    fleet_assert(seed < SEEDS_MAX);
    if (!gpu && cuda_library_backend(&gpu, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    made[seed] = (struct device_rig){.base.vtable = &vtable, .gpu = gpu, .front = 64 * seed};
    return &made[seed].base;
}
