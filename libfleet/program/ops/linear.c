/* SPDX-License-Identifier: Apache-2.0 */

/*
 * y = activation(x · W + bias). W is [K,M] (GPT-2's Conv1D) or, transposed, [M,K]. With an
 * activation the value before it is kept for the backward part.
 */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/fp8.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

/* Check x (input `x`) against the weight behind it; *out_features = M. */
static int need_factors(struct program *program, const struct program_op *op, int x,
                        int64_t *out_features, struct fleet_error *err)
{
    const struct program_var *weight = operand_in(program, op, x + 1);
    int64_t k = operand_columns(operand_in(program, op, x)), shape[2];

    if (operand_need_ndim(program, op, x, 1, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_ndim(program, op, x + 1, 2, 2, err) < 0 ||
        operand_need_type(program, op, x, OPERAND_FLOAT, err) < 0 ||
        operand_need_same_type(program, op, x, x + 1, err) < 0)
        return -EINVAL;
    *out_features = weight->shape[op->attributes.transposed ? 0 : 1];
    if (op->attributes.fp8 && operand_need_type(program, op, x, OPERAND_BF16, err) < 0)
        return -EINVAL;
    shape[0] = op->attributes.transposed ? *out_features : k;
    shape[1] = op->attributes.transposed ? k : *out_features;
    return operand_need_shape(program, op, x + 1, 2, shape, err);
}

static int linear_infer(struct program *program, const struct program_op *op,
                        struct fleet_error *err)
{
    struct program_var y = *operand_in(program, op, 0);
    bool activated = op->attributes.activation != OP_ACTIVATION_NONE;
    int64_t features;

    if (need_factors(program, op, 0, &features, err) < 0 ||
        operand_need_shape(program, op, 2, 1, &features, err) < 0 ||
        operand_need_type(program, op, 2, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    if (!activated && operand_out(program, op, 1))
        return fleet_error(err, -EINVAL, "output 1 (%s) needs an activation",
                           operand_out(program, op, 1)->name);
    y.shape[y.ndim - 1] = features;
    for (int i = 0; i < op->output_count; i++)
        if (operand_give_like(program, op, i, OPERAND_FLOAT, &y, err) < 0)
            return -EINVAL;
    return 0;
}

static int linear_gradient(struct program *program, const struct program_op *op,
                           struct autodiff *ad, struct fleet_error *err)
{
    bool activated = op->attributes.activation != OP_ACTIVATION_NONE;
    bool biased = op->input_count > 2 && op->inputs[2] != PROGRAM_NONE;
    bool has_pre = op->output_count > 1 && op->outputs[1] != PROGRAM_NONE;
    struct program_op grad = {.kind = OP_LINEAR_GRAD,
                              .inputs = {autodiff_of(ad, op->outputs[0]), op->inputs[0],
                                         op->inputs[1], has_pre ? op->outputs[1] : PROGRAM_NONE},
                              .input_count = 4,
                              .outputs = {autodiff_slot(ad, op->inputs[0]),
                                          autodiff_slot(ad, op->inputs[1]),
                                          biased ? autodiff_slot(ad, op->inputs[2]) : PROGRAM_NONE},
                              .output_count = 3,
                              .attributes = op->attributes};

    if (activated && !has_pre)
        return fleet_error(err, -EINVAL, "%s: the value before the activation is not kept",
                           program->vars[op->outputs[0]].name);
    return autodiff_add_op(ad, &grad, err);
}

static int linear_grad_infer(struct program *program, const struct program_op *op,
                             struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 1), y = x;
    struct program_var weight = *operand_in(program, op, 2);
    bool activated = op->attributes.activation != OP_ACTIVATION_NONE;
    int64_t features;

    if (need_factors(program, op, 1, &features, err) < 0)
        return -EINVAL;
    y.shape[y.ndim - 1] = features;
    if (operand_need_like(program, op, 0, &y, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 ||
        operand_need_like(program, op, 3, &y, err) < 0)
        return -EINVAL;
    if (op->attributes.fp8 &&
        operand_need_type(program, op, 0, OPERAND_FP32 | OPERAND_BF16, err) < 0)
        return -EINVAL;
    if (activated != (operand_in(program, op, 3) != NULL))
        return fleet_error(err, -EINVAL, "input 3, the value before the activation, is %s",
                           activated ? "missing" : "given without an activation");
    if (operand_out(program, op, 0) &&
        operand_give_like(program, op, 0, OPERAND_FLOAT, &x, err) < 0)
        return -EINVAL;
    if (operand_give_like(program, op, 1, OPERAND_FLOAT, &weight, err) < 0)
        return -EINVAL;
    return operand_give(program, op, 2, OPERAND_FLOAT, 1, &features, err);
}

/* fp32 sums of a product with a 16-bit result, for a block of its columns at a time. */
static size_t sums_bytes(const struct program_var *result)
{
    if (!result || result->type == PROGRAM_FP32)
        return 0;
    return (size_t)operand_rows(result) * OPERAND_PRODUCT_COLUMNS * sizeof(float);
}

/* The CPU keeps factors that are rounded to fp8 in 16 bits. */
static size_t rounded_bytes(const struct program *program, const struct program_op *op, int count)
{
    size_t bytes = 0;

    for (int i = 0; op->attributes.fp8 && i < count; i++)
        bytes += fp8_rounded_bytes(program_var_elements(operand_in(program, op, i)));
    return bytes;
}

static void linear_cost(const struct program *program, const struct program_op *op,
                        struct op_cost *out)
{
    const struct program_var *x = operand_in(program, op, 0);

    out->flops = 2 * (double)operand_columns(x) * operand_out_elements(program, op, 0);
    out->scratch_bytes = sums_bytes(operand_out(program, op, 0)) + rounded_bytes(program, op, 2);
}

static void linear_grad_cost(const struct program *program, const struct program_op *op,
                             struct op_cost *out)
{
    const struct program_var *x = operand_in(program, op, 1);
    double elements = operand_in_elements(program, op, 0);
    int products = (op->outputs[0] != PROGRAM_NONE) + (op->outputs[1] != PROGRAM_NONE);
    size_t d_x = sums_bytes(operand_out(program, op, 0));
    size_t d_weight = sums_bytes(operand_out(program, op, 1));

    out->flops = products * 2 * (double)operand_columns(x) * elements;
    out->scratch_bytes = d_x > d_weight ? d_x : d_weight;
    /* The gradient before the activation, which both products read. */
    if (op->attributes.activation != OP_ACTIVATION_NONE)
        out->scratch_bytes += ((size_t)elements + 15) / 16 * 16 * sizeof(float);
    out->scratch_bytes += rounded_bytes(program, op, 3);
}

const struct op_definition linear_definition = {
    .name = "linear",
    .input_min = 2,
    .input_max = 3,
    .output_min = 1,
    .output_max = 2,
    .infer = linear_infer,
    .gradient = linear_gradient,
    .cost = linear_cost,
};

const struct op_definition linear_grad_definition = {
    .name = "linear_grad",
    .input_min = 3,
    .input_max = 4,
    .output_min = 2,
    .output_max = 3,
    .infer = linear_grad_infer,
    .cost = linear_grad_cost,
};
