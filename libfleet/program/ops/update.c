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

static void update_cost(const struct program *program, const struct program_op *op,
                        struct op_cost *out)
{
    out->flops = op_definition(op->kind)->flops_per_element * operand_in_elements(program, op, 0);
    /* LAMB's and LARS' norms: a sum for every 4096 elements, of p and of u or g. */
    if (op->kind == OP_LAMB || op->kind == OP_LARS)
        out->scratch_bytes =
            ((size_t)operand_in_elements(program, op, 0) / 4096 + 1) * 2 * sizeof(double);
}

#define UPDATE(id, state_count, flops)                                             \
    const struct op_definition id##_definition = {.name = #id,                     \
                                                  .input_min = 2 + (state_count),  \
                                                  .input_max = 3 + (state_count),  \
                                                  .output_min = 1 + (state_count), \
                                                  .output_max = 1 + (state_count), \
                                                  .infer = update_infer,           \
                                                  .is_optimizer = true,            \
                                                  .states = (state_count),         \
                                                  .flops_per_element = (flops),    \
                                                  .cost = update_cost}

UPDATE(sgd, 0, 2);
UPDATE(momentum, 1, 4);
UPDATE(adam, 2, 12);
UPDATE(adamw, 2, 14);
UPDATE(lamb, 2, 20);
UPDATE(lars, 1, 10);
