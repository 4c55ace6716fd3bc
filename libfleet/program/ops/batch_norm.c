/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Batch normalization of [B,C,h,w] (or [N,C]) per channel, with the statistics of the micro-batch.
 * The running ones (inputs mean, var) are not touched here: what must be folded into them leaves
 * as outputs, so that micro-batches count in their order on any number of ranks. A residual and a
 * relu behind it may be fused in once the backward part stands.
 */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static int need_channels(struct program *program, const struct program_op *op, int x, int first,
                         int count, int64_t *out_channels, struct fleet_error *err)
{
    if (operand_need_ndim(program, op, x, 2, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_type(program, op, x, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    *out_channels = operand_in(program, op, x)->shape[1];
    for (int i = first; i < first + count; i++)
        if (operand_need_shape(program, op, i, 1, out_channels, err) < 0 ||
            operand_need_type(program, op, i, OPERAND_FP32, err) < 0)
            return -EINVAL;
    return 0;
}

/* Input i holds two sums for each channel and a count, or is absent. */
static int need_sums(const struct program *program, const struct program_op *op, int i,
                     int64_t channels, struct fleet_error *err)
{
    int64_t count = 2 * channels + 1;

    if (operand_need_shape(program, op, i, 1, &count, err) < 0)
        return -EINVAL;
    return operand_need_type(program, op, i, OPERAND_FP32, err);
}

/* Output 0 is like x, the others have an element a channel. */
static int give_outputs(struct program *program, const struct program_op *op,
                        const struct program_var *x, int64_t channels, struct fleet_error *err)
{
    if (operand_give_like(program, op, 0, OPERAND_FLOAT, x, err) < 0)
        return -EINVAL;
    for (int i = 1; i < op->output_count; i++)
        if (operand_give(program, op, i, OPERAND_FP32, 1, &channels, err) < 0)
            return -EINVAL;
    return 0;
}

static int batch_norm_infer(struct program *program, const struct program_op *op,
                            struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 0);
    double momentum = op->attributes.momentum;
    int64_t channels;

    if (need_channels(program, op, 0, 1, 4, &channels, err) < 0 ||
        operand_need_like(program, op, 5, &x, err) < 0 ||
        operand_need_type(program, op, 5, OPERAND_FLOAT, err) < 0 ||
        operand_need_relu(op, err) < 0 || need_sums(program, op, 6, channels, err) < 0)
        return -EINVAL;
    if (!(op->attributes.epsilon >= 0) || !(momentum >= 0 && momentum <= 1))
        return fleet_error(err, -EINVAL,
                           "epsilon %g and momentum %g: needs epsilon ≥ 0, momentum in [0, 1]",
                           op->attributes.epsilon, momentum);
    return give_outputs(program, op, &x, channels, err);
}

static int batch_norm_gradient(struct program *program, const struct program_op *op,
                               struct autodiff *ad, struct fleet_error *err)
{
    struct program_op grad = {.kind = OP_BATCH_NORM_GRAD,
                              .inputs = {autodiff_of(ad, op->outputs[0]), op->inputs[0],
                                         op->inputs[1], op->outputs[1], op->outputs[2]},
                              .input_count = 5,
                              .outputs = {autodiff_slot(ad, op->inputs[0]),
                                          autodiff_slot(ad, op->inputs[1]),
                                          autodiff_slot(ad, op->inputs[2])},
                              .output_count = 3,
                              .attributes = op->attributes};

    if (op->attributes.activation != OP_ACTIVATION_NONE || op->input_count > 5)
        return fleet_error(err, -EINVAL, "%s is joined with others: differentiate first",
                           program->vars[op->outputs[0]].name);
    return autodiff_add_op(ad, &grad, err);
}

static int batch_norm_grad_infer(struct program *program, const struct program_op *op,
                                 struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 1);
    int64_t channels;

    if (need_channels(program, op, 1, 2, 3, &channels, err) < 0 ||
        operand_need_like(program, op, 0, &x, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 ||
        need_sums(program, op, 5, channels, err) < 0 ||
        need_sums(program, op, 6, channels, err) < 0)
        return -EINVAL;
    if (!operand_in(program, op, 5) != !operand_in(program, op, 6))
        return fleet_error(err, -EINVAL, "has one of total and own, needs both or none");
    return give_outputs(program, op, &x, channels, err);
}

static int batch_norm_sums_infer(struct program *program, const struct program_op *op,
                                 struct fleet_error *err)
{
    int64_t channels, sums;

    if (need_channels(program, op, 0, 1, 1, &channels, err) < 0)
        return -EINVAL;
    sums = 2 * channels + 1;
    return operand_give(program, op, 0, OPERAND_FP32, 1, &sums, err);
}

static int batch_norm_grad_sums_infer(struct program *program, const struct program_op *op,
                                      struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 1);
    int64_t channels, sums;

    if (need_channels(program, op, 1, 2, 2, &channels, err) < 0 ||
        operand_need_like(program, op, 0, &x, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    sums = 2 * channels + 1;
    return operand_give(program, op, 0, OPERAND_FP32, 1, &sums, err);
}

static void batch_norm_sums_cost(const struct program *program, const struct program_op *op,
                                 struct op_cost *out)
{
    out->flops = 4 * operand_in_elements(program, op, 0);
}

static void batch_norm_cost(const struct program *program, const struct program_op *op,
                            struct op_cost *out)
{
    out->flops = 8 * operand_in_elements(program, op, 0);
}

static void batch_norm_grad_cost(const struct program *program, const struct program_op *op,
                                 struct op_cost *out)
{
    out->flops = 11 * operand_in_elements(program, op, 1);
}

const struct op_definition batch_norm_definition = {
    .name = "batch_norm",
    .input_min = 5,
    .input_max = 7,
    .output_min = 5,
    .output_max = 5,
    .infer = batch_norm_infer,
    .gradient = batch_norm_gradient,
    .cost = batch_norm_cost,
};

const struct op_definition batch_norm_grad_definition = {
    .name = "batch_norm_grad",
    .input_min = 5,
    .input_max = 7,
    .output_min = 3,
    .output_max = 3,
    .infer = batch_norm_grad_infer,
    .cost = batch_norm_grad_cost,
};

const struct op_definition batch_norm_sums_definition = {
    .name = "batch_norm_sums",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 1,
    .infer = batch_norm_sums_infer,
    .cost = batch_norm_sums_cost,
};

const struct op_definition batch_norm_grad_sums_definition = {
    .name = "batch_norm_grad_sums",
    .input_min = 4,
    .input_max = 4,
    .output_min = 1,
    .output_max = 1,
    .infer = batch_norm_grad_sums_infer,
    .cost = batch_norm_sums_cost,
};
