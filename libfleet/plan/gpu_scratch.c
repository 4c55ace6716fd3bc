/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/gpu_scratch.h"

#include <stdlib.h>

#include "libfleet/program/ops/operand.h"
#include "libfleet/program/program.h"

/* So that what follows an array of floats is aligned. */
static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* A bias of another type than the product's 16 bits is converted first. */
static size_t bias_bytes(const struct program *program, const struct program_op *op)
{
    const struct program_var *y = operand_out(program, op, 0), *bias = operand_in(program, op, 2);

    return bias && bias->type != y->type && y->type != PROGRAM_FP32
               ? (size_t)operand_columns(y) * sizeof(uint16_t)
               : 0;
}

/* The slope of the activation, then the sums for the bias. */
static size_t slope_bytes(const struct program *program, const struct program_op *op)
{
    const struct program_var *d = operand_in(program, op, 0);
    size_t slope = op->attributes.activation == OP_ACTIVATION_NONE
                       ? 0
                       : aligned((size_t)program_var_elements(d) * sizeof(float));

    return slope + gpu_scratch_column_sum(operand_rows(d), operand_columns(d));
}

size_t gpu_scratch_before_fp8(const struct program *program, const struct program_op *op)
{
    return aligned(op->kind == OP_LINEAR ? bias_bytes(program, op) : slope_bytes(program, op));
}

/* x and the weight; of a gradient d for one product, d and x in another order for the other. */
static size_t linear_bytes(const struct program *program, const struct program_op *op)
{
    size_t bytes = gpu_scratch_before_fp8(program, op) + GPU_SCRATCH_FP8;
    int first = op->kind == OP_LINEAR ? 0 : 1;
    int64_t x = program_var_elements(operand_in(program, op, first));
    int64_t weight = program_var_elements(operand_in(program, op, first + 1));

    if (!op->attributes.fp8)
        return op->kind == OP_LINEAR ? bias_bytes(program, op) : slope_bytes(program, op);
    if (op->kind == OP_LINEAR_GRAD)
        bytes += gpu_scratch_fp8(program_var_elements(operand_in(program, op, 0)), 2);
    return bytes + gpu_scratch_fp8(x, 1) + gpu_scratch_fp8(weight, 1);
}

static size_t attention_grad_bytes(const struct program *program, const struct program_op *op)
{
    const struct program_var *qkv = operand_in(program, op, 1);

    return gpu_scratch_attention_grad(qkv->shape[0], op->attributes.heads, qkv->shape[1]);
}

/* A number for each block of the gradient, and one for each tensor. */
static size_t grad_norm_bytes(const struct program *program)
{
    int *parameters, count = program_parameters(program, true, &parameters);
    int64_t blocks = 0;

    for (int i = 0; i < count; i++)
        blocks += gpu_scratch_parts(program_var_elements(&program->vars[parameters[i]]),
                                    GPU_SCRATCH_BLOCK);
    free(parameters);
    return (size_t)(blocks + count) * sizeof(double);
}

/* The first two inputs are a parameter and its gradient. */
static size_t update_bytes(const struct program *program, const struct program_op *op)
{
    int64_t count = program_var_elements(operand_in(program, op, 0));
    size_t dgc = gpu_scratch_dgc(count);
    size_t optimizer = gpu_scratch_optimizer(1, gpu_scratch_parts(count, GPU_SCRATCH_BLOCK));

    if (op->kind == OP_DGC_SELECT)
        return dgc;
    return op->kind == OP_DGC ? dgc + optimizer : optimizer;
}

/* What lies in front, and the logits of a chunk. */
static size_t classifier_bytes(const struct program *program, const struct program_op *op)
{
    const struct program_var *x = operand_in(program, op, 0), *w = operand_in(program, op, 1);
    int64_t rows = operand_rows(x), words = w->shape[op->attributes.transposed ? 0 : 1];
    int64_t chunk = rows < GPU_CLASSIFIER_ROWS ? rows : GPU_CLASSIFIER_ROWS;

    return gpu_scratch_before_logits(rows) + (size_t)(chunk * words) * program_type_size(x->type);
}

size_t gpu_scratch_bytes(const struct program *program, const struct program_op *op)
{
    const struct program_var *x = operand_in(program, op, 0), *y = operand_out(program, op, 0);

    switch (op->kind) {
    case OP_LAYER_NORM_GRAD:
    case OP_RMS_NORM_GRAD:
        return gpu_scratch_norm_grad(operand_rows(x), operand_columns(x));
    case OP_ADD_GRAD_B:
        return gpu_scratch_column_sum(operand_rows(x), operand_columns(x));
    case OP_LINEAR:
    case OP_LINEAR_GRAD:
        return linear_bytes(program, op);
    case OP_EMBEDDING_GRAD:
        return y ? gpu_scratch_embedding_grad(x->shape[0], x->shape[1], y->shape[0]) : 0;
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_GRAD:
        return (size_t)(GPU_SCRATCH_LOSS_FRONT + operand_rows(x)) * sizeof(float);
    case OP_LINEAR_CROSS_ENTROPY:
        return classifier_bytes(program, op);
    case OP_ROPE:
        return gpu_scratch_rope(x->shape[1], op->attributes.head_dim);
    case OP_ATTENTION_GRAD:
        return attention_grad_bytes(program, op);
    case OP_GRAD_NORM:
        return grad_norm_bytes(program);
    case OP_SGD:
    case OP_MOMENTUM:
    case OP_ADAM:
    case OP_ADAMW:
    case OP_LAMB:
    case OP_LARS:
    case OP_TRUST_SQUARES:
    case OP_DGC_SELECT:
    case OP_DGC:
        return update_bytes(program, op);
    default:
        return 0;
    }
}
