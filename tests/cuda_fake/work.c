/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a program puts into a stream: kernels, copies, fills, and work of other libraries.
 */
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_fake/fake.h"
#include "tests/cuda_fake/items.h"

int fake_put_kernel(void *stream, const char *kernel, emulator_body body, const void *arguments,
                    size_t bytes, struct emulator_index grid, struct emulator_index block,
                    size_t dynamic_bytes)
{
    struct item *item;
    int status;

    fake_lock();
    status = fake_call(kernel);
    if (status == 0) {
        item = fake_put(stream, ITEM_KERNEL);
        item->kernel.name = kernel;
        item->kernel.body = body;
        item->kernel.arguments = malloc(bytes);
        if (!item->kernel.arguments)
            fake_die("no memory");
        memcpy(item->kernel.arguments, arguments, bytes);
        item->kernel.argument_bytes = bytes;
        item->kernel.grid = grid;
        item->kernel.block = block;
        item->kernel.dynamic_bytes = dynamic_bytes;
        fake_let_run();
    }
    fake_unlock();
    return status;
}

void fake_put_external(struct CUstream_st *stream, const struct external_work *work, void *context)
{
    struct item *item;

    fake_lock();
    item = fake_put(stream, ITEM_EXTERNAL);
    item->external.work = work;
    item->external.context = context;
    fake_let_run();
    fake_unlock();
}

static void check_side(const void *memory, size_t bytes, bool may_be_device, bool may_be_pinned)
{
    if ((may_be_device && fake_memory_is_device(memory, bytes)) ||
        (may_be_pinned && fake_memory_is_pinned(memory, bytes)))
        return;
    fake_die("an asynchronous copy of %zu bytes with memory that is neither the device's nor "
             "pinned, or over the end of an allocation",
             bytes);
}

void fake_check_item(const struct item *item)
{
    bool is_any = item->copy.way == cudaMemcpyDefault;

    if (item->kind != ITEM_COPY && item->kind != ITEM_FILL)
        return;
    check_side(item->copy.to, item->copy.bytes,
               item->kind == ITEM_FILL || is_any || item->copy.way != cudaMemcpyDeviceToHost,
               item->kind == ITEM_COPY && (is_any || item->copy.way == cudaMemcpyDeviceToHost));
    if (item->kind == ITEM_COPY)
        check_side(item->copy.from, item->copy.bytes,
                   is_any || item->copy.way != cudaMemcpyHostToDevice,
                   is_any || item->copy.way == cudaMemcpyHostToDevice);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    struct item *item;
    int status;

    fake_lock();
    status = fake_call("cudaMemcpyAsync");
    if (status == 0) {
        item = fake_put(stream, ITEM_COPY);
        item->copy.to = to;
        item->copy.from = from;
        item->copy.bytes = bytes;
        item->copy.way = kind;
        fake_check_item(item);
        fake_let_run();
    }
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    struct item *item;
    int status;

    fake_lock();
    status = fake_call("cudaMemsetAsync");
    if (status == 0) {
        item = fake_put(stream, ITEM_FILL);
        item->copy.to = memory;
        item->copy.bytes = bytes;
        item->copy.value = value;
        fake_check_item(item);
        fake_let_run();
    }
    fake_unlock();
    return (cudaError_t)status;
}
