/* SPDX-License-Identifier: Apache-2.0 */

/* The memory of the device, which the host cannot touch, and pinned memory of the host. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/cuda_fake/fake.h"
#include "tests/cuda_fake/items.h"

#define MEMORY_DEFAULT (1L << 30)
#define FILL_BY_SYSTEM ((size_t)1 << 20)

struct region {
    char *memory;
    size_t bytes, whole; /* as asked for; whole pages, and one behind them that nobody may touch */
    bool is_device;
    int file;       /* of memory that other processes may open; -1: none */
    bool is_opened; /* it is another process's */
    struct region *next;
};

static struct region *regions;
static size_t used;
static size_t asked, asked_most; /* bytes of the device that the program holds */
static long allocations;
static int opened;

static void protect(const struct region *r, int protection)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (r->is_device && mprotect(r->memory, r->whole - page, protection) != 0)
        fake_die("mprotect: %s", strerror(errno));
}

static void protect_all(int protection)
{
    for (const struct region *r = regions; r; r = r->next)
        protect(r, protection);
}

void fake_memory_open(void)
{
    if (opened++ == 0)
        protect_all(PROT_READ | PROT_WRITE);
}

void fake_memory_close(void)
{
    if (--opened == 0)
        protect_all(PROT_NONE);
}

static bool is_shared(const void *memory)
{
    const char *at = memory;

    for (const struct region *r = regions; r; r = r->next)
        if (at >= r->memory && at < r->memory + r->bytes)
            return r->file >= 0 || r->is_opened;
    return false;
}

void fake_memory_fill(void *memory, int value, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t before = (page - (uintptr_t)memory % page) % page;
    size_t whole = bytes > before ? (bytes - before) / page * page : 0;

    if (value == 0 && whole >= FILL_BY_SYSTEM && !is_shared(memory) &&
        madvise((char *)memory + before, whole, MADV_DONTNEED) == 0) {
        memset(memory, 0, before);
        memset((char *)memory + before + whole, 0, bytes - before - whole);
    } else {
        memset(memory, value, bytes);
    }
}

static bool lies_in(const void *memory, size_t bytes, bool is_device)
{
    const char *from = memory;

    for (const struct region *r = regions; r; r = r->next)
        if (r->is_device == is_device && from >= r->memory && from <= r->memory + r->bytes &&
            bytes <= r->bytes - (size_t)(from - r->memory))
            return true;
    return false;
}

bool fake_memory_is_device(const void *memory, size_t bytes)
{
    return lies_in(memory, bytes, true);
}

bool fake_memory_is_pinned(const void *memory, size_t bytes)
{
    return lies_in(memory, bytes, false);
}

int fake_memory_held(void)
{
    int count = 0;

    for (const struct region *r = regions; r; r = r->next)
        count++;
    return count;
}

static size_t total(void)
{
    return (size_t)fake_setting("FAKE_CUDA_MEMORY", MEMORY_DEFAULT);
}

static cudaError_t make(void **out, size_t bytes, bool is_device)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page + page;
    struct region *r;
    void *memory;

    if (is_device && (used > total() || whole > total() - used))
        return cudaErrorMemoryAllocation;
    memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r = malloc(sizeof(*r));
    if (memory == MAP_FAILED || !r)
        fake_die("allocate %zu bytes: none left", bytes);
    memset(memory, 0xff, whole - page); /* NaNs */
    if (mprotect((char *)memory + whole - page, page, PROT_NONE) != 0)
        fake_die("mprotect: %s", strerror(errno));
    *r = (struct region){memory, bytes, whole, is_device, -1, false, regions};
    regions = r;
    used += is_device ? whole : 0;
    asked += is_device ? bytes : 0;
    asked_most = asked > asked_most ? asked : asked_most;
    allocations += is_device;
    if (opened == 0)
        protect(r, PROT_NONE);
    *out = memory;
    return cudaSuccess;
}

static cudaError_t drop(void *memory, bool is_device)
{
    struct region **at, *r;

    if (!memory)
        return cudaSuccess;
    for (at = &regions; *at && ((*at)->memory != memory || (*at)->is_device != is_device);
         at = &(*at)->next)
        ;
    r = *at;
    if (!r || r->is_opened)
        fake_die("free memory that was not allocated");
    if (r->file >= 0)
        (void)close(r->file);
    *at = r->next;
    used -= is_device ? r->whole : 0;
    asked -= is_device ? r->bytes : 0;
    (void)munmap(r->memory, r->whole);
    free(r);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    int status;

    fake_lock();
    status = fake_call("cudaMalloc");
    if (status == 0)
        status = fake_graph_forbids(NULL);
    if (status == 0)
        status = make(memory, bytes, true);
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    int status;

    fake_lock();
    status = fake_call("cudaMallocHost");
    if (status == 0)
        status = fake_graph_forbids(NULL);
    if (status == 0)
        status = make(memory, bytes, false);
    fake_unlock();
    return (cudaError_t)status;
}

