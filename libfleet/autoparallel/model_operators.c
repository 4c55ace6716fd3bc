/* SPDX-License-Identifier: Apache-2.0 */

/* The program of a rank has the slices of a grid already: a dimension that is smaller there than in
 * the whole program is divided. */
#include "libfleet/autoparallel/model_operators.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/memory.h"
#include "libfleet/program/models/model.h"
#include "libfleet/training/training.h"

#define SAMPLES_LEAST 2 /* dimensions of one element are no axes */

/* The forward part of `cell` for a micro-batch. */
static int build(const struct training_config *training, const struct program_cell *cell,
                 struct program *out, struct fleet_error *err)
{
    struct training_config copy = *training; /* shallow */

    if (copy.micro_batch_size < SAMPLES_LEAST)
        copy.micro_batch_size = SAMPLES_LEAST;
    copy.has_evaluation = false; /* the plan checks what it asks of micro-batches */
    return model_build(&copy, cell, out, err);
}

int model_operators_init(const struct training_config *training, struct model_operators *out,
                         struct fleet_error *err)
{
    out->training = training;
    return build(training, NULL, &out->program, err);
}

void model_operators_release(struct model_operators *operators)
{
    program_release(&operators->program);
}

const char *model_operators_name(const struct model_operators *operators, int op)
{
    return operators->program.vars[operators->program.ops[op].outputs[0]].name;
}

void model_operators_axes(const struct model_operators *operators, int op,
                          struct operator_axes *out)
{
    const struct program_op *it = &operators->program.ops[op];
    struct operator_operand *logits = &out->inputs[0];

    operator_axes_build(&operators->program, it, out);
    out->exclusive[0] = out->exclusive[1] = 0;
    if (out->count > 0) {
        int64_t batch = operators->training->global_batch_size;

        out->size[0] = batch;
        for (int i = 0; i < OP_INPUTS_MAX; i++)
            for (int d = 0; d < out->inputs[i].dims; d++)
                if (out->inputs[i].axis[d] == 0)
                    out->inputs[i].shape[d] = batch;
        for (int i = 0; i < OP_OUTPUTS_MAX; i++)
            for (int d = 0; d < out->outputs[i].dims; d++)
                if (out->outputs[i].axis[d] == 0)
                    out->outputs[i].shape[d] = batch;
    }
    if (it->kind == OP_CROSS_ENTROPY)
        logits->axis[logits->dims - 1] = operator_axes_add(out, logits->shape[logits->dims - 1]);
}

/* ---- grids ----------------------------------------------------------------------------------- */

/* An operator of the whole program beside that of a rank. */
struct pair {
    const struct program *whole, *part;
    const struct operator_grid *grid;
    int64_t micro_batch; /* samples */
};

static int64_t exact_or(int64_t whole, int64_t part, int64_t ranks)
{
    return whole == part ? 1 : whole % part == 0 ? whole / part : ranks;
}

/* Dimension 0 or 1 of `whole` is divided into `parts`: samples, which real micro-batches may not
 * allow, or tokens. */
static void divide_rows(const struct pair *p, const struct program_var *whole,
                        const struct program_var *part, int64_t parts,
                        int64_t split[PROGRAM_DIMS_MAX])
{
    bool by_samples = p->grid->by_operator && part->ndim == whole->ndim && part->ndim >= 2 &&
                      part->shape[1] == whole->shape[1];

    if (!by_samples)
        split[1] = parts;
    else if (p->micro_batch % parts == 0)
        split[0] = parts;
}

