/* SPDX-License-Identifier: Apache-2.0 */

/*
 * State lies where the ownership map says, gradients where their flat offset does. Activations are
 * placed by walking the operators once: an output takes the smallest hole that holds it when it is
 * first written, and leaves it after its last use. Forward activations that backward reads pile up
 * and are taken down in reverse, so that holes close again; for the models here the arena is within
 * a few per cent of the largest sum of live bytes (asserted in the tests).
 */
#include "libfleet/plan/memory_plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/ownership.h"

struct hole {
    size_t offset, bytes;
};

/* Where one activation is while the walk goes on. */
struct tenant {
    int first, last;      /* operators between which it lives; -1: none touches it */
    size_t offset, bytes; /* bytes: of its place, rounded up */
    bool is_placed;
};

struct arena {
    struct hole *holes; /* ascending, never touching each other */
    int count, capacity;
    size_t end; /* bytes of the arena so far */
};

static size_t aligned(size_t bytes)
{
    return (bytes + PROGRAM_ALIGNMENT - 1) / PROGRAM_ALIGNMENT * PROGRAM_ALIGNMENT;
}

/* ---- holes ----------------------------------------------------------------------------------- */

static void remove_hole(struct arena *arena, int at)
{
    memmove(&arena->holes[at], &arena->holes[at + 1],
            (size_t)(arena->count - at - 1) * sizeof(*arena->holes));
    arena->count--;
}

static void insert_hole(struct arena *arena, int at, struct hole hole)
{
    if (arena->count == arena->capacity) {
        arena->capacity = arena->capacity ? 2 * arena->capacity : 64;
        arena->holes = realloc(arena->holes, (size_t)arena->capacity * sizeof(*arena->holes));
        fleet_assert(arena->holes);
    }
    memmove(&arena->holes[at + 1], &arena->holes[at],
            (size_t)(arena->count - at) * sizeof(*arena->holes));
    arena->holes[at] = hole;
    arena->count++;
}

/* The smallest hole that holds `bytes` (the lowest of equals); else the arena grows at its end. */
static size_t take(struct arena *arena, size_t bytes)
{
    int best = -1;
    size_t offset;

    for (int i = 0; i < arena->count; i++)
        if (arena->holes[i].bytes >= bytes &&
            (best < 0 || arena->holes[i].bytes < arena->holes[best].bytes))
            best = i;
    if (best >= 0) {
        offset = arena->holes[best].offset;
        arena->holes[best].offset += bytes;
        arena->holes[best].bytes -= bytes;
        if (arena->holes[best].bytes == 0)
            remove_hole(arena, best);
        return offset;
    }
    offset = arena->end;
    if (arena->count) {
        struct hole *last = &arena->holes[arena->count - 1];
        if (last->offset + last->bytes == arena->end) { /* begin in the hole at the end */
            offset = last->offset;
            remove_hole(arena, arena->count - 1);
        }
    }
    arena->end = offset + bytes;
    return offset;
}

