/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/gathers.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/program/program.h"

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

/* newest[v]: the newest gather of parameter v. */
static void take_range(const struct program *program, int gather, int *newest)
{
    const struct op_attributes *range = &program->ops[gather].attributes;

    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        if (var->role == PROGRAM_ROLE_PARAMETER && var->flat_offset >= range->flat_first &&
            var->flat_offset < range->flat_first + range->flat_count)
            newest[v] = gather;
    }
}

int *gathers_of_inputs(const struct program *program)
{
    size_t rows = (size_t)program->op_count + 1;
    int *list = malloc(rows * OP_INPUTS_MAX * sizeof(*list));
    FLEET_AUTO_FREE int *newest = malloc(((size_t)program->var_count + 1) * sizeof(*newest));

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
            take_range(program, i, newest);
        for (int j = 0; j < op->input_count; j++)
            if (op->inputs[j] != PROGRAM_NONE)
                list[i * OP_INPUTS_MAX + j] = newest[op->inputs[j]];
    }
    return list;
}

/* Replicas that get the line from `replica`. */
static int64_t receivers(const struct ownership *map, const struct ownership_line *line,
                         int replica)
{
    int64_t count = 0;

    for (int r = 0; r < map->replicas; r++)
        count += r != replica && !ownership_holds(map, line, r) &&
                 ownership_owner(map, line, r) == replica;
    return count;
}

int64_t gathers_sent(const struct ownership *map, int replica, int64_t first, int64_t end)
{
    int64_t sum = 0;

    for (int i = 0; i < map->count; i++) {
        const struct ownership_line *line = &map->lines[i];
        int64_t from = line->first > first ? line->first : first;
        int64_t to = line->end < end ? line->end : end;
        if (line->spaces & OWNERSHIP_BIT(OWNERSHIP_PARAMETERS) && from < to)
            sum += (to - from) * receivers(map, line, replica);
    }
    return sum;
}
