/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Where threads of a block wait for each other: barriers and warp functions. Below them, the
 * asynchronous copies of a thread, which end where it waits for them.
 */
#include <string.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/internal.h"

/* ---- barriers -------------------------------------------------------------------------------- */

/* The warps of `in` have met: each knows what all of them know, and a new clock begins for it. */
static void join_warps(const bool in[WARPS_MAX])
{
    uint32_t all[WARPS_MAX] = {0};

    for (int w = 0; w < WARPS_MAX; w++)
        for (int i = 0; in[w] && i < WARPS_MAX; i++)
            if (warp_clock[w][i] > all[i])
                all[i] = warp_clock[w][i];
    for (int w = 0; w < WARPS_MAX; w++)
        if (in[w]) {
            memcpy(warp_clock[w], all, sizeof(all));
            warp_clock[w][w]++;
        }
    for (int w = 0; w < WARPS_MAX; w++) /* what each did before, the others have seen */
        for (int i = 0; in[w] && i < WARPS_MAX; i++)
            if (in[i] && i != w)
                warp_clock[w][i] = warp_clock[i][i];
}

/* Names of files; almost always one literal. */
static bool is_same(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

static bool waits_at(const struct thread *t, int id)
{
    return t->state == THREAD_AT_BARRIER && t->barrier == id;
}

/* Finds the warps whose threads all wait at the barrier; false if a warp is there in part. */
static bool whole_warps(int id, bool in[WARPS_MAX])
{
    for (int w = 0; w * WARP < emulator_thread_count; w++) {
        int last = (w + 1) * WARP < emulator_thread_count ? (w + 1) * WARP : emulator_thread_count,
            here = 0;
        for (int i = w * WARP; i < last; i++)
            here += waits_at(&emulator_threads[i], id);
        in[w] = here == last - w * WARP;
        if (here && !in[w])
            return false;
    }
    return true;
}

static void release_barrier(int id)
{
    bool in[WARPS_MAX] = {0};

    if (!whole_warps(id, in)) {
        emulator_fail("barrier %d: a warp came to it with some of its threads only", id);
        return;
    }
    join_warps(in);
    for (int i = 0; i < emulator_thread_count; i++)
        if (waits_at(&emulator_threads[i], id))
            emulator_make_ready(i);
}

void emulator_barrier(int id, int count, const char *file, int line)
{
    struct thread *self = &emulator_threads[running.thread];
    int arrived = 0, wanted = count ? count : emulator_thread_count;

    if (count % WARP != 0 || id < 0 || id > 15) {
        emulator_fail("%s:%d: barrier %d of %d threads; ids are 0 to 15, counts multiples of 32",
                      file, line, id, count);
        return;
    }
    self->state = THREAD_AT_BARRIER;
    self->barrier = id;
    self->barrier_count = count;
    self->file = file;
    self->line = line;
    for (int i = 0; i < emulator_thread_count; i++) {
        const struct thread *t = &emulator_threads[i];
        if (!waits_at(t, id))
            continue;
        arrived++;
        if (t->barrier_count != count || t->line != line || !is_same(t->file, file)) {
            emulator_fail("divergent barrier %d: this thread is at %s:%d, thread %d at %s:%d", id,
                          file, line, i, t->file, t->line);
            return;
        }
    }
    if (arrived == wanted)
        release_barrier(id);
    emulator_leave(false);
}

/* ---- warp functions -------------------------------------------------------------------------- */

static bool is_with(const struct thread *t, const struct thread *self)
{
    return t->state == THREAD_IN_WARP && t->function == self->function && t->mask == self->mask &&
           t->operation == self->operation && t->line == self->line && is_same(t->file, self->file);
}

/* All lanes of the mask are here: hand out the values. */
static void finish_warp(int first, int lanes, unsigned mask)
{
    uint64_t values[WARP] = {0};
    bool in[WARPS_MAX] = {0};
    void *parts[WARP];

    for (int i = 0; i < WARP; i++)
        parts[i] = emulator_threads[first + i].part;
    if (emulator_threads[first].function == EMULATOR_TOGETHER && mask == ~0u)
        emulator_threads[first].operation(parts);
    for (int i = 0; i < WARP; i++)
        if (mask >> i & 1)
            values[i] = emulator_threads[first + i].value;
    if (emulator_threads[first + __builtin_ctz(mask)].function == EMULATOR_SYNCWARP &&
        __builtin_popcount(mask) == lanes) {
        in[first / WARP] = true;
        join_warps(in);
    }
    for (int i = 0; i < WARP; i++)
        if (mask >> i & 1) {
            if (emulator_threads[first + i].out)
                memcpy(emulator_threads[first + i].out, values, sizeof(values));
            emulator_make_ready(first + i);
        }
}

/* Waits for the other lanes of the mask at the same function and place. */
static void meet(struct thread *self, int lanes, const char *file, int line)
{
    int first = running.thread / WARP * WARP;
    bool all = true;

    self->state = THREAD_IN_WARP;
    self->file = file;
    self->line = line;
    for (int i = 0; i < lanes; i++)
        if (self->mask >> i & 1 && !is_with(&emulator_threads[first + i], self))
            all = false;
    if (all)
        finish_warp(first, lanes, self->mask);
    emulator_leave(false);
}

static int lanes_of_warp(void)
{
    int first = running.thread / WARP * WARP;

    return emulator_thread_count - first < WARP ? emulator_thread_count - first : WARP;
}

void emulator_warp(enum emulator_warp_function function, unsigned mask, uint64_t value,
                   uint64_t out[32], const char *file, int line)
{
    struct thread *self = &emulator_threads[running.thread];
    int lanes = lanes_of_warp();
    unsigned present = lanes == WARP ? ~0u : (1u << lanes) - 1;

    if (mask == ~0u) /* threads that the block does not have count as absent lanes */
        mask = present;
    if (!(mask >> emulator_lane() & 1) || (mask & ~present) != 0) {
        emulator_fail("%s:%d: lane %d gives mask %08x, which %s", file, line, emulator_lane(), mask,
                      mask & ~present ? "names lanes that the block has not" : "does not name it");
        return;
    }
    self->function = function;
    self->mask = mask;
    self->value = value;
    self->out = out;
    self->operation = NULL;
    meet(self, lanes, file, line);
}

void emulator_together(emulator_operation operation, void *part, const char *file, int line)
{
    struct thread *self = &emulator_threads[running.thread];

    if (lanes_of_warp() != WARP) {
        emulator_fail("%s:%d: a warp of %d threads; this function needs 32", file, line,
                      lanes_of_warp());
        return;
    }
    self->function = EMULATOR_TOGETHER;
    self->mask = ~0u;
    self->out = NULL;
    self->operation = operation;
    self->part = part;
    meet(self, WARP, file, line);
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

static void finish_copy(struct thread *t, int i)
{
    struct copy c = t->copies[i];

    t->copies[i] = t->copies[--t->copy_count];
    memory_landed(c.to, c.bytes, __builtin_return_address(0));
    if (!c.exists) {
        memset(c.to, 0, c.bytes);
        return;
    }
    memory_access(c.from, c.bytes, ACCESS_READ, __builtin_return_address(0));
    memcpy(c.to, c.from, c.bytes);
}

void emulator_copy_start(void *shared, const void *global, size_t bytes, bool exists)
{
    struct thread *t = &emulator_threads[running.thread];

    if ((bytes != 4 && bytes != 8 && bytes != 16) || (uintptr_t)shared % bytes != 0 ||
        (uintptr_t)global % bytes != 0 || !memory_is_shared(shared))
        emulator_fail("asynchronous copy of %zu bytes: must be 4, 8 or 16, aligned to them, to "
                      "shared memory",
                      bytes);
    if (t->copy_count == COPIES_MAX)
        emulator_fail("more than %d asynchronous copies of a thread", COPIES_MAX);
    emulator_maybe_yield(64);
    if (exists)
        memory_access(global, bytes, ACCESS_READ, __builtin_return_address(0));
    memory_in_flight(shared, bytes, __builtin_return_address(0));
    t->copies[t->copy_count++] = (struct copy){shared, global, bytes, exists, t->group};
}

void emulator_copies_commit(void)
{
    emulator_threads[running.thread].group++;
}

void emulator_copies_wait(int but_for)
{
    struct thread *t = &emulator_threads[running.thread];

    for (int i = t->copy_count - 1; i >= 0; i--)
        if (t->copies[i].group < t->group - but_for)
            finish_copy(t, i);
}
