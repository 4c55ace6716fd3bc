/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Blocks of fibers. The scheduler picks one that can run, by random number; it comes back when the
 * fiber waits, yields, ends or fails.
 *
 *            ┌──────────────── yields ────────────────┐
 *            ▼                                        │
 *   start ▶ READY ──(picked)──▶ running ──ends──▶ DONE
 *            ▲                     │
 *            │                     ├─ barrier ──▶ AT_BARRIER ─┐
 *            │                     └─ warp ─────▶ IN_WARP ────┤
 *            └──(all that are meant have come)────────────────┘
 *
 * If nothing is READY before all are DONE, the block is stuck: a barrier or warp function that
 * some threads never reach. The message says where which threads wait.
 */
#include "tests/cuda_emulator/emulator.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda_emulator/internal.h"

#if !defined(__x86_64__)
#error "the emulator switches fibers on x86-64 only"
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

struct emulator_index emulator_thread_index, emulator_block_index, emulator_block_size,
    emulator_grid_size;
emulator_submit_fn emulator_submit;
struct running running;
uint32_t warp_clock[WARPS_MAX][WARPS_MAX];
struct thread emulator_threads[THREADS_MAX];
int emulator_thread_count;

static int ready[THREADS_MAX], ready_count, done_count;
static char *stacks;
static void *scheduler_sp;
static const char *kernel_name;
static emulator_body kernel_body;
static const void *kernel_arguments;
static char failure[1000];
static bool failed;
static uint64_t random_state = 1;
#if defined(__SANITIZE_ADDRESS__)
static void *scheduler_fake;
static const void *scheduler_bottom;
static size_t scheduler_size;
#endif

/* ---- random numbers: splitmix64 -------------------------------------------------------------- */

uint64_t emulator_random(void)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void emulator_seed(uint64_t seed)
{
    const char *others = getenv("EMULATOR_SEED");
    uint64_t first = others ? strtoull(others, NULL, 10) : 0;

    random_state = (seed + (first << 32)) * 2654435761u + 1;
}

/* ---- fibers ---------------------------------------------------------------------------------- */

/* Save the registers that a call keeps and the stack pointer in *save, go on with `to`. */
void emulator_switch(void **save, void *to);
__asm__(".text\n"
        ".globl emulator_switch\n"
        ".type emulator_switch, @function\n"
        "emulator_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
        "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n"
        "    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size emulator_switch, .-emulator_switch\n");

static char *stack_of(int thread)
{
    return stacks + (size_t)thread * STACK_BYTES;
}

bool emulator_on_stack(const void *address)
{
    size_t at = (size_t)((const char *)address - stack_of(running.thread));

    return at < STACK_BYTES;
}

void emulator_leave(bool for_ever)
{
    struct thread *t = &emulator_threads[running.thread];

    running.inside = false;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_ever ? NULL : &t->fake_stack, scheduler_bottom,
                                   scheduler_size);
#else
    (void)for_ever;
#endif
    emulator_switch(&t->sp, scheduler_sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(t->fake_stack, &scheduler_bottom, &scheduler_size);
#endif
    running.inside = true;
}

static void fiber(void)
{
    struct thread *t;

#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &scheduler_bottom, &scheduler_size);
#endif
    running.inside = true;
    kernel_body(kernel_arguments);
    t = &emulator_threads[running.thread];
    t->state = THREAD_DONE;
    done_count++;
    emulator_leave(true);
    abort();
}

/* A new fiber: its first switch returns into fiber(). */
static void prepare(int thread)
{
    struct thread *t = &emulator_threads[thread];
    char *stack = stack_of(thread);
    void **top = (void **)(void *)(stack + STACK_BYTES);

#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, STACK_BYTES);
#endif
    *--top = NULL; /* where fiber() would return to; keeps the alignment of a call */
    *--top = (void *)fiber;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    memset(t, 0, offsetof(struct thread, copies));
    t->sp = top;
    t->state = THREAD_READY;
    t->index =
        (struct emulator_index){(unsigned)thread % emulator_block_size.x,
                                (unsigned)thread / emulator_block_size.x % emulator_block_size.y,
                                (unsigned)thread / emulator_block_size.x / emulator_block_size.y};
}

static void resume(int thread)
{
    running.thread = thread;
    emulator_thread_index = emulator_threads[thread].index;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake, stack_of(thread), STACK_BYTES);
#endif
    emulator_switch(&scheduler_sp, emulator_threads[thread].sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#endif
}

void emulator_make_ready(int thread)
{
    emulator_threads[thread].state = THREAD_READY;
    ready[ready_count++] = thread;
}

void emulator_maybe_yield(unsigned one_in)
{
    if (emulator_random() % one_in != 0)
        return;
    emulator_make_ready(running.thread);
    emulator_leave(false);
}

int emulator_lane(void)
{
    return running.thread % WARP;
}

/* ---- failures -------------------------------------------------------------------------------- */

const char *emulator_failure(void)
{
    return failure;
}