static void give_back(struct arena *arena, size_t offset, size_t bytes)
{
    int at = 0;

    while (at < arena->count && arena->holes[at].offset < offset)
        at++;
    insert_hole(arena, at, (struct hole){offset, bytes});
    if (at + 1 < arena->count &&
        arena->holes[at].offset + arena->holes[at].bytes == arena->holes[at + 1].offset) {
        arena->holes[at].bytes += arena->holes[at + 1].bytes;
        remove_hole(arena, at + 1);
    }
    if (at > 0 &&
        arena->holes[at - 1].offset + arena->holes[at - 1].bytes == arena->holes[at].offset) {
        arena->holes[at - 1].bytes += arena->holes[at].bytes;
        remove_hole(arena, at);
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

static void touch(const struct program *program, struct tenant *tenants, int var, int at)
{
    if (var == PROGRAM_NONE || program->vars[var].role != PROGRAM_ROLE_ACTIVATION)
        return;
    if (tenants[var].first < 0)
        tenants[var].first = at;
    tenants[var].last = at;
}

static struct tenant *find_lives(const struct program *program)
{
    struct tenant *tenants = calloc((size_t)program->var_count + 1, sizeof(*tenants));

    fleet_assert(tenants);
    for (int i = 0; i < program->var_count; i++)
        tenants[i] = (struct tenant){
            .first = -1, .last = -1, .bytes = aligned(program_var_bytes(&program->vars[i]))};
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        for (int j = 0; j < op->input_count; j++)
            touch(program, tenants, op->inputs[j], i);
        for (int j = 0; j < op->output_count; j++)
            touch(program, tenants, op->outputs[j], i);
    }
    return tenants;
}

/* Output 0 may move into the place of input 0, which dies here and is of the same size. */
static bool move_in(const struct program_op *op, int at, struct tenant *tenants)
{
    struct tenant *in, *out;

    if (!op_definition(op->kind)->in_place || op->input_count == 0 || op->inputs[0] < 0 ||
        op->outputs[0] < 0)
        return false;
    in = &tenants[op->inputs[0]];
    out = &tenants[op->outputs[0]];
    if (!in->is_placed || in->last != at || out->is_placed || out->first != at ||
        in->bytes != out->bytes)
        return false;
    out->offset = in->offset;
    out->is_placed = true;
    in->is_placed = false;
    return true;
}

static void leave(struct arena *arena, struct tenant *tenant, int at)
{
    if (tenant->is_placed && tenant->last == at) {
        give_back(arena, tenant->offset, tenant->bytes);
        tenant->is_placed = false;
    }
}

static size_t place_activations(const struct program *program, struct tenant *tenants)
{
    struct arena arena = {0};

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];

        (void)move_in(op, i, tenants);
        for (int j = 0; j < op->output_count; j++) {
            struct tenant *out = op->outputs[j] < 0 ? NULL : &tenants[op->outputs[j]];
            if (out && out->first == i && !out->is_placed) {
                out->offset = take(&arena, out->bytes);
                out->is_placed = true;
            }
        }
        for (int j = 0; j < op->input_count; j++)
            if (op->inputs[j] >= 0)
                leave(&arena, &tenants[op->inputs[j]], i);
        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] >= 0)
                leave(&arena, &tenants[op->outputs[j]], i);
    }
    free(arena.holes);
    return arena.end;
}

/* ---- all segments ---------------------------------------------------------------------------- */

/* Of a flat space that is state; gradients and activations have none. */
static bool space_of(const struct program_var *var, enum ownership_space *out)
{
    switch (var->role) {
    case PROGRAM_ROLE_PARAMETER:
        *out = OWNERSHIP_PARAMETERS;
        return true;
    case PROGRAM_ROLE_STATE:
        *out = var->slot ? OWNERSHIP_STATE1 : OWNERSHIP_STATE0;
        return true;
    case PROGRAM_ROLE_BUFFER:
        *out = OWNERSHIP_BUFFERS;
        return true;
    default:
        return false;
    }
}

static const enum memory_segment segments[OWNERSHIP_SPACES] = {
    [OWNERSHIP_PARAMETERS] = MEMORY_PARAMETERS,
    [OWNERSHIP_STATE0] = MEMORY_STATE0,
    [OWNERSHIP_STATE1] = MEMORY_STATE1,
    [OWNERSHIP_BUFFERS] = MEMORY_BUFFERS,
};

static struct memory_place place_in_space(const struct program_var *var, enum ownership_space space,
                                          const struct ownership *map, int replica)
{
    int64_t at = ownership_place(map, space, var->flat_offset, replica);

    if (at == OWNERSHIP_NOBODY)
        return (struct memory_place){MEMORY_NOWHERE, 0};
    return (struct memory_place){segments[space], (size_t)at * sizeof(float)};
}

