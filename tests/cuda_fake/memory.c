/* SPDX-License-Identifier: Apache-2.0 */

/* The memory of the device, which the host cannot touch, and pinned memory of the host. */
#include <errno.h>
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

void fake_memory_fill(void *memory, int value, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t before = (page - (uintptr_t)memory % page) % page;
    size_t whole = bytes > before ? (bytes - before) / page * page : 0;

    if (value == 0 && whole >= FILL_BY_SYSTEM &&
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
    *r = (struct region){memory, bytes, whole, is_device, regions};
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
    if (!r)
        fake_die("free memory that was not allocated");
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
