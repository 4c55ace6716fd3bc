/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/gathers.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/plan/ownership.h"

bool gathers_is(const struct program_op *op)
{
    return op->kind == OP_ALL_GATHER && op->section == PROGRAM_SECTION_MICRO_BATCH &&
           op->attributes.owned && op->attributes.space == OP_SPACE_PARAMETERS;
}

bool gathers_are_used(const struct program *program)
{
    for (int i = 0; i < program->op_count; i++) {
        if (program->ops[i].section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        if (gathers_is(&program->ops[i]))
            return true;
    }
    return false;
}

/* The parameters among the variables, in their order. A program has ten times as many others. */
static int list_parameters(const struct program *program, int **out)
{
    int *list = malloc(((size_t)program->var_count + 1) * sizeof(*list)), count = 0;

    fleet_assert(list);
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_PARAMETER)
            list[count++] = v;
    *out = list;
    return count;
}

/* newest[v]: the newest gather of parameter v. */
static void take_range(const struct program *program, const int *parameters, int count, int gather,
                       int *newest)
{
    const struct op_attributes *range = &program->ops[gather].attributes;

    for (int i = 0; i < count; i++) {
        const struct program_var *var = &program->vars[parameters[i]];
        if (var->flat_offset >= range->flat_first &&
            var->flat_offset < range->flat_first + range->flat_count)
            newest[parameters[i]] = gather;
    }
}

int *gathers_of_inputs(const struct program *program)
{
    size_t rows = (size_t)program->op_count + 1;
    int *list = malloc(rows * OP_INPUTS_MAX * sizeof(*list));
    FLEET_AUTO_FREE int *newest = malloc(((size_t)program->var_count + 1) * sizeof(*newest));
    FLEET_AUTO_FREE int *parameters = NULL;
    int count = list_parameters(program, &parameters);

    fleet_assert(list && newest);
    for (size_t i = 0; i < rows * OP_INPUTS_MAX; i++)
        list[i] = PROGRAM_NONE;
    for (int v = 0; v < program->var_count; v++)
        newest[v] = PROGRAM_NONE;
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        if (gathers_is(op))
            take_range(program, parameters, count, i, newest);
        for (int j = 0; j < op->input_count; j++)
            if (op->inputs[j] != PROGRAM_NONE)
                list[i * OP_INPUTS_MAX + j] = newest[op->inputs[j]];
    }
    return list;
}

/* ---- types ----------------------------------------------------------------------------------- */

static enum program_type type_of_wire(enum op_wire wire)
{
    return wire == OP_WIRE_FP16 ? PROGRAM_FP16 : wire == OP_WIRE_BF16 ? PROGRAM_BF16 : PROGRAM_FP32;
}

/* types[v]: the type of the casts through which alone micro-batches read parameter v; fp32 if
 * another operator reads it, or none. */
static enum program_type *cast_types(const struct program *program)
{
    size_t count = (size_t)program->var_count + 1;
    enum program_type *types = calloc(count, sizeof(*types));
    FLEET_AUTO_FREE bool *is_read = calloc(count, sizeof(*is_read));

    fleet_assert(types && is_read);
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        for (int j = 0; j < op->input_count; j++) {
            int var = op->inputs[j];
            enum program_type type =
                op->kind == OP_CAST && op->attributes.stream == 0 /* else it rounds fp32 */
                    ? program->vars[op->outputs[0]].type
                    : PROGRAM_FP32;
            if (var == PROGRAM_NONE || program->vars[var].role != PROGRAM_ROLE_PARAMETER)
                continue;
            types[var] = !is_read[var] || types[var] == type ? type : PROGRAM_FP32;
            is_read[var] = true;
        }
    }
    return types;
}

/* The part behind `count` others of its gather; neighbours of one type are one part. */
static int add_part(struct gathers_part *items, int count, const struct gathers_part *part)
{
    if (count > 0 && items[count - 1].type == part->type) {
        items[count - 1].end = part->end;
        return count;
    }
    items[count] = *part;
    return count + 1;
}

