/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_EMULATOR_INTERNAL_H
#define TESTS_CUDA_EMULATOR_INTERNAL_H

/* What the emulator's files share, for them alone: fibers (emulator.c), where they wait for each
 * other (meet.c), memory (memory.c). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/cuda_emulator/emulator.h"

#define THREADS_MAX 1024
#define WARP        32
#define WARPS_MAX   (THREADS_MAX / WARP)
#define STACK_BYTES ((size_t)256 << 10)

#define SHARED_STATIC_MAX ((size_t)48 << 10)  /* of declared arrays */
#define SHARED_BLOCK_MAX  ((size_t)163 << 10) /* with the dynamic one: the limit of sm_80 */

#define COPIES_MAX 64 /* asynchronous copies of a thread under way */

enum thread_state {
    THREAD_READY,
    THREAD_AT_BARRIER,
    THREAD_IN_WARP,
    THREAD_DONE,
};

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    bool exists; /* else zeros */
    int group;
};

struct thread {
    void *sp;
    struct emulator_index index;
    enum thread_state state;
    const char *file; /* where it waits */
    int line;
    int barrier, barrier_count;
    enum emulator_warp_function function;
    unsigned mask;
    uint64_t value, *out;
    emulator_operation operation; /* of EMULATOR_TOGETHER */
    void *part;
    int copy_count, group; /* the group that is filled */
    void *fake_stack;      /* the address sanitizer's */
    struct copy copies[COPIES_MAX];
};

/* The threads of the block that runs. */
extern struct thread emulator_threads[THREADS_MAX];
extern int emulator_thread_count;

/* The running thread; meaningless outside of a kernel. */
struct running {
    bool inside;    /* a fiber runs */
    int thread;     /* in its block */
    uint32_t block; /* serial number of the block within its launch, in order of execution */
    uint32_t launch;
};
extern struct running running;

/* clock[a][b]: what warp a knows of warp b's clock. A warp's own clock goes up at each barrier. */
extern uint32_t warp_clock[WARPS_MAX][WARPS_MAX];

uint64_t emulator_random(void);

/* A point where another thread may go on; `one_in` times as often it does not. */
void emulator_maybe_yield(unsigned one_in);

/* A thread that waited can run. */
void emulator_make_ready(int thread);

/* The running fiber gives way to the scheduler. */
void emulator_leave(bool for_ever);

/* The stack of the running fiber. */
bool emulator_on_stack(const void *address);

/* The kernel and thread that run, for messages. */
const char *emulator_where(void);

/* ---- memory.c -------------------------------------------------------------------------------- */

enum access {
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_ATOMIC,
};

/* Fails the launch if the access is none that CUDA allows. `pc` is the address of the instruction
 * behind it. */
void memory_access(const void *address, size_t bytes, enum access access, const void *pc);

/* From now on until memory_landed() an asynchronous copy fills these bytes of shared memory: it is
 * a write at both ends of that time, and each access between them fails the launch. */
void memory_in_flight(void *address, size_t bytes, const void *pc);
void memory_landed(void *address, size_t bytes, const void *pc);

bool memory_is_shared(const void *address);

/* Shared memory of a new block: nothing in it is written. */
void memory_new_block(size_t dynamic_bytes);
void *memory_shared(const void *site, size_t bytes, const char *name);
void *memory_dynamic(void);

#endif
