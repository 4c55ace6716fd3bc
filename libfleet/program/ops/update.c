/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One optimizer step on one parameter, in place. Inputs: param grad state… norms?;
 * outputs: the same param state….
 */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/ops/operand_internal.h"

/* The definition fixes the number of states by its number of outputs. */
static int update_infer(struct program *program, const struct program_op *op,
                        struct fleet_error *err)
{
    const struct program_var *param = operand_in(program, op, 0);
    int states = op->output_count - 1;
    enum op_clip clip = op->attributes.optimizer.clip;
    bool normed = clip == OP_CLIP_NORM || clip == OP_CLIP_GLOBAL_NORM;
    int norms = 2 + states;
    const struct program_var *norm = operand_in(program, op, norms);

    if (param->role != PROGRAM_ROLE_PARAMETER || !param->trained)
        return fleet_error(err, -EINVAL, "input 0 (%s) is not a trained parameter", param->name);
    if (operand_need_of_parameter(program, op, norms, err) < 0)
        return -EINVAL;
    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] != op->inputs[i ? i + 1 : 0])
            return fleet_error(err, -EINVAL, "output %d is not the variable that is read", i);
    if (normed && !norm)
        return fleet_error(err, -EINVAL, "input %d, the norms to clip by, is missing", norms);
    if (norm && (op->attributes.optimizer.norm_index < 0 ||
                 op->attributes.optimizer.norm_index + 1 >= program_var_elements(norm)))
        return fleet_error(err, -EINVAL, "norm_index %d lies outside %s",
                           op->attributes.optimizer.norm_index, norm->name);
    return 0;
}

/* LAMB and LARS: squares of all ranks, in pairs. */
static int need_squares(const struct program *program, const struct program_op *op,
                        struct fleet_error *err)
{
    int at = 2 + op->output_count;
    const struct program_var *squares = operand_in(program, op, at);
    int64_t ranks = op->attributes.ranks;

    if (!squares)
        return 0;
    if (operand_need_ndim(program, op, at, 1, 1, err) < 0 ||
        operand_need_type(program, op, at, OPERAND_FP32, err) < 0)
        return -EINVAL;
    if (ranks < 1 || squares->shape[0] % (2 * ranks) != 0 ||
        op->attributes.optimizer.norm_index >= squares->shape[0] / (2 * ranks))
        return fleet_error(
            err, -EINVAL, "input %d (%s) does not have the squares of %lld ranks for norm_index %d",
            at, squares->name, (long long)ranks, op->attributes.optimizer.norm_index);
    return 0;
}

static int trusted_update_infer(struct program *program, const struct program_op *op,
                                struct fleet_error *err)
{
    return update_infer(program, op, err) < 0 ? -EINVAL : need_squares(program, op, err);
}

/* All outputs together have two elements for each parameter. */
static int trust_squares_infer(struct program *program, const struct program_op *op,
                               struct fleet_error *err)
{
    const struct program_var *param = operand_in(program, op, 0);
    const struct program_var *squares = operand_out(program, op, 0);
    int states = operand_in(program, op, 3) ? 2 : 1;

    if (param->role != PROGRAM_ROLE_PARAMETER || !param->trained)
        return fleet_error(err, -EINVAL, "input 0 (%s) is not a trained parameter", param->name);
    if (operand_need_of_parameter(program, op, 2 + states, err) < 0)
        return -EINVAL;
    if (squares->ndim != 1 || squares->shape[0] % 2 != 0 ||
        op->attributes.optimizer.norm_index >= squares->shape[0] / 2)
        return fleet_error(err, -EINVAL, "output 0 (%s) has no place for norm_index %d",
                           squares->name, op->attributes.optimizer.norm_index);
    return operand_give(program, op, 0, OPERAND_FP32, 1, squares->shape, err);
}

static void update_cost(const struct program *program, const struct program_op *op,
                        struct op_cost *out)
{
    out->flops = op_definition(op->kind)->flops_per_element * operand_in_elements(program, op, 0);
    /* LAMB's and LARS' norms: a sum for every 4096 elements, of p and of u or g. */
    if (op->kind == OP_LAMB || op->kind == OP_LARS || op->kind == OP_TRUST_SQUARES)
        out->scratch_bytes =
            ((size_t)operand_in_elements(program, op, 0) / 4096 + 1) * 2 * sizeof(double);
}

#define UPDATE(id, state_count, flops, optional, infer_function)                               \
    const struct op_definition id##_definition = {.name = #id,                                 \
                                                  .input_min = 2 + (state_count),              \
                                                  .input_max = 2 + (state_count) + (optional), \
                                                  .output_min = 1 + (state_count),             \
                                                  .output_max = 1 + (state_count),             \
                                                  .infer = (infer_function),                   \
                                                  .is_optimizer = true,                        \
                                                  .states = (state_count),                     \
                                                  .flops_per_element = (flops),                \
                                                  .cost = update_cost}

UPDATE(sgd, 0, 2, 1, update_infer);
UPDATE(momentum, 1, 4, 1, update_infer);
UPDATE(adam, 2, 12, 1, update_infer);
UPDATE(adamw, 2, 14, 1, update_infer);
UPDATE(lamb, 2, 20, 2, trusted_update_infer);
UPDATE(lars, 1, 10, 2, trusted_update_infer);

const struct op_definition trust_squares_definition = {
    .name = "trust_squares",
    .input_min = 3,
    .input_max = 5,
    .output_min = 1,
    .output_max = 1,
    .infer = trust_squares_infer,
    .flops_per_element = 16,
    .cost = update_cost,
};
