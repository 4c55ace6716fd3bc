/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Rotary positions (Su et al., 2104.09864): element i of the first half of a head and element i of
 * its second half are turned by position · base^(-2i/head_dim). Turning back is the gradient.
 */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static int rope_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    const struct op_attributes *a = &op->attributes;
    const struct program_var *x = operand_in(program, op, 0);

    if (operand_need_ndim(program, op, 0, 3, 3, err) < 0 ||
        operand_need_at_least("heads", a->heads, 1, err) < 0 ||
        operand_need_at_least("head_dim", a->head_dim, 2, err) < 0)
        return -EINVAL;
    if (a->head_dim % 2)
        return fleet_error(err, -EINVAL, "head_dim is %d, must be even", a->head_dim);
    if ((int64_t)a->heads * a->head_dim > x->shape[2])
        return fleet_error(err, -EINVAL,
                           "input 0 (%s) has %" PRId64 " columns, needs at least %d heads of %d",
                           x->name, x->shape[2], a->heads, a->head_dim);
    if (!(a->base > 1))
        return fleet_error(err, -EINVAL, "base is %g, must be above 1", a->base);
    return operand_infer_same(program, op, err);
}

static int rope_gradient(struct program *program, const struct program_op *op, struct autodiff *ad,
                         struct fleet_error *err)
{
    struct program_op grad = *op;

    (void)program;
    grad.inputs[0] = autodiff_of(ad, op->outputs[0]);
    grad.outputs[0] = autodiff_slot(ad, op->inputs[0]);
    grad.attributes.inverse = !op->attributes.inverse;
    return autodiff_add_op(ad, &grad, err);
}

static void rope_cost(const struct program *program, const struct program_op *op,
                      struct op_cost *out)
{
    const struct program_var *x = operand_in(program, op, 0);

    out->flops = 6 * operand_in_elements(program, op, 0);
    /* Cosine and sine of every position and pair, and each pair's frequency in double. */
    out->scratch_bytes =
        (size_t)(x->shape[1] + 1) * (size_t)op->attributes.head_dim * sizeof(float);
}

const struct op_definition rope_definition = {
    .name = "rope",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = rope_infer,
    .gradient = rope_gradient,
    .cost = rope_cost,
    .in_place = true,
};
