/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/backend/guard/guard_backend.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

struct region {
    void *memory;
    size_t bytes; /* whole pages */
    struct region *next;
};

/* Shared by all guards of the process: one may allocate memory that another one's kernels use. */
static struct {
    pthread_mutex_t lock;
    struct region *regions;
    int open; /* calls that are between open_all() and close_all() */
} guarded = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct guard_backend {
    struct backend base;
    struct backend *inner;
};

static struct backend *inner_of(struct backend *backend)
{
    return ((struct guard_backend *)backend)->inner;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void protect_all(int protection)
{
    for (const struct region *r = guarded.regions; r; r = r->next)
        fleet_assert(mprotect(r->memory, r->bytes, protection) == 0);
}

static void open_all(void)
{
    pthread_mutex_lock(&guarded.lock);
    if (guarded.open++ == 0)
        protect_all(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&guarded.lock);
}

static void close_all(void)
{
    pthread_mutex_lock(&guarded.lock);
    fleet_assert(guarded.open > 0);
    if (--guarded.open == 0)
        protect_all(PROT_NONE);
    pthread_mutex_unlock(&guarded.lock);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *guard_allocate(struct backend *backend, size_t bytes, struct fleet_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes / page + 1) * page;
    struct region *region = calloc(1, sizeof(*region));
    void *memory = MAP_FAILED;

    (void)backend;
    fleet_assert(region != NULL);
    if (bytes <= PTRDIFF_MAX)
        memory = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        free(region);
        (void)fleet_error(err, -ENOMEM, "allocate %zu bytes of guarded memory: none left", bytes);
        return NULL;
    }
    pthread_mutex_lock(&guarded.lock);
    *region = (struct region){memory, whole, guarded.regions};
    guarded.regions = region;
    if (guarded.open > 0)
        fleet_assert(mprotect(memory, whole, PROT_READ | PROT_WRITE) == 0);
    pthread_mutex_unlock(&guarded.lock);
    return memory;
}

static void guard_deallocate(struct backend *backend, void *memory)
{
    struct region **at, *region;

    (void)backend;
    if (!memory)
        return;
    pthread_mutex_lock(&guarded.lock);
    for (at = &guarded.regions; *at && (*at)->memory != memory; at = &(*at)->next)
        ;
    region = *at;
    fleet_assert(region != NULL); /* otherwise it was never allocated here */
    *at = region->next;
    pthread_mutex_unlock(&guarded.lock);
    (void)munmap(region->memory, region->bytes);
    free(region);
}

static void *guard_allocate_host(struct backend *backend, size_t bytes, struct fleet_error *err)
{
    return inner_of(backend)->vtable->allocate_host(inner_of(backend), bytes, err);
}

static void guard_deallocate_host(struct backend *backend, void *memory)
{
    inner_of(backend)->vtable->deallocate_host(inner_of(backend), memory);
}

/* ---- what may touch it ----------------------------------------------------------------------- */

static int guard_run(struct backend *backend, const struct kernel_call *call,
                     struct fleet_error *err)
{
    struct backend *inner = inner_of(backend);
    int rc;

    open_all();
    rc = inner->vtable->kernel(inner, call->op->kind)(inner, call, err);
    close_all();
    return rc;
}

static kernel_fn guard_kernel(struct backend *backend, enum op_kind kind)
{
    return inner_of(backend)->vtable->kernel(inner_of(backend), kind) ? guard_run : NULL;
}

static void guard_add(struct backend *backend, float *accumulator, const float *addend,
                      int64_t count)
{
    open_all();
    inner_of(backend)->vtable->add(inner_of(backend), accumulator, addend, count);
    close_all();
}

static void guard_narrow(struct backend *backend, uint16_t *halves, const float *from, float scale,
                         int64_t count)
{
    open_all();
    inner_of(backend)->vtable->narrow(inner_of(backend), halves, from, scale, count);
    close_all();
}

static void guard_widen(struct backend *backend, float *to, const uint16_t *halves, float scale,
                        int64_t count)
{
    open_all();
    inner_of(backend)->vtable->widen(inner_of(backend), to, halves, scale, count);
    close_all();
}

static void guard_copy_in(struct backend *backend, void *device, const void *host, size_t bytes)
{
    open_all();
    inner_of(backend)->vtable->copy_in(inner_of(backend), device, host, bytes);
    close_all();
}

static void guard_copy_out(struct backend *backend, void *host, const void *device, size_t bytes)
{
    open_all();
    inner_of(backend)->vtable->copy_out(inner_of(backend), host, device, bytes);
    close_all();
}

static void guard_clear(struct backend *backend, void *device, size_t bytes)
{
    open_all();
    inner_of(backend)->vtable->clear(inner_of(backend), device, bytes);
    close_all();
}

static void *guard_map(struct backend *backend, void *device, size_t bytes,
                       enum backend_access access)
{
    (void)backend, (void)bytes, (void)access;
    open_all();
    return device;
}

static void guard_unmap(struct backend *backend, void *device, size_t bytes,
                        enum backend_access access, void *host)
{
    (void)backend, (void)bytes, (void)access;
    fleet_assert(host == device);
    close_all();
}

static void guard_free(struct backend *backend)
{
    backend_free(inner_of(backend));
    free(backend);
}

static const struct backend_vtable guard_vtable = {
    .name = "guard",
    .allocate = guard_allocate,
    .deallocate = guard_deallocate,
    .allocate_host = guard_allocate_host,
    .deallocate_host = guard_deallocate_host,
    .kernel = guard_kernel,
    .add = guard_add,
    .narrow = guard_narrow,
    .widen = guard_widen,
    .copy_in = guard_copy_in,
    .copy_out = guard_copy_out,
    .clear = guard_clear,
    .map = guard_map,
    .unmap = guard_unmap,
    .free = guard_free,
};

struct backend *backend_guard_new(struct backend *inner)
{
    struct guard_backend *guard = calloc(1, sizeof(*guard));

    fleet_assert(guard != NULL && inner != NULL);
    *guard = (struct guard_backend){.base.vtable = &guard_vtable, .inner = inner};
    return &guard->base;
}
