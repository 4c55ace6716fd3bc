/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/checkpoint/tensors.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

void checkpoint_state_init(struct checkpoint_state *state, const struct program *program,
                           struct backend *backend, float *parameters, float *state0, float *state1,
                           float *buffers)
{
    *state = (struct checkpoint_state){
        .program = program,
        .backend = backend,
        .spaces = {{.suffix = "", .data = parameters, .slot = -1},
                   {.suffix = "", .data = buffers, .is_buffers = true, .slot = -1},
                   {.suffix = ".state0", .data = state0, .slot = 0},
                   {.suffix = ".state1", .data = state1, .slot = 1}},
        .space_count = 4,
    };
}

/* has[i]: parameter i has a state number `slot`; all true for slot -1. */
static bool *find_holders(const struct program *program, int slot)
{
    bool *has = calloc((size_t)program->var_count + 1, sizeof(*has));

    fleet_assert(has != NULL);
    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i];
        if (slot < 0)
            has[i] = true;
        else if (var->role == PROGRAM_ROLE_STATE && var->slot == slot && var->of >= 0)
            has[var->of] = true;
    }
    return has;
}

static enum ownership_space space_of(const struct checkpoint_space *space)
{
    if (space->is_buffers)
        return OWNERSHIP_BUFFERS;
    return space->slot < 0    ? OWNERSHIP_PARAMETERS
           : space->slot == 0 ? OWNERSHIP_STATE0
                              : OWNERSHIP_STATE1;
}

static bool is_elsewhere(const struct checkpoint_state *state, const struct program_var *var)
{
    return state->whole && program_find_var(state->program, var->name) == PROGRAM_NONE;
}

/* Where the rank has it, NULL: nowhere. */
static float *place_of(const struct checkpoint_state *state, const struct checkpoint_space *space,
                       const struct program_var *var)
{
    int64_t at = var->flat_offset;

    if (!space->data || is_elsewhere(state, var))
        return NULL;
    if (state->map)
        at = ownership_place(state->map, space_of(space), var->flat_offset, state->replica);
    return at == OWNERSHIP_NOBODY ? NULL : space->data + at;
}

static bool is_owned(const struct checkpoint_state *state, const struct checkpoint_space *space,
                     const struct program_var *var)
{
    const struct ownership_line *line;

    if (!state->map || is_elsewhere(state, var))
        return false;
    line = ownership_find(state->map, space_of(space), var->flat_offset);
    return line && line->holders == OWNERSHIP_SHARD;
}

static enum checkpoint_file file_of(const struct checkpoint_space *space)
{
    if (space->is_private)
        return CHECKPOINT_PRIVATE;
    return space->suffix[0] != '\0' ? CHECKPOINT_OPTIMIZER : CHECKPOINT_MODEL;
}

static void add_tensor(struct checkpoint_tensors *tensors, const struct checkpoint_state *state,
                       const struct checkpoint_space *space, const struct program_var *var)
{
    struct fleet_strbuf name = {0};

    fleet_assert(var->flat_offset >= 0 && var->type == PROGRAM_FP32);
    fleet_strbuf_appendf(&name, "%s%s", var->name, space->suffix);
    tensors->items[tensors->count++] =
        (struct checkpoint_tensor){.name = fleet_strbuf_take(&name),
                                   .var = var,
                                   .data = place_of(state, space, var),
                                   .is_divided = is_owned(state, space, var),
                                   .elements = program_var_elements(var),
                                   .is_of_first = space->is_of_first,
                                   .file = file_of(space)};
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_tensor *)a)->var->name,
                  ((const struct checkpoint_tensor *)b)->var->name);
}

/* Those of `program`, or only those that the state's own program lacks. */
static void add_tensors(struct checkpoint_tensors *tensors, const struct checkpoint_state *state,
                        const struct checkpoint_space *space, const struct program *program)
{
    FLEET_AUTO_FREE bool *has = find_holders(program, space->slot);
    enum program_role role = space->is_buffers ? PROGRAM_ROLE_BUFFER : PROGRAM_ROLE_PARAMETER;

    tensors->items = fleet_grow(tensors->items, tensors->count + (size_t)program->var_count,
                                sizeof(*tensors->items));
    for (int i = 0; i < program->var_count; i++)
        if (program->vars[i].role == role && has[i] &&
            (program == state->program || is_elsewhere(state, &program->vars[i])))
            add_tensor(tensors, state, space, &program->vars[i]);
}

static void add_space(struct checkpoint_tensors *tensors, const struct checkpoint_state *state,
                      const struct checkpoint_space *space)
{
    size_t first = tensors->count;

    add_tensors(tensors, state, space, state->program);
    if (state->whole)
        add_tensors(tensors, state, space, state->whole);
    if (tensors->count > first)
        qsort(tensors->items + first, tensors->count - first, sizeof(*tensors->items),
              compare_names);
}

void checkpoint_tensors_init(struct checkpoint_tensors *tensors,
                             const struct checkpoint_state *state)
{
    *tensors = (struct checkpoint_tensors){.backend = state->backend};
    for (int i = 0; i < state->space_count; i++)
        if (state->spaces[i].data || state->spaces[i].is_elsewhere)
            add_space(tensors, state, &state->spaces[i]);
}

void checkpoint_tensors_release(struct checkpoint_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++)
        free(tensors->items[i].name);
    free(tensors->items);
    *tensors = (struct checkpoint_tensors){0};
}
