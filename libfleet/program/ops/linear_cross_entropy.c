/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The loss of logits x · W and its gradients, without logits in memory: LINEAR, CROSS_ENTROPY,
 * CROSS_ENTROPY_GRAD and LINEAR_GRAD in one. The weight's gradient is fp32, because it is summed
 * over the chunks of rows that a back end works on.
 */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static int64_t words_of(const struct program *program, const struct program_op *op)
{
    return operand_in(program, op, 1)->shape[op->attributes.transposed ? 0 : 1];
}

static int need_operands(struct program *program, const struct program_op *op,
                         struct fleet_error *err)
{
    const struct program_var *x = operand_in(program, op, 0);
    int64_t one = 1, k = operand_columns(x), words, shape[2];

    if (operand_need_ndim(program, op, 0, 2, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_ndim(program, op, 1, 2, 2, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 ||
        operand_need_same_type(program, op, 0, 1, err) < 0 ||
        operand_need_type(program, op, 2, OPERAND_INT32, err) < 0 ||
        operand_need_type(program, op, 3, OPERAND_FP32, err) < 0)
        return -EINVAL;
    words = words_of(program, op);
    shape[0] = op->attributes.transposed ? words : k;
    shape[1] = op->attributes.transposed ? k : words;
    if (operand_need_shape(program, op, 1, 2, shape, err) < 0 ||
        operand_need_shape(program, op, 2, x->ndim - 1, x->shape, err) < 0)
        return -EINVAL;
    return operand_need_shape(program, op, 3, 1, &one, err);
}

static int linear_cross_entropy_infer(struct program *program, const struct program_op *op,
                                      struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 0), weight = *operand_in(program, op, 1);
    int64_t one = 1;

    if (need_operands(program, op, err) < 0 ||
        operand_give(program, op, 0, OPERAND_FP32, 1, &one, err) < 0)
        return -EINVAL;
    if (operand_out(program, op, 1) &&
        operand_give_like(program, op, 1, OPERAND_FLOAT, &x, err) < 0)
        return -EINVAL;
    return operand_out(program, op, 2)
               ? operand_give_like(program, op, 2, OPERAND_FP32, &weight, err)
               : 0;
}

static void linear_cross_entropy_cost(const struct program *program, const struct program_op *op,
                                      struct op_cost *out)
{
    double logits =
        (double)operand_rows(operand_in(program, op, 0)) * (double)words_of(program, op);
    int products =
        1 + (operand_out(program, op, 1) != NULL) + (operand_out(program, op, 2) != NULL);

    out->flops = logits * (9 + products * 2 * (double)operand_columns(operand_in(program, op, 0)));
}

const struct op_definition linear_cross_entropy_definition = {
    .name = "linear_cross_entropy",
    .input_min = 3,
    .input_max = 4,
    .output_min = 1,
    .output_max = 3,
    .infer = linear_cross_entropy_infer,
    .cost = linear_cross_entropy_cost,
};
