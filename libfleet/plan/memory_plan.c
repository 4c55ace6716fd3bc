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
#include "libfleet/plan/adders.h"
#include "libfleet/plan/arena.h"
#include "libfleet/plan/gathers.h"
#include "libfleet/plan/ownership.h"

/* Where an activation, a bucket of gradients, or a gathered range is while the walk goes on. */
struct tenant {
    int first, last;      /* operators between which it lives; -1: none touches it */
    size_t offset, bytes; /* bytes: of its place, rounded up */
    bool is_placed;
};

static size_t aligned(size_t bytes)
{
    return (bytes + PROGRAM_ALIGNMENT - 1) / PROGRAM_ALIGNMENT * PROGRAM_ALIGNMENT;
}

/* ---- activations ----------------------------------------------------------------------------- */

/* The tenants of a program: its variables, then its operators, each for its bucket or range. */
struct tenants {
    struct tenant *items;
    int *homes; /* [var_count] the tenant in whose place a variable lies: itself, or a bucket */
    bool *passed_on; /* [var_count] a gradient that lies in the arena without a bucket */
    int vars;
    const int *gathers; /* of the plan */
};

static bool has_bucket(const struct program_op *op)
{
    return op->kind == OP_TREE_SUM && op->section == PROGRAM_SECTION_MICRO_BATCH;
}

/* The gradients of a range lie in one place, as they do in the flat space. */
static void make_bucket(const struct program *program, const int *gradients, int count,
                        struct tenants *t, int at)
{
    const struct op_attributes *range = &program->ops[at].attributes;

    t->items[t->vars + at].bytes = aligned((size_t)range->flat_count * sizeof(float));
    for (int i = 0; i < count; i++) {
        const struct program_var *var = &program->vars[gradients[i]];
        if (var->flat_offset >= range->flat_first &&
            var->flat_offset < range->flat_first + range->flat_count)
            t->homes[gradients[i]] = t->vars + at;
    }
}

/* The buckets and ranges; a program has far more variables than gradients. */
static void make_buckets(const struct program *program, struct tenants *t)
{
    int *gradients = malloc(((size_t)program->var_count + 1) * sizeof(*gradients)), count = 0;

    fleet_assert(gradients);
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_GRADIENT)
            gradients[count++] = v;
    for (int i = 0; i < program->op_count; i++)
        if (has_bucket(&program->ops[i]))
            make_bucket(program, gradients, count, t, i);
    free(gradients);
}

/* NULL: the input is no gathered parameter. */
static struct tenant *gathered(const struct tenants *t, int op, int input)
{
    int gather = t->gathers ? t->gathers[op * OP_INPUTS_MAX + input] : PROGRAM_NONE;

    return gather == PROGRAM_NONE ? NULL : &t->items[t->vars + gather];
}

/* It has no sum over ranks: an earlier stage of a pipeline sums it. It lies in the arena alone. */
static bool is_passed_on(const struct program *program, int var)
{
    const struct program_var *of = &program->vars[var];

    return of->role == PROGRAM_ROLE_GRADIENT && program->vars[of->of].is_copy;
}

static void touch_tenant(struct tenant *tenant, int at)
{
    if (tenant->first < 0)
        tenant->first = at;
    tenant->last = at;
}

static void touch(const struct program *program, struct tenants *t, int var, int at)
{
    bool is_gradient = var != PROGRAM_NONE && (t->homes[var] != var || t->passed_on[var]);

    if (is_gradient ? program->ops[at].section == PROGRAM_SECTION_MICRO_BATCH
                    : var != PROGRAM_NONE && program->vars[var].role == PROGRAM_ROLE_ACTIVATION)
        touch_tenant(&t->items[t->homes[var]], at);
}

static void touch_gathered(const struct tenants *t, const struct program_op *op, int at)
{
    for (int j = 0; j < op->input_count; j++) {
        struct tenant *range = gathered(t, at, j);
        if (range)
            touch_tenant(range, at);
    }
}

static struct tenants find_lives(const struct program *program, const int *gathers)
{
    size_t count = (size_t)program->var_count + (size_t)program->op_count + 1;
    struct tenants t = {.items = calloc(count, sizeof(*t.items)),
                        .homes = calloc(count, sizeof(*t.homes)),
                        .passed_on = calloc(count, sizeof(*t.passed_on)),
                        .vars = program->var_count,
                        .gathers = gathers};
    bool sums = adders_are_used(program);

