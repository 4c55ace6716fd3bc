/* SPDX-License-Identifier: Apache-2.0 */

/* Convolution without bias: x [B,I,h,w], weight [O,I,kh,kw]; zeros around. */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/ops/window.h"

/* x in input `first`, the weight after it; fills the output's shape. */
static int need_images(struct program *program, const struct program_op *op, int first,
                       int64_t out_shape[4], struct fleet_error *err)
{
    const struct program_var *x = operand_in(program, op, first);
    const struct program_var *weight = operand_in(program, op, first + 1);
    int kernel[2];

    if (operand_need_ndim(program, op, first, 4, 4, err) < 0 ||
        operand_need_ndim(program, op, first + 1, 4, 4, err) < 0 ||
        operand_need_type(program, op, first, OPERAND_FLOAT, err) < 0 ||
        operand_need_same_type(program, op, first, first + 1, err) < 0 ||
        operand_need_shape(
            program, op, first + 1, 4,
            (int64_t[]){weight->shape[0], x->shape[1], weight->shape[2], weight->shape[3]},
            err) < 0)
        return -EINVAL;
    if (weight->shape[2] > WINDOW_MAX || weight->shape[3] > WINDOW_MAX)
        return fleet_error(err, -EINVAL,
                           "input %d (%s) has a window of %" PRId64 " by %" PRId64
                           ", at most %d are possible",
                           first + 1, weight->name, weight->shape[2], weight->shape[3], WINDOW_MAX);
    kernel[0] = (int)weight->shape[2];
    kernel[1] = (int)weight->shape[3];
    return window_out_shape(&op->attributes, kernel, x->shape, weight->shape[0], out_shape, err);
}

static int conv2d_infer(struct program *program, const struct program_op *op,
                        struct fleet_error *err)
{
    int64_t shape[4];

    if (need_images(program, op, 0, shape, err) < 0)
        return -EINVAL;
    return operand_give(program, op, 0, OPERAND_FLOAT, 4, shape, err);
}

static int conv2d_gradient(struct program *program, const struct program_op *op,
                           struct autodiff *ad, struct fleet_error *err)
{
    struct program_op grad = {
        .kind = OP_CONV2D_GRAD,
        .inputs = {autodiff_of(ad, op->outputs[0]), op->inputs[0], op->inputs[1]},
        .input_count = 3,
        .outputs = {autodiff_slot(ad, op->inputs[0]), autodiff_slot(ad, op->inputs[1])},
        .output_count = 2,
        .attributes = op->attributes};

    (void)program;
    return autodiff_add_op(ad, &grad, err);
}

static int conv2d_grad_infer(struct program *program, const struct program_op *op,
                             struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 1), weight = *operand_in(program, op, 2);
    int64_t shape[4];

    if (need_images(program, op, 1, shape, err) < 0 ||
        operand_need_shape(program, op, 0, 4, shape, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    if (operand_give_like(program, op, 0, OPERAND_FLOAT, &x, err) < 0)
        return -EINVAL;
    return operand_give_like(program, op, 1, OPERAND_FLOAT, &weight, err);
}

/* Multiply-adds of one pass: every output element reads I · kh · kw inputs. */
static double product_flops(const struct program_var *y, const struct program_var *weight)
{
    return 2 * (double)program_var_elements(y) * (double)program_var_elements(weight) /
           (double)weight->shape[0];
}

/* fp32 sums of `channels` rows of a product, a block of columns at a time. */
static size_t sums_bytes(int64_t channels)
{
    return (size_t)channels * OPERAND_PRODUCT_COLUMNS * sizeof(float);
}

static void conv2d_cost(const struct program *program, const struct program_op *op,
                        struct op_cost *out)
{
    const struct program_var *y = operand_out(program, op, 0), *weight = operand_in(program, op, 1);

    out->flops = product_flops(y, weight);
    out->scratch_bytes = sums_bytes(weight->shape[0]);
}

static void conv2d_grad_cost(const struct program *program, const struct program_op *op,
                             struct op_cost *out)
{
    const struct program_var *d_y = operand_in(program, op, 0);
    const struct program_var *weight = operand_in(program, op, 2);
    int products = (op->outputs[0] != PROGRAM_NONE) + (op->outputs[1] != PROGRAM_NONE);

    out->flops = products * product_flops(d_y, weight);
    out->scratch_bytes =
        sums_bytes(weight->shape[0] > weight->shape[1] ? weight->shape[0] : weight->shape[1]);
}

const struct op_definition conv2d_definition = {
    .name = "conv2d",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 1,
    .infer = conv2d_infer,
    .gradient = conv2d_gradient,
    .cost = conv2d_cost,
};

const struct op_definition conv2d_grad_definition = {
    .name = "conv2d_grad",
    .input_min = 3,
    .input_max = 3,
    .output_min = 2,
    .output_max = 2,
    .infer = conv2d_grad_infer,
    .cost = conv2d_grad_cost,
};
