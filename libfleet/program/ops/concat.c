/* SPDX-License-Identifier: Apache-2.0 */

/* Put columns side by side, and take them apart again: how q, k and v become one packed tensor. */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static int concat_infer(struct program *program, const struct program_op *op,
                        struct fleet_error *err)
{
    struct program_var like = *operand_in(program, op, 0);
    int64_t columns = 0;

    if (operand_need_ndim(program, op, 0, 1, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    for (int i = 0; i < op->input_count; i++) {
        const struct program_var *x = operand_in(program, op, i);
        if (!x)
            return fleet_error(err, -EINVAL, "input %d is missing", i);
        like.shape[like.ndim - 1] = operand_columns(x);
        if (operand_need_like(program, op, i, &like, err) < 0 ||
            operand_need_same_type(program, op, 0, i, err) < 0)
            return -EINVAL;
        columns += operand_columns(x);
    }
    like.shape[like.ndim - 1] = columns;
    return operand_give_like(program, op, 0, (enum operand_types)(1 << like.type), &like, err);
}

static int concat_gradient(struct program *program, const struct program_op *op,
                           struct autodiff *ad, struct fleet_error *err)
{
    struct program_op grad = {.kind = OP_SPLIT,
                              .inputs = {autodiff_of(ad, op->outputs[0])},
                              .input_count = 1,
                              .output_count = op->input_count};

    if (op->input_count > OP_OUTPUTS_MAX)
        return fleet_error(err, -EINVAL, "%s: more than %d parts cannot be taken apart",
                           program->vars[op->outputs[0]].name, OP_OUTPUTS_MAX);
    for (int i = 0; i < op->input_count; i++) {
        grad.outputs[i] = autodiff_slot(ad, op->inputs[i]);
        if (grad.outputs[i] == PROGRAM_NONE)
            return fleet_error(err, -EINVAL, "%s needs no gradient, but its neighbours do",
                               program->vars[op->inputs[i]].name);
    }
    return autodiff_add_op(ad, &grad, err);
}

/* The parts' widths are the outputs' own: they must be given. */
static int split_infer(struct program *program, const struct program_op *op,
                       struct fleet_error *err)
{
    struct program_var like = *operand_in(program, op, 0);
    int64_t columns = 0, all = operand_columns(&like);

    if (operand_need_ndim(program, op, 0, 1, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    for (int i = 0; i < op->output_count; i++) {
        const struct program_var *y = operand_out(program, op, i);
        if (!y)
            return fleet_error(err, -EINVAL, "output %d is missing", i);
        if (y->ndim < 1)
            return fleet_error(err, -EINVAL, "output %d (%s) has no shape", i, y->name);
        like.shape[like.ndim - 1] = operand_columns(y);
        columns += operand_columns(y);
        if (operand_give_like(program, op, i, OPERAND_FLOAT, &like, err) < 0)
            return -EINVAL;
    }
    if (columns != all)
        return fleet_error(err, -EINVAL, "%s has %" PRId64 " columns, its parts %" PRId64,
                           like.name, all, columns);
    return 0;
}

static int split_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                          struct fleet_error *err)
{
    struct program_op grad = {.kind = OP_CONCAT,
                              .input_count = op->output_count,
                              .outputs = {autodiff_slot(ad, op->inputs[0])},
                              .output_count = 1};

    (void)program;
    for (int i = 0; i < op->output_count; i++) {
        grad.inputs[i] = autodiff_of_or_zero(ad, op->outputs[i], err);
        if (grad.inputs[i] == PROGRAM_NONE)
            return -EINVAL;
    }
    return autodiff_add_op(ad, &grad, err);
}

const struct op_definition concat_definition = {
    .name = "concat",
    .input_min = 1,
    .input_max = OP_INPUTS_MAX,
    .output_min = 1,
    .output_max = 1,
    .infer = concat_infer,
    .gradient = concat_gradient,
};

const struct op_definition split_definition = {
    .name = "split",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = OP_OUTPUTS_MAX,
    .infer = split_infer,
    .gradient = split_gradient,
};