    fleet_assert(t.items && t.homes && t.passed_on);
    for (size_t i = 0; i < count; i++)
        t.items[i] = (struct tenant){.first = -1, .last = -1};
    for (int i = 0; i < program->var_count; i++) {
        t.items[i].bytes = aligned(program_var_bytes(&program->vars[i]));
        t.homes[i] = i;
    }
    make_buckets(program, &t);
    for (int i = 0; sums && i < program->var_count; i++)
        t.passed_on[i] = t.homes[i] == i && is_passed_on(program, i);
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        for (int j = 0; j < op->input_count; j++)
            touch(program, &t, op->inputs[j], i);
        for (int j = 0; j < op->output_count; j++)
            touch(program, &t, op->outputs[j], i);
        if (has_bucket(op))
            touch_tenant(&t.items[t.vars + i], i);
        if (gathers_is(op)) {
            t.items[t.vars + i].bytes = aligned((size_t)op->attributes.flat_count * sizeof(float));
            touch_tenant(&t.items[t.vars + i], i);
        }
        touch_gathered(&t, op, i);
    }
    return t;
}

static void release_lives(struct tenants *t)
{
    free(t->items);
    free(t->homes);
    free(t->passed_on);
}

/* NULL: there is no variable. */
static struct tenant *tenant_of(const struct tenants *t, int var)
{
    return var == PROGRAM_NONE ? NULL : &t->items[t->homes[var]];
}

/* Output 0 may move into the place of input 0, which dies here and is of the same size. */
static bool move_in(const struct program_op *op, int at, const struct tenants *t)
{
    struct tenant *in, *out;

    if (!op_definition(op->kind)->in_place || op->input_count == 0 || op->inputs[0] < 0 ||
        op->outputs[0] < 0)
        return false;
    in = tenant_of(t, op->inputs[0]);
    out = tenant_of(t, op->outputs[0]);
    if (t->homes[op->inputs[0]] != op->inputs[0] || t->homes[op->outputs[0]] != op->outputs[0] ||
        !in->is_placed || in->last != at || out->is_placed || out->first != at ||
        in->bytes != out->bytes)
        return false;
    out->offset = in->offset;
    out->is_placed = true;
    in->is_placed = false;
    return true;
}

/* What lives now, and the most so far. */
struct live {
    size_t bytes, most;
};

static void leave(struct arena *arena, struct live *live, struct tenant *tenant, int at)
{
    if (tenant && tenant->is_placed && tenant->last == at) {
        arena_give_back(arena, tenant->offset, tenant->bytes);
        live->bytes -= tenant->bytes;
        tenant->is_placed = false;
    }
}

static void enter(struct arena *arena, struct live *live, struct tenant *tenant, int at)
{
    if (tenant && tenant->first == at && !tenant->is_placed) {
        tenant->offset = arena_take(arena, tenant->bytes);
        live->bytes += tenant->bytes;
        live->most = live->bytes > live->most ? live->bytes : live->most;
        tenant->is_placed = true;
    }
}

static size_t place_activations(const struct program *program, struct tenants *t, size_t *out_live)
{
    struct arena arena = {0};
    struct live live = {0};

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];

        (void)move_in(op, i, t);
        for (int j = 0; j < op->output_count; j++)
            enter(&arena, &live, tenant_of(t, op->outputs[j]), i);
        if (gathers_is(op))
            enter(&arena, &live, &t->items[t->vars + i], i);
        for (int j = 0; j < op->input_count; j++)
            leave(&arena, &live, tenant_of(t, op->inputs[j]), i);
        for (int j = 0; j < op->input_count; j++)
            leave(&arena, &live, gathered(t, i, j), i);
        for (int j = 0; j < op->output_count; j++)
            leave(&arena, &live, tenant_of(t, op->outputs[j]), i);
        leave(&arena, &live, &t->items[t->vars + i], i);
    }
    free(arena.holes);
    *out_live = live.most;
    return arena.end;
}

/* ---- all segments ---------------------------------------------------------------------------- */

