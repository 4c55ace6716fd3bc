/* SPDX-License-Identifier: Apache-2.0 */

/*
 * y = the rows of x at this rank's place: all ranks of the group hold the same x, so nothing
 * travels. Each rank has the gradient of its rows; gathered, they are the gradient of x.
 */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static int own_rows_infer(struct program *program, const struct program_op *op,
                          struct fleet_error *err)
{
    struct program_var y = *operand_in(program, op, 0);
    int ranks = op->attributes.ranks, place = op->attributes.place;

    if (operand_need_at_least("ranks", ranks, 1, err) < 0 ||
        operand_need_at_least("place", place, 0, err) < 0 ||
        operand_need_ndim(program, op, 0, 1, PROGRAM_DIMS_MAX, err) < 0)
        return -EINVAL;
    if (place >= ranks)
        return fleet_error(err, -EINVAL, "place is %d, must be below the %d ranks", place, ranks);
    if (y.shape[0] % ranks != 0)
        return fleet_error(err, -EINVAL,
                           "input 0 (%s) has %" PRId64 " rows, not a multiple of the %d ranks",
                           y.name, y.shape[0], ranks);
    y.shape[0] /= ranks;
    return operand_give(program, op, 0, (enum operand_types)(1 << y.type), y.ndim, y.shape, err);
}

static int own_rows_gradient(struct program *program, const struct program_op *op,
                             struct autodiff *ad, struct fleet_error *err)
{
    struct program_op gathered = *op;

    (void)program;
    gathered.attributes =
        (struct op_attributes){.group = op->attributes.group, .ranks = op->attributes.ranks};
    return autodiff_add_unary(ad, &gathered, OP_ALL_GATHER, PROGRAM_NONE, err);
}

static void own_rows_cost(const struct program *program, const struct program_op *op,
                          struct op_cost *out)
{
    (void)program;
    (void)op;
    out->flops = 0;
}

const struct op_definition own_rows_definition = {
    .name = "own_rows",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = own_rows_infer,
    .gradient = own_rows_gradient,
    .cost = own_rows_cost,
};
