/* SPDX-License-Identifier: Apache-2.0 */

/* The table of definitions, and the checks of every operator: counts, sizes, default
 * cost. */
#include "libfleet/program/op.h"

#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/program.h"

static const struct op_definition *const definitions[OP_KIND_COUNT] = {
#define OP(kind, name, kernel, axes, class) [OP_##kind] = &name##_definition,
#include "libfleet/program/operators.def"
};

const struct op_definition *op_definition(enum op_kind kind)
{
    fleet_assert((size_t)kind < OP_KIND_COUNT && definitions[kind]);
    return definitions[kind];
}

/* Operands that must be there are there, no more than possible, and inputs have shapes. */
static int check_operands(const struct program *program, const struct program_op *op,
                          struct fleet_error *err)
{
    const struct op_definition *d = op_definition(op->kind);

    if (op->input_count < d->input_min || op->input_count > d->input_max)
        return fleet_error(err, -EINVAL, "has %d inputs, needs %d to %d", op->input_count,
                           d->input_min, d->input_max);
    if (op->output_count < d->output_min || op->output_count > d->output_max)
        return fleet_error(err, -EINVAL, "has %d outputs, needs %d to %d", op->output_count,
                           d->output_min, d->output_max);
    for (int i = 0; i < op->input_count; i++) {
        int index = op->inputs[i];
        if (index == PROGRAM_NONE && i < d->input_min)
            return fleet_error(err, -EINVAL, "input %d is missing", i);
        if (index < PROGRAM_NONE || index >= program->var_count)
            return fleet_error(err, -EINVAL, "input %d is variable %d of %d", i, index,
                               program->var_count);
        if (index != PROGRAM_NONE && program->vars[index].ndim == PROGRAM_UNSHAPED)
            return fleet_error(err, -EINVAL, "input %d (%s) has no shape yet", i,
                               program->vars[index].name);
    }
    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] < PROGRAM_NONE || op->outputs[i] >= program->var_count)
            return fleet_error(err, -EINVAL, "output %d is variable %d of %d", i, op->outputs[i],
                               program->var_count);
    return 0;
}

static int check_size(const struct program *program, int index, struct fleet_error *err)
{
    const struct program_var *var;

    if (index == PROGRAM_NONE)
        return 0;
    var = &program->vars[index];
    for (int i = 0; i < var->ndim; i++)
        if (var->shape[i] < 1)
            return fleet_error(err, -EINVAL, "%s has a dimension of %" PRId64, var->name,
                               var->shape[i]);
    if (program_var_elements(var) > PROGRAM_ELEMENTS_MAX)
        return fleet_error(err, -EOVERFLOW, "%s has more than 2^40 elements", var->name);
    return 0;
}

/* Outputs that an operator cannot do without: all of its minimum, except that gradients may each
 * be wanted or not. */
static int check_outputs(const struct program_op *op, struct fleet_error *err)
{
    int present = 0;

    for (int i = 0; i < op->output_count; i++)
        present += op->outputs[i] != PROGRAM_NONE;
    if (op_definition(op->kind)->output_min > 0 && present == 0)
        return fleet_error(err, -EINVAL, "has no output");
    return 0;
}

static int infer_checked(struct program *program, const struct program_op *op,
                         struct fleet_error *err)
{
    int rc;

    if ((rc = check_operands(program, op, err)) < 0 || (rc = check_outputs(op, err)) < 0)
        return rc;
    for (int i = 0; i < op->input_count; i++)
        if ((rc = check_size(program, op->inputs[i], err)) < 0)
            return rc;
    if ((rc = op_definition(op->kind)->infer(program, op, err)) < 0)
        return rc;
    for (int i = 0; i < op->output_count; i++)
        if ((rc = check_size(program, op->outputs[i], err)) < 0)
            return rc;
    return 0;
}

int op_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    int rc = infer_checked(program, op, err);

    if (rc < 0)
        (void)fleet_error_wrap(err, "%s", op_definition(op->kind)->name);
    return rc;
}

/* What is given lies in input 0, RECEIVE's in output 0, a range in a space of fp32. */
static const struct program_var *payload_of(const struct program *program,
                                            const struct program_op *op)
{
    fleet_assert(op_definition(op->kind)->is_communication);
    if (op->kind == OP_DGC_GATHER || op->attributes.space != OP_SPACE_NONE)
        return NULL;
    return &program->vars[op->kind == OP_RECEIVE ? op->outputs[0] : op->inputs[0]];
}

int64_t op_payload(const struct program *program, const struct program_op *op)
{
    const struct program_var *var = payload_of(program, op);

    return var ? program_var_elements(var) : op->attributes.flat_count;
}

size_t op_wire_size(const struct program *program, const struct program_op *op)
{
    const struct program_var *var = payload_of(program, op);

    if (op->attributes.wire == OP_WIRE_FP16)
        return program_type_size(PROGRAM_FP16);
    return program_type_size(var ? var->type : PROGRAM_FP32);
}

void op_cost(const struct program *program, const struct program_op *op, struct op_cost *out)
{
    const struct op_definition *d = op_definition(op->kind);

    *out = (struct op_cost){0};
    for (int i = 0; i < op->input_count; i++)
        if (op->inputs[i] != PROGRAM_NONE)
            out->bytes += (double)program_var_bytes(&program->vars[op->inputs[i]]);
    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] != PROGRAM_NONE)
            out->bytes += (double)program_var_bytes(&program->vars[op->outputs[i]]);
    if (d->cost)
        d->cost(program, op, out);
    else if (op->output_count && op->outputs[0] != PROGRAM_NONE)
        out->flops = (double)program_var_elements(&program->vars[op->outputs[0]]);
}
