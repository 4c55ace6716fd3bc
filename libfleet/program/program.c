/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two growing arrays and an index from names to variables. Growing aborts when memory is out: the
 * largest program we accept takes some 60 MB, and a failure path in every builder would hide the
 * models.
 */
#include "libfleet/program/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

void program_init(struct program *program, const char *name)
{
    *program = (struct program){.name = strdup(name),
                                .loss = PROGRAM_NONE,
                                .loss_scaling = PROGRAM_NONE,
                                .tokens_per_sample = 1,
                                .merge_steps = 1};
    fleet_assert(program->name);
}

void program_release(struct program *program)
{
    for (int i = 0; i < program->var_count; i++)
        free(program->vars[i].name);
    free(program->vars);
    free(program->ops);
    free(program->name);
    fleet_map_release(&program->names);
    *program = (struct program){0};
}

static void *grown(void *items, int count, int *capacity, size_t size)
{
    if (count < *capacity)
        return items;
    *capacity = *capacity ? 2 * *capacity : 64;
    items = realloc(items, (size_t)*capacity * size);
    fleet_assert(items);
    return items;
}

static void index_name(struct program *program, int var)
{
    bool is_new =
        fleet_map_insert(&program->names, program->vars[var].name, (void *)(intptr_t)(var + 1));
    fleet_assert(is_new);
}

void program_copy(const struct program *program, struct program *out)
{
    *out = *program;
    out->name = strdup(program->name);
    out->var_capacity = program->var_count;
    out->op_capacity = program->op_count;
    out->vars = calloc((size_t)program->var_count + 1, sizeof(*out->vars));
    out->ops = calloc((size_t)program->op_count + 1, sizeof(*out->ops));
    out->names = (struct fleet_map){0};
    fleet_assert(out->name && out->vars && out->ops);

    if (program->op_count)
        memcpy(out->ops, program->ops, (size_t)program->op_count * sizeof(*out->ops));
    for (int i = 0; i < program->var_count; i++) {
        out->vars[i] = program->vars[i];
        out->vars[i].name = fleet_dup_text(program->vars[i].name);
        index_name(out, i);
    }
}

int program_add_var(struct program *program, const char *name, enum program_type type,
                    enum program_role role, int ndim, const int64_t *shape)
{
    int index = program->var_count;
    struct program_var *var;
    int64_t dims[PROGRAM_DIMS_MAX];

    fleet_assert(index < PROGRAM_VARS_MAX);
    fleet_assert(ndim >= PROGRAM_UNSHAPED && ndim <= PROGRAM_DIMS_MAX);
    if (ndim > 0) /* it may be another variable's, which moves when the list grows */
        memcpy(dims, shape, (size_t)ndim * sizeof(*shape));
    program->vars = grown(program->vars, index, &program->var_capacity, sizeof(*program->vars));
    var = &program->vars[index];
    *var = (struct program_var){.name = strdup(name),
                                .type = type,
                                .role = role,
                                .ndim = ndim,
                                .of = PROGRAM_NONE,
                                .flat_offset = -1,
                                .layer = -1};
    fleet_assert(var->name);
    if (ndim > 0)
        memcpy(var->shape, dims, (size_t)ndim * sizeof(*dims));
    program->var_count++;
    index_name(program, index);
    return index;
}

int program_add_like(struct program *program, int var, const char *suffix, enum program_role role)
{
    char name[PROGRAM_NAME_MAX + 64];
    struct program_var like = program->vars[var];
    int index;

    (void)snprintf(name, sizeof(name), "%s%s", like.name, suffix);
    index = program_add_var(program, name, like.type, role, like.ndim, like.shape);
    program->vars[index].layer = like.layer;
    return index;
}

struct program_op *program_insert_op(struct program *program, int at, const struct program_op *op)
{
    int count = program->op_count;

    fleet_assert(count < PROGRAM_OPS_MAX && at >= 0 && at <= count);
    fleet_assert(at == 0 || program->ops[at - 1].section <= op->section);
    fleet_assert(at == count || op->section <= program->ops[at].section);
    program->ops = grown(program->ops, count, &program->op_capacity, sizeof(*program->ops));
    memmove(&program->ops[at + 1], &program->ops[at], (size_t)(count - at) * sizeof(*program->ops));
    program->ops[at] = *op;
    program->op_count++;
    return &program->ops[at];
}

