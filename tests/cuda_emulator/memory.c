/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Device and shared memory, and what the `race` build knows of each byte.
 *
 * Shadow of a byte: the last writer, and two of its readers since. A stamp is
 *
 *   launch 16 bits | block 20 | thread 10 | clock of its warp 17 | atomic 1
 *
 * An earlier access (launch, block, warp w, clock c) is ordered before one of the running thread if
 * its launch is another one, or it is of the same thread, or of the same block and the running warp
 * knows a clock of w above c: then a barrier lies between them.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/internal.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(address, bytes)   ASAN_POISON_MEMORY_REGION(address, bytes)
#define UNPOISON(address, bytes) ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#else
#define POISON(address, bytes)   ((void)(address), (void)(bytes))
#define UNPOISON(address, bytes) ((void)(address), (void)(bytes))
#endif

#define ARENA_BYTES ((size_t)256 << 20)
#define SHARED_AREA ((size_t)512 << 10) /* at the arena's beginning */
#define RED_ZONE    ((size_t)256)       /* between arrays, so that a step beyond meets none */
#define SITES_MAX   64
#define PRESENT     UINT64_C(1) /* a writer: allocated, unwritten */
#define HOST        UINT64_C(2) /* a writer: the host, before any launch */
#define IN_FLIGHT   UINT64_C(3) /* a writer: an asynchronous copy that nobody has waited for */
#define CLOCK_MAX   ((1u << 17) - 1)
#define BLOCK_MAX   ((1u << 20) - 1)

struct shadow {
    uint64_t writer;
    uint64_t reader[2];
};

static char *arena;
static struct shadow *shadow; /* of ARENA_BYTES */
static size_t arena_used = SHARED_AREA;

static struct {
    const void *site;
    void *array;
} sites[SITES_MAX];
static int site_count;
static size_t shared_used, shared_static, dynamic_size;
static void *dynamic;

bool emulator_sees_accesses(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(EMULATOR_FAKE)
    return false;
#else
    return true;
#endif
}

static void *reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED) {
        fprintf(stderr, "emulator: reserve %zu bytes: %s\n", bytes, strerror(errno));
        abort();
    }
    return memory;
}

static void start(void)
{
    if (arena)
        return;
    arena = reserve(ARENA_BYTES);
    POISON(arena, ARENA_BYTES);
    if (emulator_sees_accesses())
        shadow = reserve(ARENA_BYTES * sizeof(struct shadow));
}

static void mark(const void *address, size_t bytes, uint64_t writer)
{
    size_t at = (size_t)((const char *)address - arena);

    for (size_t i = at; shadow && i < at + bytes; i++)
        shadow[i] = (struct shadow){.writer = writer};
}

/* ---- device memory --------------------------------------------------------------------------- */

void *emulator_allocate(size_t bytes)
{
    void *memory;

    start();
    if (bytes > ARENA_BYTES - arena_used - 2 * RED_ZONE) {
        fprintf(stderr, "emulator: %zu bytes of device memory: none left\n", bytes);
        abort();
    }
    memory = arena + arena_used;
    arena_used += (bytes + RED_ZONE - 1) / RED_ZONE * RED_ZONE + RED_ZONE;
    UNPOISON(memory, bytes);
    memset(memory, 0xff,
           bytes); /* NaNs, for the build that does not see reads of unwritten memory */
    mark(memory, bytes, PRESENT);
    return memory;
}

void emulator_release_all(void)
{
    if (!arena)
        return;
    if (shadow)
        memset(shadow + SHARED_AREA, 0, (arena_used - SHARED_AREA) * sizeof(*shadow));
    POISON(arena + SHARED_AREA, arena_used - SHARED_AREA);
    arena_used = SHARED_AREA;
}

void emulator_write(void *device, const void *host, size_t bytes)
{
    if (bytes)
        memcpy(device, host, bytes);
    mark(device, bytes, HOST);
}

bool emulator_is_written(const void *device, size_t bytes)
{
    size_t at = (size_t)((const char *)device - arena);

    for (size_t i = at; shadow && i < at + bytes; i++)
        if (shadow[i].writer <= PRESENT)
            return false;
    return true;
}

/* ---- shared memory --------------------------------------------------------------------------- */

static void *shared_array(size_t bytes)
{
    char *array = arena + shared_used;

    shared_used += (bytes + RED_ZONE - 1) / RED_ZONE * RED_ZONE + RED_ZONE;
    if (shared_used > SHARED_AREA) {
        emulator_fail("shared memory: more than %zu bytes", SHARED_AREA);
        return arena;
    }
    UNPOISON(array, bytes);
    memset(array, 0xff, bytes);
    mark(array, bytes, PRESENT);
    return array;
}

