/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Mean over the rows whose target is not ignore_index of log Σ exp(logits) - logits[target]; with
 * its softmax fused, so that probabilities are never stored. lse goes to the backward part, which
 * may write the gradient over the logits. It is a pair for each row, the greatest logit and
 * log Σ exp(logits - it): with large logits their sum would lose the digits after the point.
 */
#include <errno.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

/* Logits [..., V] in input 0 and targets [...] in input 1. */
static int need_logits(struct program *program, const struct program_op *op,
                       struct fleet_error *err)
{
    const struct program_var *logits = operand_in(program, op, 0);

    if (operand_need_ndim(program, op, 0, 2, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 ||
        operand_need_type(program, op, 1, OPERAND_INT32, err) < 0)
        return -EINVAL;
    return operand_need_shape(program, op, 1, logits->ndim - 1, logits->shape, err);
}

/* The statistics of all ranks, in input 2, where the logits are divided. */
static int need_sums(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    const struct program_var *sums = operand_in(program, op, 2);
    int64_t rows = operand_rows(operand_in(program, op, 0));

    if (op->attributes.divided != (sums != NULL))
        return fleet_error(err, -EINVAL, "divided logits need the sums of all ranks, others none");
    if (!sums)
        return 0;
    if (operand_need_ndim(program, op, 2, 2, 2, err) < 0 ||
        operand_need_type(program, op, 2, OPERAND_FP32, err) < 0)
        return -EINVAL;
    if (sums->shape[1] != 3 || sums->shape[0] % rows != 0)
        return fleet_error(err, -EINVAL,
                           "input 2 (%s) has shape [%ld,%ld], needs a multiple of %ld rows of 3",
                           sums->name, (long)sums->shape[0], (long)sums->shape[1], (long)rows);
    return 0;
}

static int cross_entropy_sums_infer(struct program *program, const struct program_op *op,
                                    struct fleet_error *err)
{
    int64_t sums[2] = {operand_rows(operand_in(program, op, 0)), 3};

    if (need_logits(program, op, err) < 0)
        return -EINVAL;
    return operand_give(program, op, 0, OPERAND_FP32, 2, sums, err);
}

static int cross_entropy_infer(struct program *program, const struct program_op *op,
                               struct fleet_error *err)
{
    const struct program_var *logits = operand_in(program, op, 0);
    int64_t one = 1, lse[2];

    if (need_logits(program, op, err) < 0 || need_sums(program, op, err) < 0)
        return -EINVAL;
    lse[0] = operand_rows(logits);
    lse[1] = 2;
    if (operand_give(program, op, 0, OPERAND_FP32, 1, &one, err) < 0)
        return -EINVAL;
    return operand_give(program, op, 1, OPERAND_FP32, 2, lse, err);
}

static int cross_entropy_gradient(struct program *program, const struct program_op *op,
                                  struct autodiff *ad, struct fleet_error *err)
{
    struct program_op grad = {
        .kind = OP_CROSS_ENTROPY_GRAD,
        .inputs = {op->inputs[0], op->inputs[1], op->outputs[1], autodiff_of(ad, op->outputs[0])},
        .input_count = 4,
        .outputs = {autodiff_slot(ad, op->inputs[0])},
        .output_count = 1,
        .attributes = op->attributes};

    (void)program;
    return autodiff_add_op(ad, &grad, err);
}

static int cross_entropy_grad_infer(struct program *program, const struct program_op *op,
                                    struct fleet_error *err)
{
    struct program_var logits = *operand_in(program, op, 0);
    int64_t one = 1, lse[2];

    if (need_logits(program, op, err) < 0)
        return -EINVAL;
    lse[0] = operand_rows(&logits);
    lse[1] = 2;
    if (operand_need_shape(program, op, 2, 2, lse, err) < 0 ||
        operand_need_type(program, op, 2, OPERAND_FP32, err) < 0 ||
        operand_need_shape(program, op, 3, 1, &one, err) < 0 ||
        operand_need_type(program, op, 3, OPERAND_FP32, err) < 0)
        return -EINVAL;
    return operand_give_like(program, op, 0, OPERAND_FLOAT, &logits, err);
}

static void cross_entropy_cost(const struct program *program, const struct program_op *op,
                               struct op_cost *out)
{
    const struct program_var *logits = operand_in(program, op, 0);

    out->flops = 5 * operand_in_elements(program, op, 0);
    out->scratch_bytes = (size_t)operand_rows(logits) * sizeof(float); /* loss of each row */
}

static void cross_entropy_grad_cost(const struct program *program, const struct program_op *op,
                                    struct op_cost *out)
{
    out->flops = 4 * operand_in_elements(program, op, 0);
}

const struct op_definition cross_entropy_definition = {
    .name = "cross_entropy",
    .input_min = 2,
    .input_max = 3,
    .output_min = 2,
    .output_max = 2,
    .infer = cross_entropy_infer,
    .gradient = cross_entropy_gradient,
    .cost = cross_entropy_cost,
};

const struct op_definition cross_entropy_sums_definition = {
    .name = "cross_entropy_sums",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 1,
    .infer = cross_entropy_sums_infer,
    .cost = cross_entropy_grad_cost,
};

const struct op_definition cross_entropy_grad_definition = {
    .name = "cross_entropy_grad",
    .input_min = 3,
    .input_max = 4,
    .output_min = 1,
    .output_max = 1,
    .infer = cross_entropy_grad_infer,
    .cost = cross_entropy_grad_cost,
    .in_place = true,
};