/* Of a flat space that the ownership map divides. */
static bool space_of(const struct program_var *var, enum ownership_space *out)
{
    switch (var->role) {
    case PROGRAM_ROLE_GRADIENT:
        *out = OWNERSHIP_GRADIENTS;
        return true;
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
    [OWNERSHIP_GRADIENTS] = MEMORY_GRADIENTS, [OWNERSHIP_PARAMETERS] = MEMORY_PARAMETERS,
    [OWNERSHIP_STATE0] = MEMORY_STATE0,       [OWNERSHIP_STATE1] = MEMORY_STATE1,
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

/* Buckets of gradients are in the arena, what becomes of them is in the space of sums. Gathered
 * ranges are there, too. */
static void lay_out_buckets(const struct program *program, const struct tenants *t,
                            struct memory_plan *plan)
{
    for (int i = 0; i < program->op_count; i++)
        plan->ranges[i] = (struct memory_place){
            has_bucket(&program->ops[i]) || gathers_is(&program->ops[i]) ? MEMORY_ARENA
                                                                         : MEMORY_NOWHERE,
            t->items[t->vars + i].offset};
    for (int v = 0; v < program->var_count; v++) {
        int at = t->homes[v] - t->vars;
        plan->sums[v] = plan->places[v];
        if (t->passed_on[v])
            plan->places[v] = (struct memory_place){MEMORY_ARENA, t->items[v].offset};
        else if (t->homes[v] != v)
            plan->places[v] = (struct memory_place){
                MEMORY_ARENA, plan->ranges[at].offset +
                                  sizeof(float) * (size_t)(program->vars[v].flat_offset -
                                                           program->ops[at].attributes.flat_first)};
    }
}

/* Elements that the replica adds up; -1 as replica has no place yet. */
static size_t adder_bytes(const struct program *program, const struct ownership *map, int replica)
{
    int64_t count = program->flat_count;

    return replica < 0 ? 0 : sizeof(float) * (size_t)adders_elements(map, count, replica, 0, count);
}

static void lay_out(const struct program *program, const struct ownership *map, int replica,
                    const struct tenants *t, struct memory_plan *plan)
{
    for (int i = 0; i < program->var_count; i++) {
        enum ownership_space space;
        plan->places[i] = space_of(&program->vars[i], &space)
                              ? place_in_space(&program->vars[i], space, map, replica)
                              : place_of(&program->vars[i], &t->items[i], plan->bytes);
    }
    for (int space = 0; space < OWNERSHIP_SPACES; space++)
        plan->bytes[segments[space]] =
            (size_t)ownership_elements(map, (enum ownership_space)space,
                                       count_of(program, (enum ownership_space)space), replica) *
            sizeof(float);
    plan->further_slot_bytes = plan->bytes[MEMORY_GRADIENTS];
    if (plan->sums) {
        plan->further_slot_bytes = adder_bytes(program, map, replica);
        lay_out_buckets(program, t, plan);
    }
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
    struct tenants tenants;
    int rc = check(program, err);

    if (rc < 0)
        return rc;
    if (!map)
        ownership_build_whole(1, &whole);
    plan.places = calloc((size_t)program->var_count + 1, sizeof(*plan.places));
    fleet_assert(plan.places);
    if (gathers_are_used(program))
        plan.gathers = gathers_of_inputs(program);
    if (adders_are_used(program)) {
        plan.sums = calloc((size_t)program->var_count + 1, sizeof(*plan.sums));
        plan.ranges = calloc((size_t)program->op_count + 1, sizeof(*plan.ranges));
        fleet_assert(plan.sums && plan.ranges);
    }
    fleet_assert(plan.sums || !plan.gathers); /* what divides parameters divides gradients, too */
    plan.is_of_host[MEMORY_HOST] = true;
    plan.is_of_host[MEMORY_STATE0] = plan.is_of_host[MEMORY_STATE1] = program->offloads_states;
    tenants = find_lives(program, plan.gathers);
    plan.bytes[MEMORY_ARENA] = place_activations(program, &tenants, &plan.live_bytes);
    lay_out(program, map ? map : &whole, replica, &tenants, &plan);
    release_lives(&tenants);
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

struct memory_place memory_plan_place(const struct memory_plan *plan, enum program_section section,
                                      int var)
{
    if (var == PROGRAM_NONE)
        return (struct memory_place){MEMORY_NOWHERE, 0};
    return (plan->sums && section != PROGRAM_SECTION_MICRO_BATCH ? plan->sums : plan->places)[var];
}

struct memory_place memory_plan_input(const struct memory_plan *plan, const struct program *program,
                                      const struct program_op *op, int input)
{
    int var = op->inputs[input], number = (int)(op - program->ops);
    int gather = plan->gathers ? plan->gathers[number * OP_INPUTS_MAX + input] : PROGRAM_NONE;
    struct memory_place place;

    if (gather == PROGRAM_NONE)
        return memory_plan_place(plan, op->section, var);
    place = plan->ranges[gather];
    place.offset += sizeof(float) * (size_t)(program->vars[var].flat_offset -
                                             program->ops[gather].attributes.flat_first);
    return place;
}

void memory_plan_release(struct memory_plan *plan)
{
    free(plan->places);
    free(plan->sums);
    free(plan->ranges);
    free(plan->gathers);
    *plan = (struct memory_plan){0};
}
