/* SPDX-License-Identifier: Apache-2.0 */

/* The table of definitions, and what is the same for every operator: counts, sizes, default
 * cost. */
#include "libfleet/program/op.h"

#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/program.h"

static const struct op_definition *const definitions[OP_KIND_COUNT] = {
    [OP_EMBEDDING] = &embedding_definition,
    [OP_EMBEDDING_GRAD] = &embedding_grad_definition,
    [OP_LAYER_NORM] = &layer_norm_definition,
    [OP_LAYER_NORM_GRAD] = &layer_norm_grad_definition,
    [OP_RMS_NORM] = &rms_norm_definition,
    [OP_RMS_NORM_GRAD] = &rms_norm_grad_definition,
    [OP_LINEAR] = &linear_definition,
    [OP_LINEAR_GRAD] = &linear_grad_definition,
    [OP_MATMUL] = &matmul_definition,
    [OP_ATTENTION] = &attention_definition,
    [OP_ATTENTION_GRAD] = &attention_grad_definition,
    [OP_CROSS_ENTROPY] = &cross_entropy_definition,
    [OP_CROSS_ENTROPY_GRAD] = &cross_entropy_grad_definition,
    [OP_ADD] = &add_definition,
    [OP_ADD_GRAD_B] = &add_grad_b_definition,
    [OP_SCALE] = &scale_definition,
    [OP_GELU] = &gelu_definition,
    [OP_GELU_GRAD] = &gelu_grad_definition,
    [OP_RELU] = &relu_definition,
    [OP_RELU_GRAD] = &relu_grad_definition,
    [OP_SILU] = &silu_definition,
    [OP_SILU_GRAD] = &silu_grad_definition,
    [OP_SWIGLU] = &swiglu_definition,
    [OP_SWIGLU_GRAD] = &swiglu_grad_definition,
    [OP_ROPE] = &rope_definition,
    [OP_DROPOUT] = &dropout_definition,
    [OP_SOFTMAX] = &softmax_definition,
    [OP_SOFTMAX_GRAD] = &softmax_grad_definition,
    [OP_CAST] = &cast_definition,
    [OP_RESHAPE] = &reshape_definition,
    [OP_TRANSPOSE] = &transpose_definition,
    [OP_REDUCE] = &reduce_definition,
    [OP_REDUCE_GRAD] = &reduce_grad_definition,
    [OP_CONCAT] = &concat_definition,
    [OP_SPLIT] = &split_definition,
    [OP_CONV2D] = &conv2d_definition,
    [OP_CONV2D_GRAD] = &conv2d_grad_definition,
    [OP_BATCH_NORM] = &batch_norm_definition,
    [OP_BATCH_NORM_GRAD] = &batch_norm_grad_definition,
    [OP_MAX_POOL2D] = &max_pool2d_definition,
    [OP_MAX_POOL2D_GRAD] = &max_pool2d_grad_definition,
    [OP_AVG_POOL2D] = &avg_pool2d_definition,
    [OP_AVG_POOL2D_GRAD] = &avg_pool2d_grad_definition,
    [OP_ADAPTIVE_AVG_POOL2D] = &adaptive_avg_pool2d_definition,
    [OP_ADAPTIVE_AVG_POOL2D_GRAD] = &adaptive_avg_pool2d_grad_definition,
    [OP_MEMCPY] = &memcpy_definition,
    [OP_FILL] = &fill_definition,
    [OP_ALL_REDUCE] = &all_reduce_definition,
    [OP_GRAD_NORM] = &grad_norm_definition,
    [OP_CHECK_FINITE] = &check_finite_definition,
    [OP_SGD] = &sgd_definition,
    [OP_MOMENTUM] = &momentum_definition,
    [OP_ADAM] = &adam_definition,
    [OP_ADAMW] = &adamw_definition,
    [OP_LAMB] = &lamb_definition,
    [OP_LARS] = &lars_definition,
};

const struct op_definition *op_definition(enum op_kind kind)
{
    fleet_assert((size_t)kind < OP_KIND_COUNT && definitions[kind]);
    return definitions[kind];
}