void program_insertions_add(struct program_insertions *list, int at, const struct program_op *op)
{
    fleet_assert(list->count == 0 || list->items[list->count - 1].at <= at);
    list->items = fleet_grow(list->items, (size_t)list->count, sizeof(*list->items));
    list->items[list->count++] = (struct program_insertion){at, *op};
}

/* From the end, so that each operator moves once. */
void program_insert_ops(struct program *program, struct program_insertions *list)
{
    int count = program->op_count, end = count;

    fleet_assert(count + list->count <= PROGRAM_OPS_MAX);
    for (int i = 0; i < list->count; i++)
        program->ops = grown(program->ops, count + i, &program->op_capacity, sizeof(*program->ops));
    for (int i = list->count - 1; i >= 0; i--) {
        const struct program_insertion *item = &list->items[i];

        fleet_assert(item->at >= 0 && item->at <= end);
        memmove(&program->ops[item->at + i + 1], &program->ops[item->at],
                (size_t)(end - item->at) * sizeof(*program->ops));
        program->ops[item->at + i] = item->op;
        end = item->at;
    }
    program->op_count += list->count;
    free(list->items);
    *list = (struct program_insertions){0};
}

struct program_op *program_add_op(struct program *program, const struct program_op *op)
{
    return program_insert_op(program, program->op_count, op);
}

int program_find_var(const struct program *program, const char *name)
{
    return (int)(intptr_t)fleet_map_get(&program->names, name) - 1;
}

/* ---- what belongs to a parameter ------------------------------------------------------------- */

#define COMPANION_SIZE (PROGRAM_NAME_MAX + 32)

static int add_companion(struct program *program, int parameter, const char *name,
                         enum program_role role, int slot)
{
    struct program_var p = program->vars[parameter];
    int index = program_add_var(program, name, PROGRAM_FP32, role, p.ndim, p.shape);

    program->vars[index].of = parameter;
    program->vars[index].slot = slot;
    program->vars[index].layer = p.layer;
    return index;
}

int program_add_gradient(struct program *program, int parameter)
{
    char name[COMPANION_SIZE];

    (void)snprintf(name, sizeof(name), "%s@GRAD", program->vars[parameter].name);
    return add_companion(program, parameter, name, PROGRAM_ROLE_GRADIENT, 0);
}

int program_add_state(struct program *program, int parameter, int slot)
{
    char name[COMPANION_SIZE];

    (void)snprintf(name, sizeof(name), "%s@STATE%d", program->vars[parameter].name, slot);
    return add_companion(program, parameter, name, PROGRAM_ROLE_STATE, slot);
}

static int find_companion(const struct program *program, const char *name, enum program_role role,
                          int parameter)
{
    int index = program_find_var(program, name);

    if (index == PROGRAM_NONE || program->vars[index].role != role ||
        program->vars[index].of != parameter)
        return PROGRAM_NONE;
    return index;
}

int program_gradient_of(const struct program *program, int parameter)
{
    char name[COMPANION_SIZE];

    (void)snprintf(name, sizeof(name), "%s@GRAD", program->vars[parameter].name);
    return find_companion(program, name, PROGRAM_ROLE_GRADIENT, parameter);
}

int program_state_of(const struct program *program, int parameter, int slot)
{
    char name[COMPANION_SIZE];

    (void)snprintf(name, sizeof(name), "%s@STATE%d", program->vars[parameter].name, slot);
    return find_companion(program, name, PROGRAM_ROLE_STATE, parameter);
}

/* ---- sizes and names ------------------------------------------------------------------------- */

int64_t program_var_elements(const struct program_var *var)
{
    int64_t elements = var->ndim < 0 ? 0 : 1;

    for (int i = 0; i < var->ndim; i++)
        if (__builtin_mul_overflow(elements, var->shape[i], &elements))
            return INT64_MAX;
    return elements;
}