void memory_new_block(size_t dynamic_bytes)
{
    start();
    POISON(arena, SHARED_AREA);
    if (shadow)
        memset(shadow, 0, shared_used * sizeof(*shadow));
    site_count = 0;
    shared_used = 0;
    shared_static = 0;
    dynamic_size = dynamic_bytes;
    dynamic = dynamic_bytes ? shared_array(dynamic_bytes) : NULL;
}

void *memory_dynamic(void)
{
    if (!dynamic)
        emulator_fail("dynamic shared memory, but the launch has none");
    return dynamic;
}

void *memory_shared(const void *site, size_t bytes, const char *name)
{
    for (int i = 0; i < site_count; i++)
        if (sites[i].site == site)
            return sites[i].array;
    shared_static += bytes;
    if (shared_static > SHARED_STATIC_MAX || shared_static + dynamic_size > SHARED_BLOCK_MAX ||
        site_count == SITES_MAX) {
        emulator_fail("shared array %s: %zu bytes declared, at most %zu", name, shared_static,
                      SHARED_STATIC_MAX);
        return arena;
    }
    sites[site_count].site = site;
    sites[site_count].array = shared_array(bytes);
    return sites[site_count++].array;
}

/* ---- accesses -------------------------------------------------------------------------------- */

static uint64_t stamp_of(bool atomic)
{
    uint32_t clock = warp_clock[running.thread / WARP][running.thread / WARP];

    if (clock > CLOCK_MAX || running.block > BLOCK_MAX) {
        emulator_fail("a block of more than %u barriers, or a grid of more than %u blocks",
                      CLOCK_MAX, BLOCK_MAX);
        clock = CLOCK_MAX;
    }
    return (uint64_t)(running.launch & 0xffff) << 48 | (uint64_t)running.block << 28 |
           (uint64_t)running.thread << 18 | (uint64_t)clock << 1 | atomic;
}

static bool is_ordered(uint64_t earlier, bool atomic)
{
    int thread = (int)(earlier >> 18 & 0x3ff);

    if (earlier <= IN_FLIGHT || earlier >> 48 != (running.launch & 0xffff))
        return true;
    if (atomic && earlier & 1)
        return true;
    if ((earlier >> 28 & 0xfffff) != running.block)
        return false;
    return thread == running.thread ||
           warp_clock[running.thread / WARP][thread / WARP] > (earlier >> 1 & 0x1ffff);
}

/* What the linker knows of the program's own memory: constants and tables that kernels read. The
 * fake library has none, and no check that asks. */
#if defined(EMULATOR_FAKE)
static const char __executable_start[1], end[1];
#else
extern const char __executable_start[], end[];
#endif

static bool is_in_image(const void *address)
{
    return (const char *)address >= __executable_start && (const char *)address < end;
}

/* File and line of a place in a kernel, by addr2line where there is one. */
static const char *place_of(const void *pc)
{
    static char text[300];
    char command[128];
    FILE *pipe;

    (void)snprintf(command, sizeof(command), "addr2line -e /proc/%d/exe -s 0x%zx 2>/dev/null",
                   (int)getpid(), (size_t)((const char *)pc - 1 - __executable_start));
    text[0] = 0;
    pipe = popen(command, "r");
    if (pipe) {
        if (fgets(text, sizeof(text), pipe))
            text[strcspn(text, "\n")] = 0;
        (void)pclose(pipe);
    }
    return text;
}

static const char *const access_names[] = {"read", "write", "atomic access"};

static void fail_race(const void *address, uint64_t earlier, const char *earlier_name,
                      enum access access, const void *pc)
{
    bool is_shared = (const char *)address < arena + SHARED_AREA;

    emulator_fail("race on %s memory: %s at %s, and a %s by block %d, thread %d, with no barrier "
                  "between them",
                  is_shared ? "shared" : "device", access_names[access], place_of(pc), earlier_name,
                  (int)(earlier >> 28 & 0xfffff), (int)(earlier >> 18 & 0x3ff));
}

/* Replaces a reader that is ordered before this one, else the second. */
static void note_reader(struct shadow *s, uint64_t stamp)
{
    for (int i = 0; i < 2; i++)
        if (s->reader[i] == 0 || is_ordered(s->reader[i], false)) {
            s->reader[i] = stamp;
            return;
        }
    s->reader[1] = stamp;
}