void emulator_clear_failure(void)
{
    failure[0] = 0;
}

/* The launch is over: the fiber that failed is left where it is. */
void emulator_fail(const char *format, ...)
{
    va_list list;
    size_t used;
    bool inside = running.inside;

    if (!failed) {
        failed = true;
        (void)snprintf(failure, sizeof(failure), "%s: block %u,%u,%u", kernel_name,
                       emulator_block_index.x, emulator_block_index.y, emulator_block_index.z);
        used = strlen(failure);
        if (inside)
            (void)snprintf(failure + used, sizeof(failure) - used, ", thread %d", running.thread);
        used = strlen(failure);
        (void)snprintf(failure + used, sizeof(failure) - used, ": ");
        used = strlen(failure);
        va_start(list, format);
        (void)vsnprintf(failure + used, sizeof(failure) - used, format, list);
        va_end(list);
    }
    if (inside)
        emulator_leave(true);
}

/* Where some of the threads that wait do so. */
static void fail_stuck(void)
{
    char text[600] = "";
    int told = 0;

    for (int i = 0; i < emulator_thread_count && told < 4; i++) {
        const struct thread *t = &emulator_threads[i];
        size_t used = strlen(text);
        const char *what = t->state == THREAD_AT_BARRIER ? "a barrier" : "a warp function";
        bool same = i > 0 && t->state == emulator_threads[i - 1].state &&
                    t->line == emulator_threads[i - 1].line;
        if (same || t->state == THREAD_READY)
            continue;
        told++;
        if (t->state == THREAD_DONE)
            (void)snprintf(text + used, sizeof(text) - used, "; thread %d has ended", i);
        else
            (void)snprintf(text + used, sizeof(text) - used, "; thread %d waits for %s (%s:%d)", i,
                           what, t->file, t->line);
    }
    emulator_fail("divergent: some threads wait for others that do not come%s", text);
}

/* ---- blocks and grids ------------------------------------------------------------------------ */

void *emulator_shared(const void *site, size_t bytes, const char *name)
{
    return memory_shared(site, bytes, name);
}

void *emulator_dynamic_shared(void)
{
    return memory_dynamic();
}

static void run_block(uint32_t number, size_t dynamic_bytes)
{
    struct emulator_index grid = emulator_grid_size;

    emulator_block_index = (struct emulator_index){number % grid.x, number / grid.x % grid.y,
                                                   number / grid.x / grid.y};
    memory_new_block(dynamic_bytes);
    memset(warp_clock, 0, sizeof(warp_clock));
    for (int w = 0; w < WARPS_MAX; w++)
        warp_clock[w][w] = 1;
    ready_count = 0;
    done_count = 0;
    for (int i = 0; i < emulator_thread_count; i++) {
        prepare(i);
        ready[ready_count++] = i;
    }
    while (ready_count > 0 && !failed) {
        int pick = (int)(emulator_random() % (uint64_t)ready_count), thread = ready[pick];
        ready[pick] = ready[--ready_count];
        resume(thread);
    }
    if (!failed && done_count < emulator_thread_count)
        fail_stuck();
}

static bool is_size_allowed(struct emulator_index grid, struct emulator_index block)
{
    uint64_t count = (uint64_t)block.x * block.y * block.z;

    return count >= 1 && count <= THREADS_MAX && block.z <= 64 && grid.x >= 1 && grid.y >= 1 &&
           grid.z >= 1 && grid.x <= INT32_MAX && grid.y <= 65535 && grid.z <= 65535;
}

int emulator_run(const char *kernel, emulator_body body, const void *arguments,
                 struct emulator_index grid, struct emulator_index block, size_t dynamic_bytes)
{
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    uint32_t *order;

    kernel_name = kernel;
    kernel_body = body;
    kernel_arguments = arguments;
    failed = false;
    emulator_block_index = (struct emulator_index){0, 0, 0};
    if (!is_size_allowed(grid, block) || dynamic_bytes > SHARED_BLOCK_MAX || blocks > 1u << 20) {
        emulator_fail("launch of %u,%u,%u blocks of %u,%u,%u threads with %zu bytes", grid.x,
                      grid.y, grid.z, block.x, block.y, block.z, dynamic_bytes);
        return -EINVAL;
    }
    emulator_grid_size = grid;
    emulator_block_size = block;
    emulator_thread_count = (int)(block.x * block.y * block.z);
    if (!stacks)
        stacks = mmap(NULL, STACK_BYTES * THREADS_MAX, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    order = malloc((size_t)blocks * sizeof(*order));
    if (!order || stacks == MAP_FAILED)
        abort();
    for (uint32_t i = 0; i < blocks; i++) { /* shuffled, inside out */
        uint32_t j = (uint32_t)(emulator_random() % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    running.launch = running.launch % 0xffff + 1;
    for (uint32_t i = 0; i < blocks && !failed; i++) {
        running.block = i;
        run_block(order[i], dynamic_bytes);
    }
    free(order);
    return failed ? -EIO : 0;
}