struct parameters {
    const int *list; /* [count] */
    int count;
    const enum program_type *types; /* cast_types() */
};

/* The parts of one gather; a parameter's part ends where the next one begins. */
static int list_parts(const struct program *program, const struct parameters *parameters,
                      const struct program_op *op, struct gathers_part *items)
{
    enum program_type wire = type_of_wire(op->attributes.wire);
    int64_t first = op->attributes.flat_first, end = first + op->attributes.flat_count;
    struct gathers_part part = {.first = first, .type = PROGRAM_FP32};
    int count = 0;

    for (int i = 0; i < parameters->count; i++) {
        int v = parameters->list[i];
        const struct program_var *var = &program->vars[v];
        if (var->flat_offset < first || var->flat_offset >= end)
            continue;
        part.end = var->flat_offset;
        if (part.first < part.end)
            count = add_part(items, count, &part);
        part.first = var->flat_offset;
        part.type = parameters->types[v] == wire ? wire : PROGRAM_FP32;
    }
    part.end = end;
    return add_part(items, count, &part);
}

size_t gathers_halves(const struct program_op *op)
{
    return type_of_wire(op->attributes.wire) == PROGRAM_FP32
               ? 0
               : (size_t)op->attributes.flat_count * sizeof(uint16_t);
}

void gathers_parts_init(const struct program *program, struct gathers_parts *out)
{
    FLEET_AUTO_FREE enum program_type *types = NULL;
    FLEET_AUTO_FREE int *list = NULL;
    struct parameters parameters;
    size_t most, room = 0;
    int count = 0;

    *out = (struct gathers_parts){.starts =
                                      calloc((size_t)program->op_count + 1, sizeof(*out->starts))};
    fleet_assert(out->starts);
    if (!gathers_are_used(program))
        return;
    types = cast_types(program);
    parameters.count = list_parameters(program, &list);
    parameters.list = list;
    parameters.types = types;
    most = (size_t)parameters.count + 1;
    for (int i = 0; i < program->op_count; i++) {
        out->starts[i] = count;
        if (!gathers_is(&program->ops[i]))
            continue;
        if ((size_t)count + most > room) {
            room = 2 * room + most;
            out->items = realloc(out->items, room * sizeof(*out->items));
            fleet_assert(out->items);
        }
        count += list_parts(program, &parameters, &program->ops[i], out->items + count);
    }
    out->starts[program->op_count] = count;
}

void gathers_parts_release(struct gathers_parts *parts)
{
    free(parts->items);
    free(parts->starts);
    *parts = (struct gathers_parts){0};
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Replicas that get the line from `replica`. */
static int64_t receivers(const struct ownership *map, const struct ownership_line *line,
                         int replica)
{
    int64_t count = 0;

    if (ownership_owner(map, line, replica) != replica)
        return 0; /* only an owner answers for others */
    for (int r = 0; r < map->replicas; r++)
        count += r != replica && !ownership_holds(map, line, r) &&
                 ownership_owner(map, line, r) == replica;
    return count;
}

/* Elements of a part that `replica` sends, to all receivers. */
static int64_t elements_sent(const struct ownership *map, const struct gathers_part *part,
                             int replica)
{
    int64_t sum = 0;

    for (int i = 0; i < map->count; i++) {
        const struct ownership_line *line = &map->lines[i];
        int64_t from = line->first > part->first ? line->first : part->first;
        int64_t to = line->end < part->end ? line->end : part->end;
        if (line->spaces & OWNERSHIP_BIT(OWNERSHIP_PARAMETERS) && from < to)
            sum += (to - from) * receivers(map, line, replica);
    }
    return sum;
}

int64_t gathers_sent(const struct ownership *map, const struct gathers_parts *parts, int op,
                     int replica)
{
    int64_t bytes = 0;

    for (int i = parts->starts[op]; i < parts->starts[op + 1]; i++)
        bytes += elements_sent(map, &parts->items[i], replica) *
                 (int64_t)program_type_size(parts->items[i].type);
    return bytes;
}
