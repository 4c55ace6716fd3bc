/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operators of the section check. grad_norm and check_finite work on the whole flat gradient space,
 * join_norms on what grad_norm gives.
 */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/ops/operand_internal.h"

/* Input 0 stands for the whole gradient space. */
static int need_gradients(const struct program *program, const struct program_op *op,
                          struct fleet_error *err)
{
    const struct program_var *first = operand_in(program, op, 0);

    if (first->role != PROGRAM_ROLE_GRADIENT || first->flat_offset > 0)
        return fleet_error(err, -EINVAL,
                           "input 0 (%s) must be the gradient at the start of the gradient space",
                           first->name);
    return 0;
}

/* One for each trained parameter, and the global one. */
static int64_t count_norms(const struct program *program)
{
    int64_t norms = 1;

    for (int i = 0; i < program->var_count; i++)
        norms += program->vars[i].role == PROGRAM_ROLE_PARAMETER && program->vars[i].trained;
    return norms;
}

static int grad_norm_infer(struct program *program, const struct program_op *op,
                           struct fleet_error *err)
{
    int64_t norms = count_norms(program), bytes = (norms - 1) * (int64_t)sizeof(double);

    if (need_gradients(program, op, err) < 0)
        return -EINVAL;
    if (op->attributes.owned)
        return operand_give(program, op, 0, OPERAND_UINT8, 1, &bytes, err);
    return operand_give(program, op, 0, OPERAND_FP32, 1, &norms, err);
}

static int join_norms_infer(struct program *program, const struct program_op *op,
                            struct fleet_error *err)
{
    const struct program_var *all = operand_in(program, op, 0);
    int64_t norms = count_norms(program), bytes = (norms - 1) * (int64_t)sizeof(double);

    if (operand_need_ndim(program, op, 0, 1, 1, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FP32 | OPERAND_UINT8, err) < 0)
        return -EINVAL;
    if (all->type == PROGRAM_UINT8 && all->shape[0] != bytes)
        return fleet_error(err, -EINVAL,
                           "input 0 (%s) has %" PRId64 " bytes, needs the %" PRId64
                           " of a double for each trained parameter",
                           all->name, all->shape[0], bytes);
    if (all->type == PROGRAM_UINT8)
        return operand_give(program, op, 0, OPERAND_FP32, 1, &norms, err);
    if (all->shape[0] < norms || all->shape[0] % norms != 0)
        return fleet_error(err, -EINVAL,
                           "input 0 (%s) has %" PRId64 " elements, needs a multiple of %" PRId64,
                           all->name, all->shape[0], norms);
    return operand_give(program, op, 0, OPERAND_FP32, 1, &norms, err);
}

static int spread_norms_infer(struct program *program, const struct program_op *op,
                              struct fleet_error *err)
{
    const struct program_var *own = operand_in(program, op, 0);
    int64_t norms = count_norms(program), whole = program->whole_trained + 1;

    if (operand_need_ndim(program, op, 0, 1, 1, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FP32, err) < 0)
        return -EINVAL;
    if (own->shape[0] != norms || whole < norms)
        return fleet_error(err, -EINVAL,
                           "input 0 (%s) has %" PRId64 " elements, needs %" PRId64
                           ", and at most the %" PRId64 " of the whole model",
                           own->name, own->shape[0], norms, whole);
    return operand_give(program, op, 0, OPERAND_FP32, 1, &whole, err);
}

static int total_norm_infer(struct program *program, const struct program_op *op,
                            struct fleet_error *err)
{
    const struct program_var *x = operand_in(program, op, 0);
    int64_t count;

    if (operand_need_ndim(program, op, 0, 1, 1, err) < 0 ||
        operand_need_type(program, op, 0, OPERAND_FP32, err) < 0)
        return -EINVAL;
    count = x->shape[0];
    return operand_give(program, op, 0, OPERAND_FP32, 1, &count, err);
}

static int check_finite_infer(struct program *program, const struct program_op *op,
                              struct fleet_error *err)
{
    int64_t one = 1;

    if (need_gradients(program, op, err) < 0)
        return -EINVAL;
    return operand_give(program, op, 0, OPERAND_FP32, 1, &one, err);
}

/* A sum of squares, in double, for every 4096 elements. */
static void grad_norm_cost(const struct program *program, const struct program_op *op,
                           struct op_cost *out)
{
    (void)op;
    out->flops = 2.0 * (double)program->flat_count;
    out->bytes = sizeof(float) * (double)program->flat_count;
    out->scratch_bytes =
        ((size_t)program->flat_count / 4096 + (size_t)program->var_count) * sizeof(double);
}

static void check_finite_cost(const struct program *program, const struct program_op *op,
                              struct op_cost *out)
{
    (void)op;
    out->flops = (double)program->flat_count;
    out->bytes = sizeof(float) * (double)program->flat_count;
}

const struct op_definition grad_norm_definition = {
    .name = "grad_norm",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = grad_norm_infer,
    .cost = grad_norm_cost,
};

const struct op_definition join_norms_definition = {
    .name = "join_norms",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = join_norms_infer,
    .cost = operand_cost_of_reading,
};

const struct op_definition spread_norms_definition = {
    .name = "spread_norms",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = spread_norms_infer,
    .cost = operand_cost_of_reading,
};

const struct op_definition total_norm_definition = {
    .name = "total_norm",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = total_norm_infer,
    .cost = operand_cost_of_reading,
};

const struct op_definition check_finite_definition = {
    .name = "check_finite",
    .input_min = 1,
    .input_max = 1,
    .output_min = 1,
    .output_max = 1,
    .infer = check_finite_infer,
    .cost = check_finite_cost,
};
