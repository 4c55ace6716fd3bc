/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_KERNEL_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_KERNEL_H

/*
 * Helpers of all kernels: the sizes and types of operands, and how a loop is cut into tasks.
 * A task takes about KERNEL_TASK_ELEMENTS elements, for any number of threads.
 */

#include <errno.h>

#include "agent/runtime/backend/cpu/cpu_internal.h"
#include "agent/runtime/backend/cpu/kernels/typed.h"
#include "agent/runtime/backend/cpu/vector.h"
#include "agent/runtime/backend/cpu/vector_math.h"
#include "libfleet/base/error.h"
#include "libfleet/program/ops/operand.h"

#define KERNEL_TASK_ELEMENTS 16384

static inline const struct program_var *kernel_in(const struct kernel_call *call, int i)
{
    return operand_in(call->program, call->op, i);
}

static inline const struct program_var *kernel_out(const struct kernel_call *call, int i)
{
    return operand_out(call->program, call->op, i);
}

/* FP32 for an absent operand. */
static inline enum program_type kernel_in_type(const struct kernel_call *call, int i)
{
    const struct program_var *var = kernel_in(call, i);

    return var ? var->type : PROGRAM_FP32;
}

static inline enum program_type kernel_out_type(const struct kernel_call *call, int i)
{
    const struct program_var *var = kernel_out(call, i);

    return var ? var->type : PROGRAM_FP32;
}

static inline int64_t kernel_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t kernel_pieces(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

/* Rows of one task. */
static inline int64_t kernel_rows_of_task(int64_t columns)
{
    int64_t rows = columns > 0 ? KERNEL_TASK_ELEMENTS / columns : 1;

    return rows > 0 ? rows : 1;
}

/* One lane of a function on sixteen. */
static inline float kernel_lane(v16 a)
{
    float lanes[V_LANES];

    v_store(lanes, a);
    return lanes[0];
}

#endif
