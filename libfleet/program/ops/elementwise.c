/* SPDX-License-Identifier: Apache-2.0 */

/*
 * scale, subtract, gelu (tanh form or by erf), relu, silu, swiglu, dropout, cast, reshape, fill: an
 * element of the output depends on the same element of the inputs.
 */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

/* d_x = op(d_y) with op's own attributes: scale, reshape, dropout (its mask is a function of the
 * key). */
static int self_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                         struct fleet_error *err)
{
    (void)program;
    return autodiff_add_unary(ad, op, op->kind, PROGRAM_NONE, err);
}

static int gelu_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                         struct fleet_error *err)
{
    (void)program;
    return autodiff_add_unary(ad, op, OP_GELU_GRAD, op->inputs[0], err);
}

/* By its output, which the next operator keeps anyway: its input need not live on. */
static int relu_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                         struct fleet_error *err)
{
    (void)program;
    return autodiff_add_unary(ad, op, OP_RELU_GRAD, op->outputs[0], err);
}

static int silu_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                         struct fleet_error *err)
{
    (void)program;
    return autodiff_add_unary(ad, op, OP_SILU_GRAD, op->inputs[0], err);
}

static int swiglu_gradient(struct program *program, const struct program_op *op,
                           struct autodiff *ad, struct fleet_error *err)
{
    int d_y = autodiff_of_filled(ad, op->outputs[0], err);
    int d_gate = autodiff_slot(ad, op->inputs[0]), d_up = autodiff_slot(ad, op->inputs[1]);

    (void)program;
    if (d_y == PROGRAM_NONE)
        return -EINVAL;
    return autodiff_add_op(ad,
                           &(struct program_op){.kind = OP_SWIGLU_GRAD,
                                                .inputs = {d_y, op->inputs[0], op->inputs[1]},
                                                .input_count = 3,
                                                .outputs = {d_gate, d_up},
                                                .output_count = 2},
                           err);
}

static int dropout_infer(struct program *program, const struct program_op *op,
                         struct fleet_error *err)
{
    if (!(op->attributes.rate >= 0 && op->attributes.rate < 1))
        return fleet_error(err, -EINVAL, "rate is %g, must be in [0, 1)", op->attributes.rate);
    return operand_infer_same(program, op, err);
}

static int cast_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    struct program_var x = *operand_in(program, op, 0);

    bool at_random = op->attributes.stream != 0;

    if (operand_need_type(program, op, 0, at_random ? OPERAND_FP32 : OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    return operand_give_like(program, op, 0, at_random ? OPERAND_BF16 : OPERAND_FLOAT, &x, err);
}

/* Autodiff looks through casts of parameters; here only activations are left. */
static int cast_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                         struct fleet_error *err)
{
    int d_y = autodiff_of_filled(ad, op->outputs[0], err);

    if (d_y == PROGRAM_NONE)
        return -EINVAL;
    if (program->vars[d_y].type == program->vars[op->inputs[0]].type)
        return autodiff_pass_on(ad, op->inputs[0], d_y, err);
    return autodiff_add_unary(ad, op, OP_CAST, PROGRAM_NONE, err);
}

/* The new shape is the output's own: it must be given. */
static int reshape_infer(struct program *program, const struct program_op *op,
                         struct fleet_error *err)
{
    const struct program_var *x = operand_in(program, op, 0), *y = operand_out(program, op, 0);

    if (y->ndim == PROGRAM_UNSHAPED)
        return fleet_error(err, -EINVAL, "output 0 (%s) has no shape", y->name);
    if (x->type != y->type || program_var_elements(x) != program_var_elements(y))
        return fleet_error(err, -EINVAL,
                           "%s (%" PRId64 " elements of %s) cannot become %s (%" PRId64
                           " elements of %s)",
                           x->name, program_var_elements(x), program_type_name(x->type), y->name,
                           program_var_elements(y), program_type_name(y->type));
    return 0;
}

static int fill_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    struct program_var y = *operand_out(program, op, 0);

    if (y.ndim == PROGRAM_UNSHAPED)
        return fleet_error(err, -EINVAL, "output 0 (%s) has no shape", y.name);
    return operand_give_like(program, op, 0, OPERAND_FLOAT, &y, err);
}

#define UNARY(id, ...)                                              \
    const struct op_definition id##_definition = {.name = #id,      \
                                                  .input_min = 1,   \
                                                  .input_max = 1,   \
                                                  .output_min = 1,  \
                                                  .output_max = 1,  \
                                                  .in_place = true, \
                                                  __VA_ARGS__}
#define BINARY(id)                                                             \
    const struct op_definition id##_definition = {.name = #id,                 \
                                                  .input_min = 2,              \
                                                  .input_max = 2,              \
                                                  .output_min = 1,             \
                                                  .output_max = 1,             \
                                                  .infer = operand_infer_same, \
                                                  .in_place = true}

UNARY(scale, .infer = operand_infer_same, .gradient = self_gradient);
UNARY(gelu, .infer = operand_infer_same, .gradient = gelu_gradient);
UNARY(relu, .infer = operand_infer_same, .gradient = relu_gradient);
UNARY(silu, .infer = operand_infer_same, .gradient = silu_gradient);
UNARY(dropout, .infer = dropout_infer, .gradient = self_gradient);
UNARY(reshape, .infer = reshape_infer, .gradient = self_gradient);
BINARY(subtract);
BINARY(gelu_grad);
BINARY(relu_grad);
BINARY(silu_grad);

const struct op_definition cast_definition = {
    .name = "cast",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = cast_infer,
    .gradient = cast_gradient,
};

const struct op_definition swiglu_definition = {
    .name = "swiglu",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 1,
    .infer = operand_infer_same,
    .gradient = swiglu_gradient,
    .in_place = true,
};

const struct op_definition swiglu_grad_definition = {
    .name = "swiglu_grad",
    .input_min = 3,
    .input_max = 3,
    .output_min = 2,
    .output_max = 2,
    .infer = operand_infer_same,
};

const struct op_definition fill_definition = {
    .name = "fill",
    .output_min = 1,
    .output_max = 1,
    .infer = fill_infer,
};
