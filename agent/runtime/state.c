/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"

#define INITIAL_CHUNK ((int64_t)16384) /* elements made at a time */

static void *allocate(struct state *state, size_t bytes, struct fleet_error *err)
{
    void *memory = state->backend->vtable->allocate(state->backend, bytes ? bytes : 1, err);

    if (memory)
        state->bytes += bytes;
    return memory;
}

int state_init(struct state *state, const struct program *program, const struct memory_plan *memory,
               struct backend *backend, struct fleet_error *err)
{
    *state = (struct state){.program = program, .memory = memory, .backend = backend};
    for (int s = 0; s < MEMORY_SEGMENT_COUNT; s++) {
        if (s == MEMORY_GRADIENTS) /* slots, see state_reserve_slots() */
            continue;
        state->bases.segment[s] = allocate(state, memory->bytes[s], err);
        if (!state->bases.segment[s]) {
            state_release(state);
            return fleet_error_wrap(err, "allocate %zu bytes for the model", memory->bytes[s]);
        }
    }
    return 0;
}

void state_release(struct state *state)
{
    if (!state->backend)
        return;
    for (int s = 0; s < MEMORY_SEGMENT_COUNT; s++)
        if (s != MEMORY_GRADIENTS && state->bases.segment[s])
            state->backend->vtable->deallocate(state->backend, state->bases.segment[s]);
    for (int i = 0; i < state->slot_count; i++)
        state->backend->vtable->deallocate(state->backend, state->slots[i]);
    free(state->slots);
    *state = (struct state){0};
}

int state_reserve_slots(struct state *state, int count, struct fleet_error *err)
{
    if (count > state->slot_count) {
        float **slots = realloc(state->slots, (size_t)count * sizeof(*slots));
        fleet_assert(slots != NULL);
        state->slots = slots;
    }
    while (state->slot_count < count) {
        void *slot = allocate(state, state->memory->bytes[MEMORY_GRADIENTS], err);
        if (!slot)
            return fleet_error_wrap(err, "allocate gradient buffer %d of %d", state->slot_count + 1,
                                    count);
        state->slots[state->slot_count++] = slot;
    }
    return 0;
}

/* Elements [first, first + count) of a variable as it begins. */
static void initial_values(const struct program_var *var, uint64_t seed, int64_t first,
                           int64_t count, float *data)
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

static void initialize_var(struct state *state, int v, uint64_t seed, float *chunk)
{
    const struct program_var *var = &state->program->vars[v];
    int64_t total = program_var_elements(var);
    char *to = state_address(state, v);

    if (var->role == PROGRAM_ROLE_STATE)
        memset(chunk, 0, INITIAL_CHUNK * sizeof(float));
    for (int64_t first = 0; first < total; first += INITIAL_CHUNK) {
        int64_t count = total - first < INITIAL_CHUNK ? total - first : INITIAL_CHUNK;
        if (var->role != PROGRAM_ROLE_STATE)
            initial_values(var, seed, first, count, chunk);
        state->backend->vtable->copy_in(state->backend, to + (size_t)first * sizeof(float), chunk,
                                        (size_t)count * sizeof(float));
    }
}

void state_initialize(struct state *state, uint64_t seed)
{
    float *chunk = malloc(INITIAL_CHUNK * sizeof(*chunk));

    fleet_assert(chunk != NULL);
    for (int v = 0; v < state->program->var_count; v++) {
        enum program_role role = state->program->vars[v].role;
        if (role == PROGRAM_ROLE_STATE || role == PROGRAM_ROLE_PARAMETER ||
            role == PROGRAM_ROLE_BUFFER)
            initialize_var(state, v, seed, chunk);
    }
    free(chunk);
}

int state_parts(const struct state *state, struct state_part out[STATE_PARTS_MAX])
{
    static const struct {
        const char *name;
        enum memory_segment segment;
    } parts[STATE_PARTS_MAX] = {{"parameters", MEMORY_PARAMETERS},
                                {"state0", MEMORY_STATE0},
                                {"state1", MEMORY_STATE1},
                                {"buffers", MEMORY_BUFFERS}};
    int count = 0;

    for (int i = 0; i < STATE_PARTS_MAX; i++) {
        size_t bytes = state->memory->bytes[parts[i].segment];
        if (bytes > 0)
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