size_t program_type_size(enum program_type type)
{
    switch (type) {
    case PROGRAM_FP32:
    case PROGRAM_INT32:
        return 4;
    case PROGRAM_BF16:
    case PROGRAM_FP16:
        return 2;
    case PROGRAM_UINT8:
        return 1;
    }
    fleet_assert(!"type");
    return 0;
}

const char *program_type_name(enum program_type type)
{
    static const char *const names[] = {"fp32", "bf16", "fp16", "int32", "uint8"};

    fleet_assert((size_t)type < FLEET_COUNT(names));
    return names[type];
}

const char *program_role_name(enum program_role role)
{
    static const char *const names[] = {"input",  "parameter",  "gradient", "state",
                                        "buffer", "activation", "scalar",   "host"};

    fleet_assert((size_t)role < FLEET_COUNT(names));
    return names[role];
}

const char *program_section_name(enum program_section section)
{
    static const char *const names[] = {"micro_batch", "exchange", "check", "update", "average"};

    fleet_assert((size_t)section < FLEET_COUNT(names));
    return names[section];
}

size_t program_var_bytes(const struct program_var *var)
{
    return (size_t)program_var_elements(var) * program_type_size(var->type);
}

/* Rows of the table in which `op` looks `var` up; INT32_MAX: in none. */
static int64_t rows_of(const struct program *program, const struct program_op *op, int var)
{
    const struct program_var *logits;

    if (op->kind == OP_EMBEDDING && op->inputs[0] == var)
        return program->vars[op->inputs[1]].shape[0];
    if (op->kind == OP_LINEAR_CROSS_ENTROPY && op->inputs[2] == var)
        return program->vars[op->inputs[1]].shape[op->attributes.transposed ? 0 : 1];
    if (op->kind != OP_CROSS_ENTROPY || op->inputs[1] != var)
        return INT32_MAX;
    logits = &program->vars[op->inputs[0]];
    return logits->ndim > 0 ? logits->shape[logits->ndim - 1] : INT32_MAX;
}

int64_t program_value_limit(const struct program *program, int var)
{
    int64_t limit = INT32_MAX;

    for (int i = 0; i < program->op_count; i++) {
        int64_t rows = rows_of(program, &program->ops[i], var);
        if (rows < limit)
            limit = rows;
    }
    return limit;
}

/* ---- parameters by name, flat spaces --------------------------------------------------------- */

struct named {
    const char *name;
    int index;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

int program_parameters(const struct program *program, bool trained_only, int **out)
{
    struct named *list = calloc((size_t)program->var_count + 1, sizeof(*list));
    int count = 0;

    *out = calloc((size_t)program->var_count + 1, sizeof(**out));
    fleet_assert(list && *out);
    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i];
        if (var->role == PROGRAM_ROLE_PARAMETER && (!trained_only || var->trained))
            list[count++] = (struct named){var->name, i};
    }
    qsort(list, (size_t)count, sizeof(*list), compare_names);
    for (int i = 0; i < count; i++)
        (*out)[i] = list[i].index;
    free(list);
    return count;
}

/* Lay the variables of `role` one after the other; returns the elements used. */
static int64_t lay_out(struct program *program, enum program_role role)
{
    int64_t end = 0;

    for (int i = 0; i < program->var_count; i++) {
        struct program_var *var = &program->vars[i];
        int64_t elements = program_var_elements(var);

        if (var->role != role)
            continue;
        fleet_assert(elements <= PROGRAM_ELEMENTS_MAX);
        var->flat_offset = end;
        end += (elements + PROGRAM_FLAT_ALIGNMENT - 1) / PROGRAM_FLAT_ALIGNMENT *
               PROGRAM_FLAT_ALIGNMENT;
    }
    return end;
}

void program_layout(struct program *program)
{
    program->flat_count = lay_out(program, PROGRAM_ROLE_PARAMETER);
    program->buffer_count = lay_out(program, PROGRAM_ROLE_BUFFER);
    for (int i = 0; i < program->var_count; i++) {
        struct program_var *var = &program->vars[i];
        if (var->role == PROGRAM_ROLE_GRADIENT || var->role == PROGRAM_ROLE_STATE)
            var->flat_offset = program->vars[var->of].flat_offset;
    }
}
