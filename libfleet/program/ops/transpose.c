/* SPDX-License-Identifier: Apache-2.0 */

/* Dimension i of y is dimension order[i] of x. The gradient goes back by the inverse order. */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static int transpose_infer(struct program *program, const struct program_op *op,
                           struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 0), y = x;
    bool seen[PROGRAM_DIMS_MAX] = {0};

    if (operand_need_ndim(program, op, 0, 1, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    for (int i = 0; i < x.ndim; i++) {
        int from = op->attributes.order[i];
        if (from < 0 || from >= x.ndim || seen[from])
            return fleet_error(err, -EINVAL, "order is no permutation of %d dimensions", x.ndim);
        seen[from] = true;
        y.shape[i] = x.shape[from];
    }
    return operand_give_like(program, op, 0, (enum operand_types)(1 << x.type), &y, err);
}

static int transpose_gradient(struct program *program, const struct program_op *op,
                              struct autodiff *ad, struct fleet_error *err)
{
    struct program_op grad = *op;

    grad.inputs[0] = autodiff_of_filled(ad, op->outputs[0], err);
    grad.outputs[0] = autodiff_slot(ad, op->inputs[0]);
    for (int i = 0; i < program->vars[op->inputs[0]].ndim; i++)
        grad.attributes.order[op->attributes.order[i]] = i;
    return grad.inputs[0] == PROGRAM_NONE ? -EINVAL : autodiff_add_op(ad, &grad, err);
}

static void transpose_cost(const struct program *program, const struct program_op *op,
                           struct op_cost *out)
{
    (void)program, (void)op;
    out->flops = 0;
}

const struct op_definition transpose_definition = {
    .name = "transpose",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = transpose_infer,
    .gradient = transpose_gradient,
    .cost = transpose_cost,
};
