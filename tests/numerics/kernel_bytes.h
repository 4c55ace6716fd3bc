/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_KERNEL_BYTES_H
#define TESTS_NUMERICS_KERNEL_BYTES_H

/* Sizes of operands, for back ends that copy them. */

#include "agent/runtime/backend/backend.h"
#include "libfleet/program/ops/operand.h"

/* Bytes of input i of a call. The whole gradient space has no variable. */
static inline size_t kernel_input_bytes(const struct kernel_call *call, int i)
{
    const struct program_var *var = operand_in(call->program, call->op, i);

    if (i == 0 && (call->op->kind == OP_GRAD_NORM || call->op->kind == OP_CHECK_FINITE))
        return (size_t)(call->op->attributes.owned ? call->held->count
                                                   : call->program->flat_count) *
               sizeof(float);
    return var ? program_var_bytes(var) : 0;
}

#endif
