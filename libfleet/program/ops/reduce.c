/* SPDX-License-Identifier: Apache-2.0 */

/* Sum or mean over the dimensions behind the first `kept`; of all of them it is one element. */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/ops/operand_internal.h"

/* What is left of `x`. */
static int reduced(const struct program_op *op, const struct program_var *x,
                   struct program_var *out, struct fleet_error *err)
{
    int kept = op->attributes.kept;

    if (kept < 0 || kept >= x->ndim)
        return fleet_error(err, -EINVAL, "kept is %d, must be 0 to %d", kept, x->ndim - 1);
    *out = *x;
    out->ndim = kept ? kept : 1;
    if (kept == 0)
        out->shape[0] = 1;
    return 0;
}

static int reduce_infer(struct program *program, const struct program_op *op,
                        struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 0), y;

    if (operand_need_ndim(program, op, 0, 1, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 || reduced(op, &x, &y, err) < 0)
        return -EINVAL;
    return operand_give_like(program, op, 0, OPERAND_FLOAT, &y, err);
}

static int reduce_gradient(struct program *program, const struct program_op *op,
                           struct autodiff *ad, struct fleet_error *err)
{
    (void)program;
    return autodiff_add_unary(ad, op, OP_REDUCE_GRAD, PROGRAM_NONE, err);
}

/* d_x has the shape of x: it must be given. */
static int reduce_grad_infer(struct program *program, const struct program_op *op,
                             struct fleet_error *err)
{
    struct program_var d_x = *operand_out(program, op, 0), d_y;

    if (d_x.ndim == PROGRAM_UNSHAPED)
        return fleet_error(err, -EINVAL, "output 0 (%s) has no shape", d_x.name);
    if (reduced(op, &d_x, &d_y, err) < 0 || operand_need_like(program, op, 0, &d_y, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    return operand_give_like(program, op, 0, OPERAND_FLOAT, &d_x, err);
}

const struct op_definition reduce_definition = {
    .name = "reduce",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = reduce_infer,
    .gradient = reduce_gradient,
    .cost = operand_cost_of_reading,
};

const struct op_definition reduce_grad_definition = {
    .name = "reduce_grad",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = reduce_grad_infer,
};