/* Waits for the device, as CUDA's does. The memory is free even where the call reports an error. */
static cudaError_t give_back(void *memory, bool is_device, const char *name)
{
    int status;

    fake_lock();
    status = fake_call(name);
    if (status == 0)
        status = fake_graph_forbids(NULL);
    fake_run_all();
    (void)drop(memory, is_device);
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaFree(void *memory)
{
    return give_back(memory, true, "cudaFree");
}

cudaError_t cudaFreeHost(void *memory)
{
    return give_back(memory, false, "cudaFreeHost");
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *all)
{
    int status;

    fake_lock();
    status = fake_call("cudaMemGetInfo");
    *all = total();
    *available = total() - used;
    fake_unlock();
    return (cudaError_t)status;
}

/* ---- between processes ----------------------------------------------------------------------- */

/* What a handle says: the file of the memory, as /proc names it. Nothing is left of it when its
 * process has ended, but a process that has opened it keeps the memory. */
struct shared {
    int pid, file;
    size_t bytes;
};

/* From now on the region's pages are those of a file. */
static void share(struct region *r)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = r->whole - page;

    r->file = memfd_create("fake-cuda", MFD_CLOEXEC);
    fake_memory_open();
    if (r->file < 0 || write(r->file, r->memory, bytes) != (ssize_t)bytes ||
        mmap(r->memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, r->file, 0) !=
            r->memory)
        fake_die("share %zu bytes: %s", bytes, strerror(errno));
    fake_memory_close();
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
    struct region *r = regions;
    int status;

    fake_lock();
    status = fake_call("cudaIpcGetMemHandle");
    while (status == 0 && r && (r->memory != memory || !r->is_device || r->is_opened))
        r = r->next;
    if (status == 0 && !r)
        fake_die("a handle of memory that was not allocated");
    if (status == 0) {
        struct shared shared = {.pid = getpid(), .bytes = r->bytes};

        fake_run_all();
        if (r->file < 0)
            share(r);
        shared.file = r->file;
        memset(handle, 0, sizeof(*handle));
        memcpy(handle, &shared, sizeof(shared));
    }
    fake_unlock();
    return (cudaError_t)status;
}

/* cudaErrorInvalidResourceHandle: its process has ended, or is this one. */
static cudaError_t open_shared(void **out, const struct shared *shared)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (shared->bytes + page - 1) / page * page + page;
    struct region *r = malloc(sizeof(*r));
    char path[64], *memory;
    int file;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", shared->pid, shared->file);
    file = shared->pid == getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || !r) {
        free(r);
        return cudaErrorInvalidResourceHandle;
    }
    memory = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mmap(memory, whole - page, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_FIXED, file, 0) != memory)
        fake_die("open %zu bytes: %s", shared->bytes, strerror(errno));
    (void)close(file);
    *r = (struct region){memory, shared->bytes, whole, true, -1, true, regions};
    regions = r;
    if (opened == 0)
        protect(r, PROT_NONE);
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned int flags)
{
    struct shared shared;
    int status;

    (void)flags;
    memcpy(&shared, &handle, sizeof(shared));
    fake_lock();
    status = fake_call("cudaIpcOpenMemHandle");
    if (status == 0)
        status = (int)open_shared(memory, &shared);
    fake_unlock();
    return (cudaError_t)status;
}

/* As cudaFree(), it waits for the device and closes even where it reports an error. */
cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    struct region **at, *r;
    int status;

    fake_lock();
    status = fake_call("cudaIpcCloseMemHandle");
    fake_run_all();
    for (at = &regions; *at && ((*at)->memory != memory || !(*at)->is_opened); at = &(*at)->next)
        ;
    r = *at;
    if (!r)
        fake_die("close memory that was not opened");
    *at = r->next;
    (void)munmap(r->memory, r->whole);
    free(r);
    fake_unlock();
    return (cudaError_t)status;
}

/* One line of a process: the most bytes of the device that it held at once, and its allocations. */
__attribute__((destructor)) static void report(void)
{
    const char *file = getenv("FAKE_CUDA_REPORT");
    FILE *out = file && allocations > 0 ? fopen(file, "a") : NULL;

    if (!out)
        return;
    (void)fprintf(out, "%zu %ld\n", asked_most, allocations);
    (void)fclose(out);
}
