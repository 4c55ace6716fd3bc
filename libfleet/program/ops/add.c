/* SPDX-License-Identifier: Apache-2.0 */

/*
 * out = a + b of one shape, or b [C] added to every row. The residual stream may be wider than what
 * is added to it: a in fp32, b in a 16-bit type.
 */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/ops/operand_internal.h"

static bool adds_rows(const struct program *program, const struct program_op *op)
{
    const struct program_var *a = operand_in(program, op, 0), *b = operand_in(program, op, 1);

    return b->ndim == 1 && a->ndim > 1;
}

static int add_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    struct program_var a = *operand_in(program, op, 0);
    int64_t columns = operand_columns(&a);
    bool rows = adds_rows(program, op);

    if (operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0 ||
        operand_need_type(program, op, 1, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    if (rows ? operand_need_shape(program, op, 1, 1, &columns, err) < 0
             : operand_need_like(program, op, 1, &a, err) < 0)
        return -EINVAL;
    if (operand_need_relu(op, err) < 0)
        return -EINVAL;
    return operand_give_like(program, op, 0, OPERAND_FLOAT, &a, err);
}

/* The gradient of a sum is that of its terms; a difference of types is bridged by a cast. */
static int pass_to(struct program *program, struct autodiff *ad, int var, int d_out,
                   struct fleet_error *err)
{
    enum program_type type = program->vars[d_out].type;

    if (program->vars[var].type == type || program->vars[var].role == PROGRAM_ROLE_PARAMETER)
        return autodiff_pass_on(ad, var, d_out, err);
    return autodiff_add_op(ad,
                           &(struct program_op){.kind = OP_CAST,
                                                .inputs = {d_out},
                                                .input_count = 1,
                                                .outputs = {autodiff_slot(ad, var)},
                                                .output_count = 1},
                           err);
}

static int add_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                        struct fleet_error *err)
{
    bool rows = adds_rows(program, op);
    int d_out = autodiff_of_filled(ad, op->outputs[0], err), d_b;

    if (d_out == PROGRAM_NONE)
        return -EINVAL;
    if (op->attributes.activation != OP_ACTIVATION_NONE)
        return fleet_error(err, -EINVAL, "%s is fused with its activation: differentiate first",
                           program->vars[op->outputs[0]].name);
    if (ad->needed[op->inputs[0]] && pass_to(program, ad, op->inputs[0], d_out, err) < 0)
        return -EINVAL;
    if (!ad->needed[op->inputs[1]])
        return 0;
    if (!rows)
        return pass_to(program, ad, op->inputs[1], d_out, err);
    d_b = autodiff_slot(ad, op->inputs[1]);
    return autodiff_add_op(ad,
                           &(struct program_op){.kind = OP_ADD_GRAD_B,
                                                .inputs = {d_out},
                                                .input_count = 1,
                                                .outputs = {d_b},
                                                .output_count = 1},
                           err);
}

static int add_grad_b_infer(struct program *program, const struct program_op *op,
                            struct fleet_error *err)
{
    int64_t columns = operand_columns(operand_in(program, op, 0));

    if (operand_need_ndim(program, op, 0, 2, PROGRAM_DIMS_MAX, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    return operand_give(program, op, 0, OPERAND_FLOAT, 1, &columns, err);
}

/* Sums over rows go through 16 partial sums of each column. */
static void add_grad_b_cost(const struct program *program, const struct program_op *op,
                            struct op_cost *out)
{
    out->flops = operand_in_elements(program, op, 0);
    out->scratch_bytes = (size_t)operand_out_elements(program, op, 0) * 16 * sizeof(float);
}

const struct op_definition add_definition = {
    .name = "add",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 1,
    .infer = add_infer,
    .gradient = add_gradient,
    .cost = operand_cost_of_reading,
    .in_place = true,
};

const struct op_definition add_grad_b_definition = {
    .name = "add_grad_b",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = add_grad_b_infer,
    .cost = add_grad_b_cost,
};
