/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/backend/cpu/backend_cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/runtime/backend/cpu/cpu_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define HUGE_PAGE ((uintptr_t)2 << 20)
#define ZEROED    ((size_t)32 << 20) /* bytes that a thread clears at a time */

static const struct cpu_kernels *const kernels_of_level[FLEET_ISA_COUNT] = {
    [FLEET_ISA_PLAIN] = &cpu_kernels_plain,    [FLEET_ISA_AVX2] = &cpu_kernels_avx2,
    [FLEET_ISA_AVX512] = &cpu_kernels_avx512,  [FLEET_ISA_AVX512BF16] = &cpu_kernels_avx512bf16,
    [FLEET_ISA_AMX] = &cpu_kernels_avx512bf16,
};

/* Only huge pages that lie inside: others would take more memory than was asked for. */
static void want_huge_pages(char *memory, size_t bytes)
{
    uintptr_t first = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)memory + bytes) / HUGE_PAGE * HUGE_PAGE;

    if (end > first)
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE); /* a kernel may have none */
}

struct clearing {
    char *memory;
    size_t bytes;
};

static void clear_part(void *context, int64_t part, int thread)
{
    const struct clearing *c = context;
    size_t first = (size_t)part * ZEROED, left = c->bytes - first;

    (void)thread;
    memset(c->memory + first, 0, left < ZEROED ? left : ZEROED);
}

/*
 * By several threads, because a fresh page may take long: a virtual machine asks its host for each.
 */
static void clear(const struct cpu_backend *cpu, char *memory, size_t bytes)
{
    struct clearing clearing = {memory, bytes};
    struct thread_pool *pool = NULL;

    if (bytes < 2 * ZEROED || cpu->clearing_threads < 2 ||
        thread_pool_new(cpu->clearing_threads, &pool, NULL) < 0) {
        memset(memory, 0, bytes);
        return;
    }
    thread_pool_run(pool, (int64_t)((bytes + ZEROED - 1) / ZEROED), clear_part, &clearing);
    thread_pool_free(pool);
}

static void *cpu_allocate(struct backend *backend, size_t bytes, struct fleet_error *err)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = NULL;

    if (bytes > PTRDIFF_MAX || posix_memalign(&memory, 64, rounded ? rounded : 64) != 0) {
        (void)fleet_error(err, -ENOMEM, "allocate %zu bytes of memory: none left", bytes);
        return NULL;
    }
    want_huge_pages(memory, rounded);
    clear(cpu_backend(backend), memory, rounded ? rounded : 64); /* makes all pages */
    return memory;
}

static void cpu_deallocate(struct backend *backend, void *memory)
{
    (void)backend;
    free(memory);
}

static kernel_fn cpu_kernel(struct backend *backend, enum op_kind kind)
{
    const struct cpu_kernels *kernels = cpu_backend(backend)->kernels;

    fleet_assert(kind >= 0 && kind < OP_KIND_COUNT);
    return kernels ? kernels->of[kind] : NULL;
}

static void cpu_add(struct backend *backend, float *accumulator, const float *addend, int64_t count)
{
    cpu_backend(backend)->kernels->add(accumulator, addend, count);
}

static void cpu_narrow(struct backend *backend, uint16_t *halves, const float *from, float scale,
                       int64_t count)
{
    cpu_backend(backend)->kernels->narrow(halves, from, scale, count);
}

static void cpu_widen(struct backend *backend, float *to, const uint16_t *halves, float scale,
                      int64_t count)
{
    cpu_backend(backend)->kernels->widen(to, halves, scale, count);
}

static void cpu_copy(struct backend *backend, void *to, const void *from, size_t bytes)
{
    (void)backend;
    if (bytes)
        memcpy(to, from, bytes);
}

static void cpu_clear(struct backend *backend, void *device, size_t bytes)
{
    (void)backend;
    memset(device, 0, bytes);
}

static void *cpu_map(struct backend *backend, void *device, size_t bytes,
                     enum backend_access access)
{
    (void)backend, (void)bytes, (void)access;
    return device;
}

static void cpu_unmap(struct backend *backend, void *device, size_t bytes,
                      enum backend_access access, void *host)
{
    (void)backend, (void)bytes, (void)access;
    fleet_assert(host == device);
}

static void cpu_free(struct backend *backend)
{
    struct cpu_backend *cpu = cpu_backend(backend);

    thread_pool_free(cpu->pool);
    free(cpu->packed_a);
    free(cpu->packed_b);
    free(cpu->thread_buffers);
    free(cpu);
}

static const struct backend_vtable cpu_vtable = {
    .name = "cpu",
    .allocate = cpu_allocate,
    .deallocate = cpu_deallocate,
    .allocate_host = cpu_allocate,
    .deallocate_host = cpu_deallocate,
    .kernel = cpu_kernel,
    .add = cpu_add,
    .narrow = cpu_narrow,
    .widen = cpu_widen,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
    .clear = cpu_clear,
    .map = cpu_map,
    .unmap = cpu_unmap,
    .free = cpu_free,
};

/*
 * FLEET_ISA does not change this level: it lowers the default, not the level that a test asks for.
 */
static int check_level(enum fleet_isa level, struct fleet_error *err)
{
    enum fleet_isa most = backend_level_of_machine();

    if (level < 0 || level >= FLEET_ISA_COUNT)
        return fleet_error(err, -EINVAL, "CPU back end: level %d, must be 0 to %d", (int)level,
                           FLEET_ISA_COUNT - 1);
    if (level > most)
        return fleet_error(err, -ENOTSUP,
                           "CPU back end: level %s is not supported here, the machine has %s",
                           fleet_isa_names[level], fleet_isa_names[most]);
    return 0;
}

struct backend *backend_cpu_memory_new(int threads)
{
    struct cpu_backend *cpu = calloc(1, sizeof(*cpu));

    fleet_assert(cpu);
    cpu->base.vtable = &cpu_vtable;
    cpu->clearing_threads = threads > 0 ? threads : backend_cpu_thread_count();
    return &cpu->base;
}

int backend_cpu_new(enum fleet_isa level, int threads, struct backend **out,
                    struct fleet_error *err)
{
    struct cpu_backend *cpu;
    int rc = check_level(level, err);

    if (rc < 0)
        return rc;
    if (threads == 0)
        threads = backend_cpu_thread_count();
    cpu = calloc(1, sizeof(*cpu));
    fleet_assert(cpu);
    *cpu = (struct cpu_backend){.base.vtable = &cpu_vtable,
                                .level = level,
                                .kernels = kernels_of_level[level],
                                .threads = threads};
    rc = thread_pool_new(threads, &cpu->pool, err);
    if (rc < 0)
        goto fail;
    cpu->packed_a = cpu_allocate(&cpu->base, CPU_PACKED_A_BYTES, err);
    cpu->packed_b = cpu->packed_a ? cpu_allocate(&cpu->base, CPU_PACKED_B_BYTES, err) : NULL;
    if (cpu->packed_b)
        cpu->thread_buffers = cpu_allocate(&cpu->base, (size_t)threads * CPU_THREAD_BYTES, err);
    if (!cpu->thread_buffers) {
        rc = -ENOMEM;
        goto fail;
    }
    *out = &cpu->base;
    return 0;
fail:
    cpu_free(&cpu->base);
    return rc;
}
