/* SPDX-License-Identifier: Apache-2.0 */

/* Softmax over the last dimension, for outputs; attention and cross-entropy have theirs built
 * in. */
#include <errno.h>

#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static int softmax_infer(struct program *program, const struct program_op *op,
                         struct fleet_error *err)
{
    if (operand_need_ndim(program, op, 0, 1, PROGRAM_DIMS_MAX, err) < 0)
        return -EINVAL;
    return operand_infer_same(program, op, err);
}

/* Its backward part reads the output, not the input. */
static int softmax_gradient(struct program *program, const struct program_op *op,
                            struct autodiff *ad, struct fleet_error *err)
{
    (void)program;
    return autodiff_add_unary(ad, op, OP_SOFTMAX_GRAD, op->outputs[0], err);
}

static void softmax_cost(const struct program *program, const struct program_op *op,
                         struct op_cost *out)
{
    out->flops = 5 * operand_in_elements(program, op, 0);
}

const struct op_definition softmax_definition = {
    .name = "softmax",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = softmax_infer,
    .gradient = softmax_gradient,
    .cost = softmax_cost,
    .in_place = true,
};

const struct op_definition softmax_grad_definition = {
    .name = "softmax_grad",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 1,
    .infer = softmax_infer,
    .cost = softmax_cost,
    .in_place = true,
};
