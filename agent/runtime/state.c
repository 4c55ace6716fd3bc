/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cpu/backend_cpu.h"
#include "agent/runtime/backend/cpu/thread_pool.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"
#include "libfleet/program/slice.h"

#define INITIAL_CHUNK ((int64_t)16384) /* elements made at a time */

void *state_allocate(struct state *state, enum memory_segment segment, size_t bytes,
                     struct fleet_error *err)
{
    const struct backend_vtable *vtable = state->backend->vtable;
    void *memory = (state->memory->is_of_host[segment] ? vtable->allocate_host : vtable->allocate)(
        state->backend, bytes ? bytes : 1, err);

    if (memory)
        state->bytes += bytes;
    return memory;
}

void state_deallocate(struct state *state, enum memory_segment segment, void *memory)
{
    const struct backend_vtable *vtable = state->backend->vtable;

    if (memory)
        (state->memory->is_of_host[segment] ? vtable->deallocate_host
                                            : vtable->deallocate)(state->backend, memory);
}

void state_replace(struct state *state, const enum memory_segment *segments, void *const *memory,
                   int count)
{
    for (int i = 0; i < count; i++) {
        state->bytes -= state->memory->bytes[segments[i]];
        state_deallocate(state, segments[i], state->bases.segment[segments[i]]);
        state->bases.segment[segments[i]] = memory[i];
    }
}

/* Segments that hold nothing from one micro-batch to the next. */
static bool is_transient(int segment)
{
    return segment == MEMORY_INPUTS || segment == MEMORY_SCALARS || segment == MEMORY_ARENA ||
           segment == MEMORY_HOST || segment == MEMORY_SCRATCH;
}

/* A device that prepares operators has working memory of its own for their kernels. */
static size_t segment_bytes(const struct state *state, const struct memory_plan *memory,
                            int segment)
{
    return segment == MEMORY_SCRATCH && state->backend->vtable->prepare ? 0
                                                                        : memory->bytes[segment];
}

static void *allocate_segment(struct state *state, int segment, struct fleet_error *err)
{
    return state_allocate(state, (enum memory_segment)segment,
                          segment_bytes(state, state->memory, segment), err);
}

/* Each micro-batch in flight has a copy of them. */
static bool is_of_micro_batch(int segment)
{
    return segment == MEMORY_INPUTS || segment == MEMORY_ARENA || segment == MEMORY_HOST;
}

int state_copy_transient(struct state *state, struct executor_bases *out, struct fleet_error *err)
{
    struct executor_bases copy = state->bases;

    for (int s = 0; s < MEMORY_SEGMENT_COUNT; s++) {
        if (!is_of_micro_batch(s))
            continue;
        copy.segment[s] = allocate_segment(state, s, err);
        if (copy.segment[s])
            continue;
        for (int before = 0; before < s; before++)
            if (is_of_micro_batch(before))
                state_deallocate(state, (enum memory_segment)before, copy.segment[before]);
        return -ENOMEM;
    }
    *out = copy;
    return 0;
}

void state_free_transient(struct state *state, const struct executor_bases *copy)
{
    for (int s = 0; s < MEMORY_SEGMENT_COUNT; s++) {
        if (!is_of_micro_batch(s))
            continue;
        state_deallocate(state, (enum memory_segment)s, copy->segment[s]);
        state->bytes -= state->memory->bytes[s];
    }
}

int state_init(struct state *state, const struct program *program, const struct memory_plan *memory,
               struct backend *backend, struct fleet_error *err)
{
    *state = (struct state){.program = program, .memory = memory, .backend = backend};
    for (int s = 0; s < MEMORY_SEGMENT_COUNT; s++) {
        if (s == MEMORY_GRADIENTS) /* slots, see state_reserve_slots() */
            continue;
        state->bases.segment[s] = allocate_segment(state, s, err);
        if (!state->bases.segment[s]) {
            state_release(state);
            return fleet_error_wrap(err, "allocate %zu bytes for the model", memory->bytes[s]);
        }
    }
    return 0;
}

int state_fit(struct state *state, const struct memory_plan *memory, struct fleet_error *err)
{
    for (int i = 0; i < MEMORY_SEGMENT_COUNT; i++) {
        enum memory_segment s = (enum memory_segment)i;
        size_t bytes = segment_bytes(state, memory, i),
               has = segment_bytes(state, state->memory, i);
        void *larger;
        if (!is_transient(s) || bytes <= has)
            continue;
        larger = state_allocate(state, s, bytes, err);
        if (!larger)
            return fleet_error_wrap(err, "allocate %zu bytes for the model", bytes);
        state_deallocate(state, s, state->bases.segment[s]);
        state->bases.segment[s] = larger;
        state->bytes -= has;
    }
    return 0;
}

