/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What our kernels cannot run, said before the first step: the conditions behind which the launches
 * return cudaErrorInvalidValue.
 */
#include "cuda/operators.h"
#include "libfleet/program/ops/operand.h"

#define HEAD_DIM_MAX 128

bool cuda_operator_reads_parameter(enum op_kind kind)
{
    return op_definition(kind)->is_optimizer || kind == OP_TRUST_SQUARES;
}

static const char *refuse_attention(const struct program *program, const struct program_op *op)
{
    const struct program_var *qkv = operand_in(program, op, op->kind == OP_ATTENTION ? 0 : 1);
    int64_t heads = op->attributes.heads + 2 * op->attributes.kv_heads;

    return qkv->shape[2] / heads > HEAD_DIM_MAX ? "attention heads of more than 128 columns" : NULL;
}

const char *cuda_operator_refusal(const struct program *program, const struct program_op *op)
{
    if (!cuda_operator_exists(op->kind))
        return op_definition(op->kind)->name;
    switch (op->kind) {
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
        return refuse_attention(program, op);
    default:
        return NULL;
    }
}
