/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/checkpoint/aside.h"

#include <errno.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/checkpoint/layout.h"
#include "libfleet/base/error.h"

/* Other copies from the device, for example of a loss, start between two pieces. */
#define PIECE_BYTES ((size_t)8 << 20)

int aside_reserve(struct aside *aside, struct backend *backend, size_t bytes,
                  struct fleet_error *err)
{
    int rc;

    aside_release(aside);
    aside->memory = backend->vtable->allocate_host(backend, bytes, err);
    if (!aside->memory)
        return err ? err->code : -ENOMEM;
    aside->backend = backend;
    aside->bytes = bytes;
    rc = backend_event_new(backend, &aside->complete, err);
    if (rc == 0)
        rc = backend_event_new(backend, &aside->copied, err);
    if (rc < 0)
        aside_release(aside);
    return rc;
}

bool aside_fits(const struct aside *aside, const struct checkpoint_layout *layout)
{
    return aside->backend && aside->backend == layout->backend && layout->total <= aside->bytes;
}

/* A run of bytes that lies together in the state and in the copy. */
struct run {
    struct backend *queue;
    const uint8_t *from;
    uint8_t *to;
    size_t bytes;
};

static int copy_run(const struct run *run, struct fleet_error *err)
{
    size_t piece;
    int rc = 0;

    for (size_t at = 0; at < run->bytes && rc == 0; at += piece) {
        piece = run->bytes - at < PIECE_BYTES ? run->bytes - at : PIECE_BYTES;
        rc = backend_copy_aside(run->queue, run->to + at, run->from + at, piece, err);
    }
    return rc;
}

static bool lies_in(const uint8_t *data, const struct aside_range *range)
{
    const uint8_t *first = range->first;

    return first && data >= first && data < first + range->bytes;
}

/* Copy the tensors that change soon, or the others. */
static int copy_tensors(struct aside *aside, const struct checkpoint_layout *layout,
                        const struct aside_range *changing, bool change_soon,
                        struct fleet_error *err)
{
    struct run run = {.queue = change_soon ? aside->backend : backend_aside(aside->backend)};
    uint8_t *to = aside->memory;
    int rc;

    for (int kind = 0; kind < CHECKPOINT_SHARD_FILES_MAX; kind++)
        for (size_t i = 0; i < layout->files[kind].count; i++) {
            const struct safetensors_tensor *tensor = &layout->files[kind].tensors[i];
            uint8_t *place = to;

            to += tensor->bytes;
            if (lies_in(tensor->data, changing) != change_soon)
                continue;
            if (run.from + run.bytes == tensor->data && run.to + run.bytes == place) {
                run.bytes += tensor->bytes;
                continue;
            }
            rc = copy_run(&run, err);
            if (rc < 0)
                return rc;
            run = (struct run){run.queue, tensor->data, place, tensor->bytes};
        }
    return copy_run(&run, err);
}

int aside_begin(struct aside *aside, const struct checkpoint_layout *layout,
                const struct aside_range *changing, struct fleet_error *err)
{
    struct backend *queue = backend_aside(aside->backend);
    int rc = copy_tensors(aside, layout, changing, true, err);

    if (rc == 0)
        rc = backend_record(aside->backend, aside->complete, err);
    if (rc == 0)
        rc = backend_await(queue, aside->complete, err);
    if (rc == 0)
        rc = copy_tensors(aside, layout, changing, false, err);
    return rc == 0 ? backend_record(queue, aside->copied, err) : rc;
}

int aside_hold(struct aside *aside, struct fleet_error *err)
{
    return backend_await(aside->backend, aside->copied, err);
}

int aside_wait(struct aside *aside, struct fleet_error *err)
{
    return backend_event_wait(aside->backend, aside->copied, err);
}

void aside_release(struct aside *aside)
{
    struct backend *backend = aside->backend;

    if (!backend)
        return;
    backend_event_free(backend, aside->complete);
    backend_event_free(backend, aside->copied);
    backend->vtable->deallocate_host(backend, aside->memory);
    *aside = (struct aside){0};
}
