/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Pools over images [B,C,h,w]. max_pool2d keeps the place of each maximum within its image plane
 * (the first one, in row order); avg_pool2d counts padding as zeros in its mean unless
 * `exclude_padding` is set; adaptive_avg_pool2d cuts h and w into the output's number of nearly
 * equal parts.
 */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/ops/operand_internal.h"
#include "libfleet/program/ops/window.h"

/* A window has to meet the image. */
static int pool_out_shape(const struct op_attributes *attributes, const struct program_var *x,
                          int64_t out[4], struct fleet_error *err)
{
    for (int i = 0; i < 2; i++)
        if (attributes->padding[i] >= attributes->kernel[i])
            return fleet_error(err, -EINVAL, "padding is %d, must be below the window's %d",
                               attributes->padding[i], attributes->kernel[i]);
    return window_out_shape(attributes, attributes->kernel, x->shape, x->shape[1], out, err);
}

static int pool_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    const struct program_var *x = operand_in(program, op, 0);
    int64_t shape[4];

    if (operand_need_ndim(program, op, 0, 4, 4, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 ||
        pool_out_shape(&op->attributes, x, shape, err) < 0)
        return -EINVAL;
    if (operand_give(program, op, 0, OPERAND_FLOAT, 4, shape, err) < 0)
        return -EINVAL;
    return operand_give(program, op, 1, OPERAND_INT32, 4, shape, err);
}

/* Inputs d_y x indices?; the output has x's shape. */
static int pool_grad_infer(struct program *program, const struct program_op *op,
                           struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 1);
    int64_t shape[4];

    if (operand_need_ndim(program, op, 1, 4, 4, err) < 0 ||
        pool_out_shape(&op->attributes, &x, shape, err) < 0 ||
        operand_need_shape(program, op, 0, 4, shape, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 ||
        operand_need_shape(program, op, 2, 4, shape, err) < 0 ||
        operand_need_type(program, op, 2, OPERAND_INT32, err) < 0)
        return -EINVAL;
    return operand_give_like(program, op, 0, OPERAND_FLOAT, &x, err);
}

static int pool_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                         struct fleet_error *err)
{
    bool max = op->kind == OP_MAX_POOL2D;
    bool indexed = op->output_count > 1 && op->outputs[1] != PROGRAM_NONE;
    struct program_op grad = {.kind = max ? OP_MAX_POOL2D_GRAD : OP_AVG_POOL2D_GRAD,
                              .inputs = {autodiff_of(ad, op->outputs[0]), op->inputs[0],
                                         max && indexed ? op->outputs[1] : PROGRAM_NONE},
                              .input_count = max ? 3 : 2,
                              .outputs = {autodiff_slot(ad, op->inputs[0])},
                              .output_count = 1,
                              .attributes = op->attributes};

    if (max && !indexed)
        return fleet_error(err, -EINVAL, "%s: the places of the maxima are not kept",
                           program->vars[op->outputs[0]].name);
    return autodiff_add_op(ad, &grad, err);
}

/* The output's size is its own: it must be given, [B,C,h',w']. Larger than the image: parts
 * overlap. */
static int adaptive_infer(struct program *program, const struct program_op *op,
                          struct fleet_error *err)
{
    const struct program_var *x = operand_in(program, op, 0), *y = operand_out(program, op, 0);

    if (operand_need_ndim(program, op, 0, 4, 4, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    if (y->ndim != 4)
        return fleet_error(err, -EINVAL, "output 0 (%s) has no shape [B,C,h,w]", y->name);
    if (y->shape[2] < 1 || y->shape[3] < 1)
        return fleet_error(err, -EINVAL, "output 0 (%s) is %" PRId64 " by %" PRId64, y->name,
                           y->shape[2], y->shape[3]);
    return operand_give(program, op, 0, OPERAND_FLOAT, 4,
                        (int64_t[]){x->shape[0], x->shape[1], y->shape[2], y->shape[3]}, err);
}

static int adaptive_gradient(struct program *program, const struct program_op *op,
                             struct autodiff *ad, struct fleet_error *err)
{
    (void)program;
    return autodiff_add_op(ad,
                           &(struct program_op){.kind = OP_ADAPTIVE_AVG_POOL2D_GRAD,
                                                .inputs = {autodiff_of(ad, op->outputs[0])},
                                                .input_count = 1,
                                                .outputs = {autodiff_slot(ad, op->inputs[0])},
                                                .output_count = 1},
                           err);
}

static int adaptive_grad_infer(struct program *program, const struct program_op *op,
                               struct fleet_error *err)
{
    const struct program_var *d_x = operand_out(program, op, 0);
    const struct program_var *d_y = operand_in(program, op, 0);

    if (operand_need_ndim(program, op, 0, 4, 4, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    if (d_x->ndim != 4)
        return fleet_error(err, -EINVAL, "output 0 (%s) has no shape [B,C,h,w]", d_x->name);
    return operand_give(program, op, 0, OPERAND_FLOAT, 4,
                        (int64_t[]){d_y->shape[0], d_y->shape[1], d_x->shape[2], d_x->shape[3]},
                        err);
}

static void pool_cost(const struct program *program, const struct program_op *op,
                      struct op_cost *out)
{
    out->flops =
        operand_out_elements(program, op, 0) * op->attributes.kernel[0] * op->attributes.kernel[1];
}

const struct op_definition max_pool2d_definition = {
    .name = "max_pool2d",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 2,
    .infer = pool_infer,
    .gradient = pool_gradient,
    .cost = pool_cost,
};

const struct op_definition max_pool2d_grad_definition = {
    .name = "max_pool2d_grad",
    .input_min = 3,
    .input_max = 3,
    .output_min = 1,
    .output_max = 1,
    .infer = pool_grad_infer,
};

const struct op_definition avg_pool2d_definition = {
    .name = "avg_pool2d",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = pool_infer,
    .gradient = pool_gradient,
    .cost = pool_cost,
};

const struct op_definition avg_pool2d_grad_definition = {
    .name = "avg_pool2d_grad",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 1,
    .infer = pool_grad_infer,
};

const struct op_definition adaptive_avg_pool2d_definition = {
    .name = "adaptive_avg_pool2d",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = adaptive_infer,
    .gradient = adaptive_gradient,
    .cost = operand_cost_of_reading,
};

const struct op_definition adaptive_avg_pool2d_grad_definition = {
    .name = "adaptive_avg_pool2d_grad",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = adaptive_grad_infer,
    .cost = operand_cost_of_reading,
};