/* How often each dimension of `whole` is divided; the samples beside what replicas do. */
static void compare(const struct pair *p, const struct program_var *whole,
                    const struct program_var *part, int64_t split[PROGRAM_DIMS_MAX])
{
    int last = whole->ndim - 1;
    int64_t columns, tokens;

    for (int d = 0; d < PROGRAM_DIMS_MAX; d++)
        split[d] = 1;
    if (last < 0)
        return;
    if (whole->role == PROGRAM_ROLE_PARAMETER) {
        for (int d = 0; d <= last; d++)
            split[d] = exact_or(whole->shape[d], part->shape[d], p->grid->model);
        return;
    }
    if (whole->type == PROGRAM_INT32 && whole->ndim == 2) { /* tokens */
        divide_rows(p, whole, part, program_var_elements(whole) / program_var_elements(part),
                    split);
        return;
    }
    columns = part->shape[part->ndim - 1];
    split[last] = exact_or(whole->shape[last], columns, p->grid->model);
    tokens =
        program_var_elements(whole) / whole->shape[last] / (program_var_elements(part) / columns);
    if (whole->ndim >= 3)
        divide_rows(p, whole, part, tokens, split);
}

static void take(const struct pair *p, const struct operator_operand *operand, int part,
                 struct operator_strategy *strategy)
{
    int64_t split[PROGRAM_DIMS_MAX];

    if (operand->var == PROGRAM_NONE || part == PROGRAM_NONE)
        return; /* a bias that is added to the sum of all parts */
    compare(p, &p->whole->vars[operand->var], &p->part->vars[part], split);
    for (int d = 0; d < operand->dims; d++) {
        int axis = operand->axis[d];

        if (axis != OPERATOR_WHOLE && split[d] > strategy->parts[axis])
            strategy->parts[axis] = split[d];
    }
}

/* The operator of the rank's program that does what `op` does. */
static const struct program_op *find(const struct pair *p, const struct program_op *op,
                                     const int *writers)
{
    int var = program_find_var(p->part, p->whole->vars[op->outputs[0]].name);

    if (op->kind != OP_CROSS_ENTROPY) /* its output has another name where ranks average losses */
        return var == PROGRAM_NONE || writers[var] < 0 ? NULL : &p->part->ops[writers[var]];
    for (int i = p->part->op_count - 1; i >= 0; i--)
        if (p->part->ops[i].kind == op->kind)
            return &p->part->ops[i];
    return NULL;
}

static void divide(const struct model_operators *operators, const struct pair *p, int op,
                   const int *writers, struct operator_strategy *out)
{
    const struct program_op *whole = &operators->program.ops[op];
    const struct program_op *part = find(p, whole, writers);
    int64_t devices = (int64_t)p->grid->data * p->grid->sequence * p->grid->model;
    struct operator_axes axes;

    model_operators_axes(operators, op, &axes);
    for (int i = 0; i < OPERATOR_AXES_MAX; i++)
        out->parts[i] = 1;
    if (part && part->kind == whole->kind) {
        for (int i = 0; i < axes.input_count; i++)
            take(p, &axes.inputs[i], i < part->input_count ? part->inputs[i] : PROGRAM_NONE, out);
        take(p, &axes.outputs[0], part->outputs[0], out);
    }
    out->parts[0] *= p->grid->data;
    out->repeated = devices;
    for (int i = 0; i < axes.count; i++)
        out->repeated /= out->parts[i];
}

int model_operators_divide(const struct model_operators *operators,
                           const struct operator_grid *grid, struct operator_strategy *out,
                           struct fleet_error *err)
{
    struct program_cell cell = {.model_ranks = grid->model,
                                .divides_rows = grid->divides_rows,
                                .by_operator = grid->by_operator,
                                .sequence_ranks = grid->sequence};
    struct pair pair = {.whole = &operators->program,
                        .grid = grid,
                        .micro_batch = operators->training->micro_batch_size};
    struct program part;
    int *writers;

    if (build(operators->training, &cell, &part, err) < 0)
        return -EINVAL;
    pair.part = &part;
    writers = malloc(((size_t)part.var_count + 1) * sizeof(*writers));
    fleet_assert(writers != NULL);
    for (int v = 0; v < part.var_count; v++)
        writers[v] = -1;
    for (int i = 0; i < part.op_count; i++)
        writers[part.ops[i].outputs[0]] = i;
    for (int i = 0; i < operators->program.op_count; i++)
        divide(operators, &pair, i, writers, &out[i]);
    free(writers);
    program_release(&part);
    return 0;
}