/* Operands that must be there are there, no more than possible, and inputs have shapes. */
static int check_operands(const struct program *program, const struct program_op *op,
                          struct fleet_error *err)
{
    const struct op_definition *d = op_definition(op->kind);

    if (op->input_count < d->input_min || op->input_count > d->input_max)
        return fleet_error(err, -EINVAL, "has %d inputs, needs %d to %d", op->input_count,
                           d->input_min, d->input_max);
    if (op->output_count < d->output_min || op->output_count > d->output_max)
        return fleet_error(err, -EINVAL, "has %d outputs, needs %d to %d", op->output_count,
                           d->output_min, d->output_max);
    for (int i = 0; i < op->input_count; i++) {
        int index = op->inputs[i];
        if (index == PROGRAM_NONE && i < d->input_min)
            return fleet_error(err, -EINVAL, "input %d is missing", i);
        if (index < PROGRAM_NONE || index >= program->var_count)
            return fleet_error(err, -EINVAL, "input %d is variable %d of %d", i, index,
                               program->var_count);
        if (index != PROGRAM_NONE && program->vars[index].ndim == PROGRAM_UNSHAPED)
            return fleet_error(err, -EINVAL, "input %d (%s) has no shape yet", i,
                               program->vars[index].name);
    }
    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] < PROGRAM_NONE || op->outputs[i] >= program->var_count)
            return fleet_error(err, -EINVAL, "output %d is variable %d of %d", i, op->outputs[i],
                               program->var_count);
    return 0;
}

static int check_size(const struct program *program, int index, struct fleet_error *err)
{
    const struct program_var *var;

    if (index == PROGRAM_NONE)
        return 0;
    var = &program->vars[index];
    for (int i = 0; i < var->ndim; i++)
        if (var->shape[i] < 1)
            return fleet_error(err, -EINVAL, "%s has a dimension of %" PRId64, var->name,
                               var->shape[i]);
    if (program_var_elements(var) > PROGRAM_ELEMENTS_MAX)
        return fleet_error(err, -EOVERFLOW, "%s has more than 2^40 elements", var->name);
    return 0;
}

/* Outputs that an operator cannot do without: all of its minimum, except that gradients may each
 * be wanted or not. */
static int check_outputs(const struct program_op *op, struct fleet_error *err)
{
    int present = 0;

    for (int i = 0; i < op->output_count; i++)
        present += op->outputs[i] != PROGRAM_NONE;
    if (op_definition(op->kind)->output_min > 0 && present == 0)
        return fleet_error(err, -EINVAL, "has no output");
    return 0;
}

static int infer_checked(struct program *program, const struct program_op *op,
                         struct fleet_error *err)
{
    int rc;

    if ((rc = check_operands(program, op, err)) < 0 || (rc = check_outputs(op, err)) < 0)
        return rc;
    for (int i = 0; i < op->input_count; i++)
        if ((rc = check_size(program, op->inputs[i], err)) < 0)
            return rc;
    if ((rc = op_definition(op->kind)->infer(program, op, err)) < 0)
        return rc;
    for (int i = 0; i < op->output_count; i++)
        if ((rc = check_size(program, op->outputs[i], err)) < 0)
            return rc;
    return 0;
}

int op_infer(struct program *program, const struct program_op *op, struct fleet_error *err)
{
    int rc = infer_checked(program, op, err);

    if (rc < 0)
        (void)fleet_error_wrap(err, "%s", op_definition(op->kind)->name);
    return rc;
}

void op_cost(const struct program *program, const struct program_op *op, struct op_cost *out)
{
    const struct op_definition *d = op_definition(op->kind);

    *out = (struct op_cost){0};
    for (int i = 0; i < op->input_count; i++)
        if (op->inputs[i] != PROGRAM_NONE)
            out->bytes += (double)program_var_bytes(&program->vars[op->inputs[i]]);
    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] != PROGRAM_NONE)
            out->bytes += (double)program_var_bytes(&program->vars[op->outputs[i]]);
    if (d->cost)
        d->cost(program, op, out);
    else if (op->output_count && op->outputs[0] != PROGRAM_NONE)
        out->flops = (double)program_var_elements(&program->vars[op->outputs[0]]);
}