static struct memory_place place_of(const struct program_var *var, const struct tenant *tenant,
                                    size_t bytes[MEMORY_SEGMENT_COUNT])
{
    enum memory_segment segment;

    if (var->role == PROGRAM_ROLE_GRADIENT)
        return (struct memory_place){MEMORY_GRADIENTS, (size_t)var->flat_offset * sizeof(float)};
    if (var->role == PROGRAM_ROLE_ACTIVATION)
        return (struct memory_place){MEMORY_ARENA, tenant->offset};
    segment = var->role == PROGRAM_ROLE_INPUT    ? MEMORY_INPUTS
              : var->role == PROGRAM_ROLE_SCALAR ? MEMORY_SCALARS
                                                 : MEMORY_HOST;
    bytes[segment] += tenant->bytes;
    return (struct memory_place){segment, bytes[segment] - tenant->bytes};
}

/* Elements of the program's flat space. */
static int64_t count_of(const struct program *program, enum ownership_space space)
{
    if (space == OWNERSHIP_BUFFERS)
        return program->buffer_count;
    if ((space == OWNERSHIP_STATE0 && program->state_count < 1) ||
        (space == OWNERSHIP_STATE1 && program->state_count < 2))
        return 0;
    return program->flat_count;
}

static void lay_out(const struct program *program, const struct ownership *map, int replica,
                    const struct tenant *tenants, struct memory_plan *plan)
{
    for (int i = 0; i < program->var_count; i++) {
        enum ownership_space space;
        plan->places[i] = space_of(&program->vars[i], &space)
                              ? place_in_space(&program->vars[i], space, map, replica)
                              : place_of(&program->vars[i], &tenants[i], plan->bytes);
    }
    for (int space = 0; space < OWNERSHIP_SPACES; space++)
        plan->bytes[segments[space]] =
            (size_t)ownership_elements(map, (enum ownership_space)space,
                                       count_of(program, (enum ownership_space)space), replica) *
            sizeof(float);
    plan->bytes[MEMORY_GRADIENTS] = (size_t)program->flat_count * sizeof(float);
}

static int check(const struct program *program, struct fleet_error *err)
{
    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i];

        if (var->ndim == PROGRAM_UNSHAPED)
            return fleet_error(err, -EINVAL, "plan memory: %s has no shape", var->name);
        if (program_var_elements(var) > PROGRAM_ELEMENTS_MAX)
            return fleet_error(err, -EOVERFLOW, "plan memory: %s has more than 2^40 elements",
                               var->name);
        if (var->role == PROGRAM_ROLE_STATE && (var->slot < 0 || var->slot > 1))
            return fleet_error(err, -EINVAL, "plan memory: %s is state number %d, at most 1",
                               var->name, var->slot);
    }
    return 0;
}

int memory_plan_build(const struct program *program, const struct ownership *map, int replica,
                      struct memory_plan *out, struct fleet_error *err)
{
    struct memory_plan plan = {0};
    struct ownership whole = {0};
    struct tenant *tenants;
    int rc = check(program, err);

    if (rc < 0)
        return rc;
    if (!map)
        ownership_build_whole(1, &whole);
    plan.places = calloc((size_t)program->var_count + 1, sizeof(*plan.places));
    fleet_assert(plan.places);
    tenants = find_lives(program);
    plan.bytes[MEMORY_ARENA] = place_activations(program, tenants);
    lay_out(program, map ? map : &whole, replica, tenants, &plan);
    free(tenants);
    ownership_release(&whole);
    for (int i = 0; i < program->op_count; i++) {
        struct op_cost cost;
        op_cost(program, &program->ops[i], &cost);
        if (aligned(cost.scratch_bytes) > plan.bytes[MEMORY_SCRATCH])
            plan.bytes[MEMORY_SCRATCH] = aligned(cost.scratch_bytes);
    }
    *out = plan;
    return 0;
}

void memory_plan_release(struct memory_plan *plan)
{
    free(plan->places);
    *plan = (struct memory_plan){0};
}
