/* SPDX-License-Identifier: Apache-2.0 */

/*
 * layer_norm: y = (x - mean)/sqrt(var + epsilon) · scale + shift over the last dimension;
 * rms_norm:   y = x/sqrt(mean(x²) + epsilon) · scale.
 * Statistics are kept in fp32 for the backward part.
 */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

/* x in input `first`, its scale (and shift) after it. */
static int need_norm_inputs(struct program *program, const struct program_op *op, int first,
                            int vectors, struct fleet_error *err)
{
    const struct program_var *x = operand_in(program, op, first);
    int64_t columns = operand_columns(x);

    if (operand_need_ndim(program, op, first, 1, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_type(program, op, first, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    for (int i = first + 1; i <= first + vectors; i++)
        if (operand_need_shape(program, op, i, 1, &columns, err) < 0 ||
            operand_need_type(program, op, i, OPERAND_FP32, err) < 0)
            return -EINVAL;
    return 0;
}

static int norm_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 0);
    int64_t rows;

    if (need_norm_inputs(program, op, 0, op->input_count - 1, err) < 0)
        return -EINVAL;
    if (!(op->attributes.epsilon >= 0))
        return fleet_error(err, -EINVAL, "epsilon is %g, must be at least 0",
                           op->attributes.epsilon);
    if (operand_give_like(program, op, 0, OPERAND_FLOAT, &x, err) < 0)
        return -EINVAL;
    rows = operand_rows(&x);
    for (int i = 1; i < op->output_count; i++)
        if (operand_give(program, op, i, OPERAND_FP32, 1, &rows, err) < 0)
            return -EINVAL;
    return 0;
}

/* Inputs d_y x scale statistics…; outputs d_x, then a vector for each of scale (and shift). */
static int norm_grad_infer(struct program *program, const struct program_op *op,
                           struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 1);
    int64_t columns = operand_columns(&x), rows = operand_rows(&x);

    if (need_norm_inputs(program, op, 1, 1, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 ||
        operand_need_like(program, op, 0, &x, err) < 0)
        return -EINVAL;
    for (int i = 3; i < op->input_count; i++)
        if (operand_need_shape(program, op, i, 1, &rows, err) < 0 ||
            operand_need_type(program, op, i, OPERAND_FP32, err) < 0)
            return -EINVAL;
    if (operand_give_like(program, op, 0, OPERAND_FLOAT, &x, err) < 0)
        return -EINVAL;
    for (int i = 1; i < op->output_count; i++)
        if (operand_give(program, op, i, OPERAND_FP32, 1, &columns, err) < 0)
            return -EINVAL;
    return 0;
}

static int norm_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                         struct fleet_error *err)
{
    bool layer = op->kind == OP_LAYER_NORM;
    struct program_op grad = {
        .kind = layer ? OP_LAYER_NORM_GRAD : OP_RMS_NORM_GRAD,
        .inputs = {autodiff_of(ad, op->outputs[0]), op->inputs[0], op->inputs[1], op->outputs[1]},
        .input_count = 4,
        .outputs = {autodiff_slot(ad, op->inputs[0]), autodiff_slot(ad, op->inputs[1])},
        .output_count = 2,
        .attributes = op->attributes};

    (void)program;
    if (layer) {
        grad.inputs[grad.input_count++] = op->outputs[2];
        grad.outputs[grad.output_count++] = autodiff_slot(ad, op->inputs[2]);
    }
    return autodiff_add_op(ad, &grad, err);
}

static void norm_cost(const struct program *program, const struct program_op *op,
                      struct op_cost *out)
{
    out->flops = 8 * operand_in_elements(program, op, 0);
}

/* Sums over rows go through 16 partial sums of each column, two vectors at most. */
static void norm_grad_cost(const struct program *program, const struct program_op *op,
                           struct op_cost *out)
{
    out->flops = 14 * operand_in_elements(program, op, 1);
    out->scratch_bytes =
        (size_t)operand_columns(operand_in(program, op, 1)) * 16 * 2 * sizeof(float);
}

const struct op_definition layer_norm_definition = {
    .name = "layer_norm",
    .input_min = 3,
    .input_max = 3,
    .output_min = 3,
    .output_max = 3,
    .infer = norm_infer,
    .gradient = norm_gradient,
    .cost = norm_cost,
};

const struct op_definition layer_norm_grad_definition = {
    .name = "layer_norm_grad",
    .input_min = 5,
    .input_max = 5,
    .output_min = 3,
    .output_max = 3,
    .infer = norm_grad_infer,
    .cost = norm_grad_cost,
};

const struct op_definition rms_norm_definition = {
    .name = "rms_norm",
    .input_min = 2,
    .input_max = 2,
    .output_min = 2,
    .output_max = 2,
    .infer = norm_infer,
    .gradient = norm_gradient,
    .cost = norm_cost,
};

const struct op_definition rms_norm_grad_definition = {
    .name = "rms_norm_grad",
    .input_min = 4,
    .input_max = 4,
    .output_min = 2,
    .output_max = 2,
    .infer = norm_grad_infer,
    .cost = norm_grad_cost,
};