void state_release(struct state *state)
{
    if (!state->backend)
        return;
    for (int s = 0; s < MEMORY_SEGMENT_COUNT; s++)
        if (s != MEMORY_GRADIENTS)
            state_deallocate(state, (enum memory_segment)s, state->bases.segment[s]);
    state_release_slots(state);
    *state = (struct state){0};
}

void state_release_slots(struct state *state)
{
    for (int i = 0; i < state->slot_count; i++) {
        state->bytes -= state->slot_bytes[i];
        state_deallocate(state, MEMORY_GRADIENTS, state->slots[i]);
    }
    free(state->slots);
    free(state->slot_bytes);
    state->slots = NULL;
    state->slot_bytes = NULL;
    state->slot_count = 0;
}

static size_t slot_bytes_of(const struct state *state, int slot)
{
    return slot == 0 ? state->memory->bytes[MEMORY_GRADIENTS] : state->memory->further_slot_bytes;
}

int state_reserve_slots(struct state *state, int count, struct fleet_error *err)
{
    for (int i = 0; i < state->slot_count; i++)
        if (state->slot_bytes[i] != slot_bytes_of(state, i)) {
            state_release_slots(state);
            break;
        }
    if (count > state->slot_count) {
        float **slots = realloc(state->slots, (size_t)count * sizeof(*slots));
        size_t *bytes = realloc(state->slot_bytes, (size_t)count * sizeof(*bytes));
        fleet_assert(slots != NULL && bytes != NULL);
        state->slots = slots;
        state->slot_bytes = bytes;
    }
    while (state->slot_count < count) {
        size_t bytes = slot_bytes_of(state, state->slot_count);
        void *slot = state_allocate(state, MEMORY_GRADIENTS, bytes, err);
        if (!slot)
            return fleet_error_wrap(err, "allocate gradient buffer %d of %d", state->slot_count + 1,
                                    count);
        state->slot_bytes[state->slot_count] = bytes;
        state->slots[state->slot_count++] = slot;
    }
    return 0;
}

/* Elements [first, first + count) of a whole tensor as it begins. */
static void initial_run(const struct program_var *var, uint64_t seed, int64_t first, int64_t count,
                        float *data)
{
    struct fleet_random_key key = fleet_random_key(seed, var->name, 0);

    switch (var->initial) {
    case PROGRAM_INITIAL_NORMAL:
        fleet_random_normal(key, (uint64_t)first, (size_t)count, 0.0f, var->deviation, data);
        return;
    case PROGRAM_INITIAL_UNIFORM:
        for (int64_t i = 0; i < count; i++)
            data[i] =
                (2.0f * fleet_random_uniform(key, (uint64_t)(first + i)) - 1.0f) * var->deviation;
        return;
    case PROGRAM_INITIAL_ONE:
    case PROGRAM_INITIAL_ZERO:
        for (int64_t i = 0; i < count; i++)
            data[i] = var->initial == PROGRAM_INITIAL_ONE ? 1.0f : 0.0f;
        return;
    }
}

/* The same of a variable, which may be a part of its tensor. */
static void initial_values(const struct program_var *var, uint64_t seed, int64_t first,
                           int64_t count, float *data)
{
    int64_t run;

    for (int64_t done = 0; done < count; done += run) {
        int64_t place = slice_place(var, first + done, &run);
        run = run < count - done ? run : count - done;
        initial_run(var, seed, place, run, data + done);
    }
}

/* What the threads of state_initialize() share; every task is a chunk of one variable. */
struct initial_work {
    struct state *state;
    const struct state_seeds *seeds;
    float *chunks;         /* [threads][INITIAL_CHUNK] */
    int64_t *first_chunks; /* [var_count + 1] number of each variable's first chunk, ascending */
};

static bool is_initialized(const struct state *state, int number)
{
    enum program_role role = state->program->vars[number].role;

    return (role == PROGRAM_ROLE_STATE || role == PROGRAM_ROLE_PARAMETER ||
            role == PROGRAM_ROLE_BUFFER) &&
           state->memory->places[number].segment != MEMORY_NOWHERE;
}

/* Number the chunks of all variables; returns how many there are. */
static int64_t number_chunks(struct initial_work *work)
{
    const struct program *program = work->state->program;
    int64_t count = 0;

    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        work->first_chunks[v] = count;
        if (is_initialized(work->state, v))
            count += (program_var_elements(var) + INITIAL_CHUNK - 1) / INITIAL_CHUNK;
    }
    work->first_chunks[program->var_count] = count;
    return count;
}