static bool check_byte(size_t at, enum access access, uint64_t stamp, const void *pc)
{
    struct shadow *s = &shadow[at];
    bool atomic = access == ACCESS_ATOMIC;

    if (s->writer == 0) {
        emulator_fail("%s out of bounds at %s: %zu bytes into %s memory", access_names[access],
                      place_of(pc), at, at < SHARED_AREA ? "shared" : "device");
        return false;
    }
    if (s->writer == PRESENT && access != ACCESS_WRITE) {
        emulator_fail("%s of unwritten %s memory at %s", access_names[access],
                      at < SHARED_AREA ? "shared" : "device", place_of(pc));
        return false;
    }
    if (s->writer == IN_FLIGHT) {
        emulator_fail("%s at %s of shared memory that an asynchronous copy fills: its thread has "
                      "not waited for it",
                      access_names[access], place_of(pc));
        return false;
    }
    if (!is_ordered(s->writer, atomic)) {
        fail_race(arena + at, s->writer, "write", access, pc);
        return false;
    }
    if (access == ACCESS_READ) {
        note_reader(s, stamp);
        return true;
    }
    for (int i = 0; i < 2; i++)
        if (!is_ordered(s->reader[i], false)) {
            fail_race(arena + at, s->reader[i], "read", access, pc);
            return false;
        }
    *s = (struct shadow){.writer = stamp};
    return true;
}

void memory_access(const void *address, size_t bytes, enum access access, const void *pc)
{
    size_t at = (size_t)((const char *)address - arena);
    uint64_t stamp;

    if (!shadow)
        return;
    if (at >= ARENA_BYTES) {
        if (!emulator_on_stack(address) && !is_in_image(address))
            emulator_fail("%s of the host's memory at %s", access_names[access], place_of(pc));
        return;
    }
    stamp = stamp_of(access == ACCESS_ATOMIC);
    for (size_t i = 0; i < bytes; i++)
        if (!check_byte(at + i, access, stamp, pc))
            return;
}

void memory_in_flight(void *address, size_t bytes, const void *pc)
{
    memory_access(address, bytes, ACCESS_WRITE, pc);
    mark(address, bytes, IN_FLIGHT);
    memset(address, 0xff, bytes); /* NaNs, for the builds that do not see accesses */
}

void memory_landed(void *address, size_t bytes, const void *pc)
{
    mark(address, bytes, PRESENT);
    memory_access(address, bytes, ACCESS_WRITE, pc);
}

bool memory_is_shared(const void *address)
{
    return (size_t)((const char *)address - arena) < SHARED_AREA;
}

void emulator_atomic(const void *address, size_t bytes)
{
    if (!running.inside)
        return;
    emulator_maybe_yield(2);
    memory_access(address, bytes, ACCESS_ATOMIC, __builtin_return_address(0));
}

/* ---- what -fsanitize=thread calls in kernels ------------------------------------------------- */

#if !defined(__SANITIZE_ADDRESS__)

static void hook(const void *address, size_t bytes, enum access access, const void *pc)
{
    if (!running.inside)
        return;
    if ((size_t)((const char *)address - arena) < ARENA_BYTES)
        emulator_maybe_yield(64);
    memory_access(address, bytes, access, pc);
}

#define HOOK(name, bytes, access)                                  \
    void __tsan_##name(void *address);                             \
    void __tsan_##name(void *address)                              \
    {                                                              \
        hook(address, bytes, access, __builtin_return_address(0)); \
    }
#define HOOKS(bytes)                                \
    HOOK(read##bytes, bytes, ACCESS_READ)           \
    HOOK(write##bytes, bytes, ACCESS_WRITE)         \
    HOOK(unaligned_read##bytes, bytes, ACCESS_READ) \
    HOOK(unaligned_write##bytes, bytes, ACCESS_WRITE)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_read_range(void *address, size_t bytes);
void __tsan_read_range(void *address, size_t bytes)
{
    hook(address, bytes, ACCESS_READ, __builtin_return_address(0));
}

void __tsan_write_range(void *address, size_t bytes);
void __tsan_write_range(void *address, size_t bytes)
{
    hook(address, bytes, ACCESS_WRITE, __builtin_return_address(0));
}

void __tsan_init(void);
void __tsan_init(void)
{
}

void __tsan_func_entry(void *pc);
void __tsan_func_entry(void *pc)
{
    (void)pc;
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

#endif
