/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The words in which operators refuse operands, once, so that all of them name operand, variable,
 * what it has and what is needed.
 */
#include "libfleet/program/ops/operand.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/ops/operand_internal.h"

const struct program_var *operand_in(const struct program *program, const struct program_op *op,
                                     int i)
{
    if (i >= op->input_count || op->inputs[i] == PROGRAM_NONE)
        return NULL;
    return &program->vars[op->inputs[i]];
}

const struct program_var *operand_out(const struct program *program, const struct program_op *op,
                                      int i)
{
    if (i >= op->output_count || op->outputs[i] == PROGRAM_NONE)
        return NULL;
    return &program->vars[op->outputs[i]];
}

int64_t operand_columns(const struct program_var *var)
{
    return var->ndim ? var->shape[var->ndim - 1] : 1;
}

int64_t operand_rows(const struct program_var *var)
{
    return program_var_elements(var) / operand_columns(var);
}

double operand_in_elements(const struct program *program, const struct program_op *op, int i)
{
    const struct program_var *var = operand_in(program, op, i);

    return var ? (double)program_var_elements(var) : 0;
}

double operand_out_elements(const struct program *program, const struct program_op *op, int i)
{
    const struct program_var *var = operand_out(program, op, i);

    return var ? (double)program_var_elements(var) : 0;
}

static void append_shape(struct fleet_strbuf *out, int ndim, const int64_t *shape)
{
    fleet_strbuf_append(out, "[");
    for (int i = 0; i < ndim; i++)
        fleet_strbuf_appendf(out, "%s%" PRId64, i ? "," : "", shape[i]);
    fleet_strbuf_append(out, "]");
}

static int wrong_shape(const char *side, int i, const struct program_var *var, int ndim,
                       const int64_t *shape, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf has = {0}, needs = {0};

    append_shape(&has, var->ndim, var->shape);
    append_shape(&needs, ndim, shape);
    return fleet_error(err, -EINVAL, "%s %d (%s) has shape %s, needs %s", side, i, var->name,
                       fleet_strbuf_text(&has), fleet_strbuf_text(&needs));
}

static bool has_shape(const struct program_var *var, int ndim, const int64_t *shape)
{
    return var->ndim == ndim &&
           (ndim <= 0 || memcmp(var->shape, shape, (size_t)ndim * sizeof(*shape)) == 0);
}

int operand_need_ndim(const struct program *program, const struct program_op *op, int i, int min,
                      int max, struct fleet_error *err)
{
    const struct program_var *var = operand_in(program, op, i);

    if (!var || (var->ndim >= min && var->ndim <= max))
        return 0;
    if (min == max)
        return fleet_error(err, -EINVAL, "input %d (%s) has %d dimensions, needs %d", i, var->name,
                           var->ndim, min);
    return fleet_error(err, -EINVAL, "input %d (%s) has %d dimensions, needs %d to %d", i,
                       var->name, var->ndim, min, max);
}

int operand_need_shape(const struct program *program, const struct program_op *op, int i, int ndim,
                       const int64_t *shape, struct fleet_error *err)
{
    const struct program_var *var = operand_in(program, op, i);

    return !var || has_shape(var, ndim, shape) ? 0 : wrong_shape("input", i, var, ndim, shape, err);
}

int operand_need_like(const struct program *program, const struct program_op *op, int i,
                      const struct program_var *like, struct fleet_error *err)
{
    return like ? operand_need_shape(program, op, i, like->ndim, like->shape, err) : 0;
}

static int wrong_type(const char *side, int i, const struct program_var *var,
                      enum operand_types types, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf needs = {0};

    for (int t = PROGRAM_FP32; t <= PROGRAM_UINT8; t++)
        if (types & 1 << t)
            fleet_strbuf_appendf(&needs, "%s%s", needs.length ? ", " : "",
                                 program_type_name((enum program_type)t));
    return fleet_error(err, -EINVAL, "%s %d (%s) is of type %s, needs %s", side, i, var->name,
                       program_type_name(var->type), fleet_strbuf_text(&needs));
}

