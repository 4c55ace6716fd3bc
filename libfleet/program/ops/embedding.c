/* SPDX-License-Identifier: Apache-2.0 */

/* Rows of a table by token, plus rows of a second one by position. */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

static int embedding_infer(struct program *program, const struct program_op *op,
                           struct fleet_error *err)
{
    struct program_var ids = *operand_in(program, op, 0), table = *operand_in(program, op, 1);
    const struct program_var *position = operand_in(program, op, 2);

    if (operand_need_ndim(program, op, 0, 2, 2, err) < 0 ||
        operand_need_ndim(program, op, 1, 2, 2, err) < 0 ||
        operand_need_ndim(program, op, 2, 2, 2, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_INT32, err) < 0 ||
        operand_need_type(program, op, 1, OPERAND_FLOAT, err) < 0 ||
        operand_need_same_type(program, op, 1, 2, err) < 0)
        return -EINVAL;
    if (op->attributes.first_word < 0 || (op->attributes.divided && position))
        return fleet_error(err, -EINVAL, "a divided table has a first word from 0, no positions");
    if (position && (position->shape[1] != table.shape[1] || position->shape[0] < ids.shape[1]))
        return fleet_error(err, -EINVAL,
                           "input 2 (%s) has shape [%ld,%ld], needs at least %ld rows of %ld",
                           position->name, (long)position->shape[0], (long)position->shape[1],
                           (long)ids.shape[1], (long)table.shape[1]);
    return operand_give(program, op, 0, OPERAND_FLOAT, 3,
                        (int64_t[]){ids.shape[0], ids.shape[1], table.shape[1]}, err);
}

static int embedding_gradient(struct program *program, const struct program_op *op,
                              struct autodiff *ad, struct fleet_error *err)
{
    struct program_op grad = {.kind = OP_EMBEDDING_GRAD,
                              .inputs = {op->inputs[0], autodiff_of(ad, op->outputs[0])},
                              .input_count = 2,
                              .outputs = {autodiff_slot(ad, op->inputs[1]), PROGRAM_NONE},
                              .output_count = 2,
                              .attributes = op->attributes};

    (void)program;
    if (op->input_count > 2 && op->inputs[2] != PROGRAM_NONE)
        grad.outputs[1] = autodiff_slot(ad, op->inputs[2]);
    return autodiff_add_op(ad, &grad, err);
}

/* Its outputs are tables whose number of rows only the forward operator knows: they have shapes. */
static int embedding_grad_infer(struct program *program, const struct program_op *op,
                                struct fleet_error *err)
{
    struct program_var d_out = *operand_in(program, op, 1);
    const struct program_var *ids = operand_in(program, op, 0);

    if (operand_need_ndim(program, op, 0, 2, 2, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_INT32, err) < 0 ||
        operand_need_type(program, op, 1, OPERAND_FLOAT, err) < 0 ||
        operand_need_shape(program, op, 1, 3,
                           (int64_t[]){ids->shape[0], ids->shape[1], operand_columns(&d_out)},
                           err) < 0)
        return -EINVAL;
    for (int i = 0; i < op->output_count; i++) {
        const struct program_var *table = operand_out(program, op, i);
        if (table && operand_give(program, op, i, OPERAND_FP32, 2,
                                  (int64_t[]){table->shape[0], operand_columns(&d_out)}, err) < 0)
            return -EINVAL;
    }
    return 0;
}

static void embedding_cost(const struct program *program, const struct program_op *op,
                           struct op_cost *out)
{
    /* Only the rows that are looked up move, not the whole table. */
    out->flops = operand_out_elements(program, op, 0);
    out->bytes = 3 * 4 * operand_out_elements(program, op, 0);
}

static void embedding_grad_cost(const struct program *program, const struct program_op *op,
                                struct op_cost *out)
{
    double tokens = operand_in_elements(program, op, 0);

    out->flops = 2 * operand_in_elements(program, op, 1);
    /* Tokens sorted by row, so that rows are summed in a fixed order by any number of threads. */
    out->scratch_bytes = (size_t)tokens * 2 * sizeof(int32_t);
}

const struct op_definition embedding_definition = {
    .name = "embedding",
    .input_min = 2,
    .input_max = 3,
    .output_min = 1,
    .output_max = 1,
    .infer = embedding_infer,
    .gradient = embedding_gradient,
    .cost = embedding_cost,
};

const struct op_definition embedding_grad_definition = {
    .name = "embedding_grad",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 2,
    .infer = embedding_grad_infer,
    .cost = embedding_grad_cost,
};