/* The variable that chunk number `chunk` belongs to: the last that begins at or before it. */
static int find_var(const struct initial_work *work, int64_t chunk)
{
    int low = 0, high = work->state->program->var_count;

    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (work->first_chunks[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void initialize_chunk(void *context, int64_t number, int thread)
{
    const struct initial_work *work = context;
    struct backend *backend = work->state->backend;
    int v = find_var(work, number);
    const struct program_var *var = &work->state->program->vars[v];
    int64_t first = (number - work->first_chunks[v]) * INITIAL_CHUNK;
    int64_t left = program_var_elements(var) - first;
    int64_t count = left < INITIAL_CHUNK ? left : INITIAL_CHUNK;
    float *chunk = work->chunks + thread * INITIAL_CHUNK;
    char *to = state_address(work->state, v);

    if (var->role == PROGRAM_ROLE_STATE)
        memset(chunk, 0, (size_t)count * sizeof(*chunk));
    else
        initial_values(var, var->slice.parts > 0 ? work->seeds->divided : work->seeds->job, first,
                       count, chunk);
    backend->vtable->copy_in(backend, to + (size_t)first * sizeof(*chunk), chunk,
                             (size_t)count * sizeof(*chunk));
}

/* A pool of at most `*threads` (0: what the CPU quota allows); says how many there are. */
static struct thread_pool *new_pool(int *threads, int64_t tasks)
{
    struct thread_pool *pool = NULL;

    if (*threads <= 0)
        *threads = backend_cpu_thread_count();
    if (*threads >= tasks)
        *threads = 1;
    if (thread_pool_new(*threads, &pool, NULL) < 0) { /* no more threads: the same values */
        *threads = 1;
        (void)thread_pool_new(1, &pool, NULL);
    }
    fleet_assert(pool != NULL);
    return pool;
}

void state_initialize(struct state *state, const struct state_seeds *seeds, int threads)
{
    struct initial_work work = {.state = state, .seeds = seeds};
    struct thread_pool *pool;
    int64_t count;

    work.first_chunks = calloc((size_t)state->program->var_count + 1, sizeof(*work.first_chunks));
    fleet_assert(work.first_chunks != NULL);
    count = number_chunks(&work);
    pool = new_pool(&threads, count);
    work.chunks = malloc((size_t)threads * INITIAL_CHUNK * sizeof(*work.chunks));
    fleet_assert(work.chunks != NULL);
    thread_pool_run(pool, count, initialize_chunk, &work);
    thread_pool_free(pool);
    free(work.chunks);
    free(work.first_chunks);
}

int state_parts(const struct state *state, enum state_division division,
                struct state_part out[STATE_PARTS_MAX])
{
    static const struct {
        const char *name;
        enum memory_segment segment;
        enum state_division divided_by; /* the least one that divides it; WHOLE: none does */
    } parts[STATE_PARTS_MAX] = {{"parameters", MEMORY_PARAMETERS, STATE_PARAMETERS_DIVIDED},
                                {"state0", MEMORY_STATE0, STATE_OPTIMIZER_DIVIDED},
                                {"state1", MEMORY_STATE1, STATE_OPTIMIZER_DIVIDED},
                                {"buffers", MEMORY_BUFFERS, STATE_WHOLE}};
    int count = 0;

    for (int i = 0; i < STATE_PARTS_MAX; i++) {
        size_t bytes = state->memory->bytes[parts[i].segment];
        bool is_divided = parts[i].divided_by != STATE_WHOLE && division >= parts[i].divided_by;
        if (bytes > 0 && !is_divided)
            out[count++] = (struct state_part){.name = parts[i].name,
                                               .data = state->bases.segment[parts[i].segment],
                                               .count = (int64_t)(bytes / sizeof(float))};
    }
    return count;
}

void *state_address(const struct state *state, int var)
{
    const struct memory_place *place = &state->memory->places[var];

    fleet_assert(place->segment != MEMORY_GRADIENTS);
    return (char *)state->bases.segment[place->segment] + place->offset;
}

static size_t bytes_of(const struct state *state, int var)
{
    const struct program_var *of = &state->program->vars[var];

    return (size_t)program_var_elements(of) * program_type_size(of->type);
}

void state_read(const struct state *state, int var, void *host)
{
    state->backend->vtable->copy_out(state->backend, host, state_address(state, var),
                                     bytes_of(state, var));
}

void state_read_later(const struct state *state, int var, void *host)
{
    backend_copy_out_later(state->backend, host, state_address(state, var), bytes_of(state, var));
}

void state_write(struct state *state, int var, const void *host)
{
    state->backend->vtable->copy_in(state->backend, state_address(state, var), host,
                                    bytes_of(state, var));
}

void *state_map(const struct state *state, int var, enum backend_access access)
{
    return backend_map(state->backend, state_address(state, var), bytes_of(state, var), access);
}

void state_unmap(const struct state *state, int var, enum backend_access access, void *host)
{
    backend_unmap(state->backend, state_address(state, var), bytes_of(state, var), access, host);
}