int operand_need_type(const struct program *program, const struct program_op *op, int i,
                      enum operand_types types, struct fleet_error *err)
{
    const struct program_var *var = operand_in(program, op, i);

    return !var || types & 1 << var->type ? 0 : wrong_type("input", i, var, types, err);
}

int operand_need_same_type(const struct program *program, const struct program_op *op, int i, int j,
                           struct fleet_error *err)
{
    const struct program_var *a = operand_in(program, op, i), *b = operand_in(program, op, j);

    if (!a || !b || a->type == b->type)
        return 0;
    return fleet_error(err, -EINVAL, "inputs %d (%s, %s) and %d (%s, %s) are of different types", i,
                       a->name, program_type_name(a->type), j, b->name, program_type_name(b->type));
}

int operand_give(struct program *program, const struct program_op *op, int i,
                 enum operand_types types, int ndim, const int64_t *shape, struct fleet_error *err)
{
    struct program_var *var;

    if (!operand_out(program, op, i))
        return 0;
    var = &program->vars[op->outputs[i]];
    if (!(types & 1 << var->type))
        return wrong_type("output", i, var, types, err);
    if (var->ndim == PROGRAM_UNSHAPED) {
        var->ndim = ndim;
        if (ndim > 0)
            memcpy(var->shape, shape, (size_t)ndim * sizeof(*shape));
    }
    return has_shape(var, ndim, shape) ? 0 : wrong_shape("output", i, var, ndim, shape, err);
}

int operand_give_like(struct program *program, const struct program_op *op, int i,
                      enum operand_types types, const struct program_var *like,
                      struct fleet_error *err)
{
    return operand_give(program, op, i, types, like->ndim, like->shape, err);
}

int operand_need_relu(const struct program_op *op, struct fleet_error *err)
{
    if (op->attributes.activation == OP_ACTIVATION_GELU)
        return fleet_error(err, -EINVAL, "activation is gelu, must be relu or none");
    return 0;
}

int operand_need_at_least(const char *what, int64_t value, int64_t min, struct fleet_error *err)
{
    if (value >= min)
        return 0;
    return fleet_error(err, -EINVAL, "%s is %" PRId64 ", must be at least %" PRId64, what, value,
                       min);
}

int operand_need_of_parameter(const struct program *program, const struct program_op *op, int count,
                              struct fleet_error *err)
{
    const struct program_var *param = operand_in(program, op, 0);

    for (int i = 0; i < count; i++) {
        const struct program_var *var = operand_in(program, op, i);
        if (!var)
            return fleet_error(err, -EINVAL, "input %d is missing", i);
        if (i > 0 && var->of != op->inputs[0])
            return fleet_error(err, -EINVAL, "input %d (%s) does not belong to %s", i, var->name,
                               param->name);
        if (operand_need_type(program, op, i, OPERAND_FP32, err) < 0 ||
            operand_need_like(program, op, i, param, err) < 0)
            return -EINVAL;
    }
    return 0;
}

int operand_infer_same(struct program *program, const struct program_op *op,
                       struct fleet_error *err)
{
    const struct program_var *input = operand_in(program, op, 0);
    struct program_var first;

    fleet_assert(input);
    first = *input;
    for (int i = 0; i < op->input_count; i++)
        if (operand_need_type(program, op, i, OPERAND_FLOAT, err) < 0 ||
            operand_need_like(program, op, i, &first, err) < 0 ||
            operand_need_same_type(program, op, 0, i, err) < 0)
            return -EINVAL;
    for (int i = 0; i < op->output_count; i++)
        if (operand_give_like(program, op, i, (enum operand_types)(1 << first.type), &first, err) <
            0)
            return -EINVAL;
    return 0;
}

void operand_cost_of_reading(const struct program *program, const struct program_op *op,
                             struct op_cost *out)
{
    out->flops = operand_in_elements(program, op, 0);
}
